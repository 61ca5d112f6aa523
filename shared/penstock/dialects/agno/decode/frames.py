"""Declares the members of Agno's frames that the decoder reads (agno 2.3.18 and 3.1.10) (decision
0033).

A member may be missing or have any type. The classes only declare the keys, so that mypy and
tests/shared/dialects/test_declared_keys.py find a misspelt key.
"""

from __future__ import annotations

from typing import TypedDict

from penstock.dialects.base import JsonValue


class AgnoFrame(TypedDict, total=False):
    """The data of a frame. Each event has some of these members."""

    event: JsonValue
    # the run, and the runs that contain it
    run_id: JsonValue
    parent_run_id: JsonValue
    workflow_run_id: JsonValue
    session_id: JsonValue
    agent_id: JsonValue
    agent_name: JsonValue
    team_id: JsonValue
    team_name: JsonValue
    workflow_id: JsonValue
    workflow_name: JsonValue
    nested_depth: JsonValue  # of a workflow inside a workflow
    workflow_agent: JsonValue  # true for a workflow's own agent
    # RunStarted, ModelRequestCompleted (which also has the counts of ModelMetrics)
    model: JsonValue
    model_provider: JsonValue
    time_to_first_token: JsonValue  # seconds
    # RunContent, RunCompleted, ReasoningStep
    content: JsonValue
    content_type: JsonValue
    reasoning_content: JsonValue
    title: JsonValue
    reasoning: JsonValue
    result: JsonValue
    citations: JsonValue
    metrics: JsonValue  # RunMetrics
    session_state: JsonValue
    # tools and pauses
    tool: JsonValue  # Tool
    tools: JsonValue  # list of Tool
    requirements: JsonValue  # list of Requirement
    step_requirements: JsonValue  # list of StepRequirement
    status: JsonValue
    member_responses: JsonValue  # inner runs that the last frame repeats
    step_executor_runs: JsonValue
    # errors
    error: JsonValue
    error_type: JsonValue
    error_id: JsonValue
    additional_data: JsonValue
    # steps of workflows
    step_id: JsonValue
    step_name: JsonValue
    parent_step_id: JsonValue
    iteration: JsonValue
    condition_result: JsonValue
    selected_steps: JsonValue
    step_response: JsonValue  # StepResult
    step_results: JsonValue  # list of StepResult
    all_results: JsonValue
    iteration_results: JsonValue
    # custom events
    name: JsonValue
    type: JsonValue
    value: JsonValue
    payload: JsonValue
    data: JsonValue


class Tool(TypedDict, total=False):
    """A tool execution."""

    tool_call_id: JsonValue
    tool_name: JsonValue
    tool_args: JsonValue
    tool_call_error: JsonValue
    result: JsonValue
    metrics: JsonValue  # {duration}, in seconds
    requires_confirmation: JsonValue
    confirmed: JsonValue
    requires_user_input: JsonValue
    user_input_schema: JsonValue  # list of InputField
    user_feedback_schema: JsonValue  # list of FeedbackQuestion
    answered: JsonValue
    external_execution_required: JsonValue


class Requirement(TypedDict, total=False):
    """A question about a tool of the run or of a member."""

    confirmation: JsonValue
    tool_execution: JsonValue  # Tool
    member_run_id: JsonValue
    member_agent_name: JsonValue


class StepRequirement(TypedDict, total=False):
    """A question of a workflow: a gate, or the tools of a step's agent."""

    step_id: JsonValue
    step_name: JsonValue
    requires_executor_input: JsonValue
    executor_requirements: JsonValue  # list of Requirement
    executor_run_id: JsonValue
    executor_name: JsonValue
    requires_route_selection: JsonValue
    selected_choices: JsonValue
    available_choices: JsonValue
    requires_user_input: JsonValue
    user_input: JsonValue
    user_input_schema: JsonValue  # list of InputField
    user_input_message: JsonValue
    requires_output_review: JsonValue
    output_review_message: JsonValue
    requires_confirmation: JsonValue
    confirmation_message: JsonValue
    confirmed: JsonValue


class InputField(TypedDict, total=False):
    """A field that a person fills in."""

    name: JsonValue
    field_type: JsonValue
    description: JsonValue
    value: JsonValue
    allowed_values: JsonValue
    required: JsonValue


class FeedbackQuestion(TypedDict, total=False):
    """A question with options."""

    question: JsonValue
    header: JsonValue
    options: JsonValue  # list of {label}
    multi_select: JsonValue


class StepResult(TypedDict, total=False):
    """The result of a step."""

    step_name: JsonValue
    content: JsonValue
    success: JsonValue
    error: JsonValue
    steps: JsonValue  # list of StepResult


class FeedbackOption(TypedDict, total=False):
    """An option of a question."""

    label: JsonValue


class RunMetrics(TypedDict, total=False):
    """The metrics of a run, which also have the counts of ModelMetrics."""

    details: JsonValue  # from 3.x on: a list of ModelMetrics by the kind of the model


class ModelMetrics(TypedDict, total=False):
    """What one model used in a run. `TOKENS` of the vocabulary has the counts."""

    id: JsonValue
    provider: JsonValue


class ToolMetrics(TypedDict, total=False):
    """The metrics of a tool execution."""

    duration: JsonValue  # seconds


class MemberCall(TypedDict, total=False):
    """The arguments of a team's call to a member."""

    member_id: JsonValue
    task: JsonValue
