"""Declares the members of ADK's events that the decoder reads (google-adk 1.16 to 2.13) (decision
0033).

A member may be missing or have any type. The classes only declare the keys, so that mypy and
tests/shared/dialects/test_declared_keys.py find a misspelt key.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from penstock.dialects.base import JsonValue


class AdkEvent(TypedDict, total=False):
    """An ADK event, or an error frame."""

    id: JsonValue
    author: JsonValue
    branch: JsonValue
    nodeInfo: JsonValue  # NodeInfo, from 2.x on
    invocationId: JsonValue
    partial: JsonValue
    content: JsonValue  # Content
    actions: JsonValue  # Actions
    longRunningToolIds: JsonValue
    finishReason: JsonValue
    errorCode: JsonValue
    errorMessage: JsonValue
    usageMetadata: JsonValue  # UsageMetadata
    groundingMetadata: JsonValue  # GroundingMetadata
    citationMetadata: JsonValue
    customMetadata: JsonValue
    modelVersion: JsonValue
    output: JsonValue
    # error frames
    error: JsonValue
    error_code: JsonValue
    error_details: JsonValue  # ErrorDetails
    status_code: JsonValue
    detail: JsonValue


class ErrorDetails(TypedDict, total=False):
    """The details of an error frame, from 2.6 on."""

    error_type: JsonValue


class UsageMetadata(TypedDict, total=False):
    """The tokens of a model's answer. `TOKENS` of the vocabulary has the other counts."""

    promptTokenCount: JsonValue
    candidatesTokenCount: JsonValue
    totalTokenCount: JsonValue


class NodeInfo(TypedDict, total=False):
    """The node of a workflow that an event comes from."""

    path: JsonValue
    messageAsOutput: JsonValue
    outputFor: JsonValue


class Content(TypedDict, total=False):
    """The content of an event."""

    parts: JsonValue  # list of Part


class Part(TypedDict, total=False):
    """A part of the content. A part has one of these members; a text may also have `thought`."""

    text: JsonValue
    thought: JsonValue
    functionCall: JsonValue  # FunctionCall
    functionResponse: JsonValue  # FunctionResponse
    inlineData: JsonValue  # Blob
    fileData: JsonValue  # FileData
    executableCode: JsonValue  # ExecutableCode
    codeExecutionResult: JsonValue  # CodeResult


class FunctionCall(TypedDict, total=False):
    """A tool call, or a piece of its arguments."""

    id: JsonValue
    name: JsonValue
    args: JsonValue
    partialArgs: JsonValue  # list of PartialArg
    willContinue: JsonValue


class PartialArg(TypedDict, total=False):
    """A piece of an argument. Each piece has one of the three keys for values."""

    jsonPath: JsonValue
    stringValue: JsonValue
    numberValue: JsonValue
    boolValue: JsonValue


class FunctionResponse(TypedDict, total=False):
    """The response of a tool."""

    id: JsonValue
    name: JsonValue
    response: JsonValue
    parts: JsonValue  # list of Part


class Blob(TypedDict, total=False):
    """Data that the event itself contains."""

    mimeType: JsonValue
    data: JsonValue
    displayName: JsonValue


class FileData(TypedDict, total=False):
    """Data that the event refers to by a URI."""

    mimeType: JsonValue
    fileUri: JsonValue
    displayName: JsonValue


class ExecutableCode(TypedDict, total=False):
    """Code that the model runs."""

    language: JsonValue
    code: JsonValue


class CodeResult(TypedDict, total=False):
    """The result of code that the model ran."""

    outcome: JsonValue
    output: JsonValue


class Actions(TypedDict, total=False):
    """The changes and requests that an event has in addition to its content."""

    stateDelta: JsonValue
    artifactDelta: JsonValue
    transferToAgent: JsonValue
    transferReason: JsonValue
    transfer_to_agent: JsonValue  # TransferRequest
    requestedToolConfirmations: JsonValue
    requestedAuthConfigs: JsonValue
    route: JsonValue
    endOfAgent: JsonValue


# The members of Actions that repeat the requests of `adk_request_*` calls.
RequestKey = Literal["requestedToolConfirmations", "requestedAuthConfigs"]


class TransferRequest(TypedDict, total=False):
    """A transfer in the form of adk-streaming.md."""

    target: JsonValue
    reason: JsonValue


class GroundingMetadata(TypedDict, total=False):
    """The documents that an answer is based on."""

    groundingChunks: JsonValue
    groundingSupports: JsonValue  # list of GroundingSupport


class GroundingSupport(TypedDict, total=False):
    """A sentence of the answer, and the documents that support it."""

    segment: JsonValue
    groundingChunkIndices: JsonValue
    confidenceScores: JsonValue


class Segment(TypedDict, total=False):
    """A piece of the answer."""

    text: JsonValue


class Document(TypedDict, total=False):
    """A retrieved document."""

    title: JsonValue
    uri: JsonValue
    text: JsonValue
    documentName: JsonValue


class ConfirmationRequest(TypedDict, total=False):
    """The arguments of `adk_request_confirmation`."""

    originalFunctionCall: JsonValue  # FunctionCall
    toolConfirmation: JsonValue  # ToolConfirmation


class ToolConfirmation(TypedDict, total=False):
    """The text and the form of a confirmation."""

    hint: JsonValue
    payload: JsonValue


class InputRequest(TypedDict, total=False):
    """The arguments of `adk_request_input`."""

    interruptId: JsonValue
    message: JsonValue
    payload: JsonValue
    response_schema: JsonValue
    responseSchema: JsonValue


class CredentialRequest(TypedDict, total=False):
    """The arguments of `adk_request_credential`."""

    functionCallId: JsonValue
    authConfig: JsonValue  # AuthConfig


class AuthConfig(TypedDict, total=False):
    """The configuration of a sign-in."""

    authScheme: JsonValue
    rawAuthCredential: JsonValue  # AuthCredential
    exchangedAuthCredential: JsonValue


class AuthCredential(TypedDict, total=False):
    """A credential. Secret members are not declared."""

    authType: JsonValue
    oauth2: JsonValue  # OAuth2


class OAuth2(TypedDict, total=False):
    """An OAuth sign-in."""

    authUri: JsonValue
