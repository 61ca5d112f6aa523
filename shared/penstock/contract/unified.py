"""The 22 unified events of unified-events.md as models: the root, and a payload for each type.

Every field of the contract is always there, with null where it is not known. Each payload also has
`run_id`, because a session has many runs. The module needs pydantic only, so that subscribers can
import it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from pydantic import Field

from penstock.events import Model


class Root(Model):
    """The root fields of every unified event."""

    event_id: str = Field(
        description="A UUID, unique and stable: the same event has the same id when replayed."
    )
    session_id: str = Field(description="The session (conversation, thread).")
    timestamp: str = Field(description="When the connector received the event: RFC 3339, UTC.")
    type: str = Field(description="The event's type, in snake_case.")
    payload: dict[str, Any] = Field(description="The fields of the event's type.")


class Payload(Model):
    """The `payload` of one unified type. `SOURCES` are the canonical types that it is made from,
    `CATEGORY` is the group in the contract, `EXAMPLE` the contract's own example."""

    TYPE: ClassVar[str]
    SOURCES: ClassVar[tuple[str, ...]]
    CATEGORY: ClassVar[str]
    EXAMPLE: ClassVar[Mapping[str, Any]]


class _OfRun(Payload):
    run_id: str = Field(description="The run's id, in addition to the contract's fields.")


class _OfWorkflow(Payload):
    run_id: str = Field(description="The run's id, as in every other payload.")


class SessionMetadata(Model):
    """The owner of a session and its workflow."""

    user_id: str = Field(description="The user who owns the run.")
    workflow: str = Field(description="The workflow, or the agent's id for a run without one.")


class SessionStarted(_OfRun):
    """A run of the session begins."""

    TYPE = "session_started"
    SOURCES = ("lifecycle.started",)
    CATEGORY = "session"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {
        "session_id": "abc",
        "agent": "infrastructure_monitor",
        "metadata": {"user_id": "123", "workflow": "infra_monitoring"},
    }
    session_id: str = Field(description="The session's id.")
    agent: str = Field(description="The agent's id.")
    metadata: SessionMetadata = Field(description="The owner and the workflow.")


class SessionEnded(_OfRun):
    """A run of the session ended."""

    TYPE = "session_ended"
    SOURCES = ("lifecycle.completed", "lifecycle.failed", "lifecycle.cancelled")
    CATEGORY = "session"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {
        "session_id": "abc",
        "reason": "completed",
        "summary": "Infrastructure monitor finished health scan.",
    }
    session_id: str = Field(description="The session's id.")
    reason: str = Field(description="The end of the run: `completed`, `failed` or `cancelled`.")
    summary: str = Field(description="The final text, or a description of the error.")


class AgentMessageStart(_OfRun):
    """A message begins."""

    TYPE = "agent_message_start"
    SOURCES = ("llm.message_started",)
    CATEGORY = "agent_messages"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {"agent": "code_reviewer", "message_id": "m1"}
    agent: str = Field(description="The agent that speaks.")
    message_id: str = Field(description="The message's id.")


class AgentMessageDelta(_OfRun):
    """A piece of a message's text."""

    TYPE = "agent_message_delta"
    SOURCES = ("llm.stream",)
    CATEGORY = "agent_messages"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {"message_id": "m1", "delta": "Analyzing code..."}
    message_id: str = Field(description="The message that the piece belongs to.")
    delta: str = Field(description="The next piece of the text.")


class AgentMessageEnd(_OfRun):
    """A message is whole."""

    TYPE = "agent_message_end"
    SOURCES = ("llm.message_completed",)
    CATEGORY = "agent_messages"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {"message_id": "m1", "content": "Code review completed."}
    message_id: str = Field(description="The message's id.")
    content: str = Field(description="The whole text.")


class ToolCallStarted(_OfRun):
    """The model asked for a tool."""

    TYPE = "tool_call_started"
    SOURCES = ("llm.tool_call",)
    CATEGORY = "tools"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {
        "tool_call_id": "tc_001",
        "tool_name": "docker_list_containers",
        "agent": "infrastructure_monitor",
        "args": {"status": "running"},
    }
    tool_call_id: str = Field(description="The tool call's id.")
    tool_name: str = Field(description="The tool's name.")
    agent: str = Field(description="The agent that asked for the call.")
    args: dict[str, Any] = Field(description="The tool's arguments.")


class ToolCallDelta(_OfRun):
    """A tool tells how far it is."""

    TYPE = "tool_call_delta"
    SOURCES = ("llm.tool_progress",)
    CATEGORY = "tools"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {"tool_call_id": "tc_001", "delta": "checking Docker..."}
    tool_call_id: str = Field(description="The tool call's id.")
    delta: str = Field(description="The next piece of the tool's output.")


class ToolCallResult(_OfRun):
    """What a call came to."""

    TYPE = "tool_call_result"
    SOURCES = ("llm.tool_result",)
    CATEGORY = "tools"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {
        "tool_call_id": "tc_001",
        "tool_name": "docker_list_containers",
        "result": [{"name": "supabase-db", "status": "running"}],
        "is_error": False,
    }
    tool_call_id: str = Field(description="The tool call's id.")
    tool_name: str = Field(description="The tool's name.")
    result: Any = Field(description="The result that the tool returned, as JSON.")
    is_error: bool = Field(
        description="Whether the call failed, was rejected or expired; an additional field."
    )


class WorkflowStarted(_OfWorkflow):
    """A workflow begins."""

    TYPE = "workflow_started"
    SOURCES = ("workflow.started",)
    CATEGORY = "workflows"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {"workflow": "review_workflow"}
    workflow: str = Field(description="The workflow's name.")


class WorkflowStepStarted(_OfWorkflow):
    """A step begins."""

    TYPE = "workflow_step_started"
    SOURCES = ("workflow.step_started",)
    CATEGORY = "workflows"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {
        "step_id": "step_static_analysis",
        "description": "Running static analysis...",
    }
    step_id: str = Field(description="The step's id.")
    description: str = Field(description="A description of the step.")


class WorkflowStepCompleted(_OfWorkflow):
    """A step ended well."""

    TYPE = "workflow_step_completed"
    SOURCES = ("workflow.step_completed",)
    CATEGORY = "workflows"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {
        "step_id": "step_static_analysis",
        "output": {"score": 82},
    }
    step_id: str = Field(description="The step's id.")
    output: Any = Field(description="The output of the step, or null.")


class WorkflowTransition(_OfWorkflow):
    """The workflow goes from one step to another."""

    TYPE = "workflow_transition"
    SOURCES = ("workflow.transition",)
    CATEGORY = "workflows"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {
        "from_step": "static_analysis",
        "to_step": "security_scan",
        "reason": "static_analysis_complete",
    }
    from_step: str = Field(description="The step that ended.")
    to_step: str = Field(description="The step that follows.")
    reason: str = Field(description="The reason for the choice.")


class WorkflowResult(Model):
    """What a workflow came to."""

    summary: str = Field(description="A summary for people.")
    value: Any = Field(default=None, description="The result as JSON, where it has no summary.")


class WorkflowCompleted(_OfWorkflow):
    """A workflow ended well."""

    TYPE = "workflow_completed"
    SOURCES = ("workflow.completed",)
    CATEGORY = "workflows"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {
        "result": {"summary": "Code review finished successfully."}
    }
    result: WorkflowResult = Field(description="The result of the workflow.")


class AgentThought(_OfRun):
    """A piece of a model's thoughts."""

    TYPE = "agent_thought"
    SOURCES = ("llm.reasoning",)
    CATEGORY = "reasoning"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {
        "agent": "code_reviewer",
        "content": "Evaluating code smell patterns...",
        "debug": True,
    }
    agent: str = Field(description="The agent that reasons.")
    content: str = Field(description="The next piece of the text.")
    debug: bool = Field(description="True where the reasoning is not meant for users.")


class RunError(_OfRun):
    """Something failed; whether the run ended is said by `session_ended`."""

    TYPE = "run_error"
    SOURCES = ("lifecycle.failed", "system.error", "system.warning", "workflow.step_failed")
    CATEGORY = "errors"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {
        "error_type": "ToolError",
        "message": "Docker daemon unreachable.",
        "agent": "infrastructure_monitor",
        "step": "docker_check",
    }
    error_type: str = Field(description="The class or code of the error.")
    message: str = Field(description="A description of the error for people.")
    agent: str = Field(description="The agent in which the error occurred.")
    step: str | None = Field(description="The step in which the error occurred, or null.")


class RunRetry(_OfRun):
    """Something failed and is tried again."""

    TYPE = "run_retry"
    SOURCES = ("lifecycle.retrying",)
    CATEGORY = "errors"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {
        "retry_count": 1,
        "max_retries": 3,
        "reason": "temporary network issue",
    }
    retry_count: int = Field(description="The number of the retry that begins; the first is 1.")
    max_retries: int = Field(description="The number of retries that are allowed.")
    reason: str = Field(description="What failed.")


class RunInterrupted(_OfRun):
    """The run was stopped (`user_stop`), or waits for a person (`approval_required`)."""

    TYPE = "run_interrupted"
    SOURCES = ("lifecycle.cancelled", "lifecycle.paused")
    CATEGORY = "errors"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {"reason": "user_stop", "step": "security_scan"}
    reason: str = Field(description="The reason for the interruption.")
    step: str | None = Field(description="The step that was running, or null.")


class RetrievalStarted(_OfRun):
    """A search of a knowledge base begins."""

    TYPE = "retrieval_started"
    SOURCES = ("retrieval.started",)
    CATEGORY = "rag"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {
        "query": "how to fix postgres connection error",
        "agent": "knowledge_base",
    }
    query: str = Field(description="The query of the search.")
    agent: str = Field(description="The agent that searches.")


class RetrievedDocument(Model):
    """One document that was found."""

    id: str = Field(description="The document's id in its store.")
    score: float | None = Field(
        description="How well the document matches, or null; a higher score is better."
    )
    content: str = Field(description="The text that was found.")


class RetrievalResult(_OfRun):
    """A search found documents."""

    TYPE = "retrieval_result"
    SOURCES = ("retrieval.result",)
    CATEGORY = "rag"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {
        "documents": [
            {
                "id": "doc1",
                "score": 0.92,
                "content": "Increase max_connections in Postgres...",
            }
        ]
    }
    documents: list[RetrievedDocument] = Field(
        description="The documents that were found, the best match first."
    )


class AutomationTriggered(_OfRun):
    """A rule matched an event."""

    TYPE = "automation_triggered"
    SOURCES = ("automation.triggered",)
    CATEGORY = "n8n"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {
        "workflow": "SendSlackAlert",
        "trigger": "disk_space_low",
    }
    workflow: str = Field(description="The rule's name.")
    trigger: str = Field(description="The type of the event that the rule matched.")


class AutomationCompleted(_OfRun):
    """A delivery ended. For a failed one `result` begins with `failed: `."""

    TYPE = "automation_completed"
    SOURCES = ("automation.completed", "automation.failed")
    CATEGORY = "n8n"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {
        "workflow": "SendSlackAlert",
        "result": "Notification sent.",
    }
    workflow: str = Field(description="The rule's name.")
    result: str = Field(description="A description of the outcome for people.")


class MetricsUpdate(_OfRun):
    """Measurements of a machine or process; null for those that are not known."""

    TYPE = "metrics_update"
    SOURCES = ("system.metrics",)
    CATEGORY = "infrastructure"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {
        "cpu": 42,
        "memory_used": "3.2GB",
        "disk_free": "120GB",
        "containers_running": 5,
    }
    cpu: float | None = Field(description="The CPU in use, in percent.")
    memory_used: str | None = Field(description="The memory in use, with its unit.")
    disk_free: str | None = Field(description="The free disk space, with its unit.")
    containers_running: int | None = Field(description="The number of running containers.")


@dataclass(frozen=True, slots=True)
class UnifiedType:
    """One row: `name` is the type, `category` the document's group, `example` its payload."""

    name: str
    category: str
    model: type[Payload]
    description: str
    example: dict[str, Any]


RUN_ID: Final = "0198c5a0-7b1e-7c3a-9d52-4f6e8a1b2c3d"
UNIFIED: Final[Mapping[str, UnifiedType]] = {
    model.TYPE: UnifiedType(
        model.TYPE,
        model.CATEGORY,
        model,
        inspect.cleandoc(model.__doc__ or ""),
        {**model.EXAMPLE, "run_id": RUN_ID},
    )
    for model in list(vars().values())
    if inspect.isclass(model) and issubclass(model, Payload) and "TYPE" in vars(model)
}
