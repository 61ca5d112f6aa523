"""The model and the agents of the demo ADK server. This module runs in ADK's environment."""

# Penstock's type checks run in an environment without ADK.
# mypy: disable-error-code="import-not-found,misc,no-any-return"

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools import FunctionTool
from google.adk.utils.streaming_utils import StreamingResponseAggregator
from google.genai.types import Candidate, Content, FunctionCall, GenerateContentResponse, Part
from script import Call, Fail, Say, Step, Think, steps
from tools import FREE, delete_file


class ScriptedModel(BaseLlm):
    """Plays the script in place of a language model."""

    model: str = "script"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the model's turn: with `stream` in pieces, as ADK's own Gemini model does,
        otherwise as one response."""
        turn = list(_turn(llm_request))
        if not stream:
            yield LlmResponse.create(_chunk(*map(_part, turn), finish="STOP"))
            return
        aggregator = StreamingResponseAggregator()
        for number, step in enumerate(turn, 1):
            await asyncio.sleep(step.pause_s if isinstance(step, Say) else 0)
            chunk = _chunk(_part(step), finish="STOP" if number == len(turn) else None)
            async for response in aggregator.process_response(chunk):
                yield response
        if last := aggregator.close():
            yield last


def _turn(request: LlmRequest) -> Iterator[Step]:
    message, results = "", []
    for content in request.contents:
        for part in content.parts or []:
            if part.function_response:
                results.append(json.dumps(part.function_response.response, default=str))
            elif part.text and content.role == "user":
                message, results = part.text, []
    return steps(message, results)


def _part(step: Step) -> Part:
    match step:
        case Think(text):
            return Part(text=text, thought=True)
        case Say(text):
            return Part(text=text)
        case Call(name, args):
            return Part(function_call=FunctionCall(name=name, args=args))
        case Fail(error):
            raise RuntimeError(error)


def _chunk(*parts: Part, finish: str | None = None) -> GenerateContentResponse:
    content = Content(role="model", parts=list(parts))
    return GenerateContentResponse(candidates=[Candidate(content=content, finish_reason=finish)])


def scripted_agent(name: str) -> Any:
    return LlmAgent(
        name=name,
        description="A demo agent.",
        model=ScriptedModel(),
        instruction="Answer by the script.",
        tools=[*FREE, FunctionTool(delete_file, require_confirmation=True)],
    )
