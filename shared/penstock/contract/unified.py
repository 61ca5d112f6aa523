"""The 22 unified events as models (contract: unified-events.md): root and exact payload fields.

Every field of the document is always there; null where nobody knows it. Each payload carries
`run_id` beside them, since a session has many runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from pydantic import Field

from penstock.events import Model


class Root(Model):
    """What every unified event is: root fields, and a payload by its type."""

    event_id: str = Field(
        description="A UUID, unique and stable: the same event has the same id when replayed."
    )
    session_id: str = Field(description="The conversation (thread).")
    timestamp: str = Field(description="When it was received: RFC 3339, UTC.")
    type: str = Field(description="The event's type, in snake_case.")
    payload: dict[str, Any] = Field(description="The fields of the event's type.")


class Payload(Model):
    """The `payload` of one unified type.

    `SOURCES` are the canonical types that it is made from, `CATEGORY` is the group in the contract,
    `EXAMPLE` the contract's own example.
    """

    TYPE: ClassVar[str]
    SOURCES: ClassVar[tuple[str, ...]]
    CATEGORY: ClassVar[str]
    EXAMPLE: ClassVar[Mapping[str, Any]]


class _OfRun(Payload):
    run_id: str = Field(description="The run's id, beyond the document's fields.")


class _OfWorkflow(Payload):
    run_id: str = Field(description="The run's id, as in every other payload.")


class SessionMetadata(Model):
    """Whose session it is, and what it runs."""

    user_id: str = Field(description="Whose run it is.")
    workflow: str = Field(description="The workflow; of a run without one the agent's id.")


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
    session_id: str = Field(description="The session.")
    agent: str = Field(description="The agent's id.")
    metadata: SessionMetadata = Field(description="Whose run it is.")


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
    session_id: str = Field(description="The session.")
    reason: str = Field(description="`completed`, `failed` or `cancelled`.")
    summary: str = Field(description="The final text, or what went wrong.")


class AgentMessageStart(_OfRun):
    """A message begins."""

    TYPE = "agent_message_start"
    SOURCES = ("llm.message_started",)
    CATEGORY = "agent_messages"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {"agent": "code_reviewer", "message_id": "m1"}
    agent: str = Field(description="Who speaks.")
    message_id: str = Field(description="The message.")


class AgentMessageDelta(_OfRun):
    """A piece of a message's text."""

    TYPE = "agent_message_delta"
    SOURCES = ("llm.stream",)
    CATEGORY = "agent_messages"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {"message_id": "m1", "delta": "Analyzing code..."}
    message_id: str = Field(description="The message that it continues.")
    delta: str = Field(description="The next piece.")


class AgentMessageEnd(_OfRun):
    """A message is whole."""

    TYPE = "agent_message_end"
    SOURCES = ("llm.message_completed",)
    CATEGORY = "agent_messages"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {"message_id": "m1", "content": "Code review completed."}
    message_id: str = Field(description="The message.")
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
    tool_call_id: str = Field(description="The call.")
    tool_name: str = Field(description="The tool.")
    agent: str = Field(description="Who asked.")
    args: dict[str, Any] = Field(description="The tool's arguments.")


class ToolCallDelta(_OfRun):
    """A tool tells how far it is."""

    TYPE = "tool_call_delta"
    SOURCES = ("llm.tool_progress",)
    CATEGORY = "tools"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {"tool_call_id": "tc_001", "delta": "checking Docker..."}
    tool_call_id: str = Field(description="The call.")
    delta: str = Field(description="A piece of output.")


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
    tool_call_id: str = Field(description="The call.")
    tool_name: str = Field(description="The tool.")
    result: Any = Field(description="What it returned, as JSON.")
    is_error: bool = Field(
        description="Whether it failed, was rejected or expired; beyond the document's fields."
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
    step_id: str = Field(description="The step.")
    description: str = Field(description="What it does.")


class WorkflowStepCompleted(_OfWorkflow):
    """A step ended well."""

    TYPE = "workflow_step_completed"
    SOURCES = ("workflow.step_completed",)
    CATEGORY = "workflows"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {
        "step_id": "step_static_analysis",
        "output": {"score": 82},
    }
    step_id: str = Field(description="The step.")
    output: Any = Field(description="What it came to, or null.")


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
    from_step: str = Field(description="The step that chose.")
    to_step: str = Field(description="The step that comes.")
    reason: str = Field(description="Why this one.")


class WorkflowResult(Model):
    """What a workflow came to."""

    summary: str = Field(description="For people.")
    value: Any = Field(default=None, description="What has no summary of its own, as JSON.")


class WorkflowCompleted(_OfWorkflow):
    """A workflow ended well."""

    TYPE = "workflow_completed"
    SOURCES = ("workflow.completed",)
    CATEGORY = "workflows"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {
        "result": {"summary": "Code review finished successfully."}
    }
    result: WorkflowResult = Field(description="What it came to.")


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
    agent: str = Field(description="Who thinks.")
    content: str = Field(description="The next piece.")
    debug: bool = Field(description="True when not meant for users.")


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
    message: str = Field(description="What went wrong, for people.")
    agent: str = Field(description="Where it went wrong.")
    step: str | None = Field(description="In which step, or null.")


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
    retry_count: int = Field(description="Which retry begins: 1 is the first.")
    max_retries: int = Field(description="How many there may be.")
    reason: str = Field(description="What failed.")


class RunInterrupted(_OfRun):
    """The run was stopped (`user_stop`), or waits for a person (`approval_required`)."""

    TYPE = "run_interrupted"
    SOURCES = ("lifecycle.cancelled", "lifecycle.paused")
    CATEGORY = "errors"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {"reason": "user_stop", "step": "security_scan"}
    reason: str = Field(description="Why it was interrupted.")
    step: str | None = Field(description="The step under way, or null.")


class RetrievalStarted(_OfRun):
    """A search of a knowledge base begins."""

    TYPE = "retrieval_started"
    SOURCES = ("retrieval.started",)
    CATEGORY = "rag"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {
        "query": "how to fix postgres connection error",
        "agent": "knowledge_base",
    }
    query: str = Field(description="What is looked for.")
    agent: str = Field(description="Who looks.")


class RetrievedDocument(Model):
    """One document that was found."""

    id: str = Field(description="The document's id in its store.")
    score: float | None = Field(description="How well it fits, or null; higher is better.")
    content: str = Field(description="The text that was found.")


class RetrievalResult(_OfRun):
    """What a search found."""

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
    documents: list[RetrievedDocument] = Field(description="What was found, best first.")


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
    trigger: str = Field(description="The event that it matched.")


class AutomationCompleted(_OfRun):
    """A delivery ended; one that failed says so in `result` (`failed: …`)."""

    TYPE = "automation_completed"
    SOURCES = ("automation.completed", "automation.failed")
    CATEGORY = "n8n"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {
        "workflow": "SendSlackAlert",
        "result": "Notification sent.",
    }
    workflow: str = Field(description="The rule's name.")
    result: str = Field(description="What came of it, for people.")


class MetricsUpdate(_OfRun):
    """Gauges of a machine or process; null for what is not told."""

    TYPE = "metrics_update"
    SOURCES = ("system.metrics",)
    CATEGORY = "infrastructure"
    EXAMPLE: ClassVar[Mapping[str, Any]] = {
        "cpu": 42,
        "memory_used": "3.2GB",
        "disk_free": "120GB",
        "containers_running": 5,
    }
    cpu: float | None = Field(description="CPU in use, percent.")
    memory_used: str | None = Field(description="Memory in use, with its unit.")
    disk_free: str | None = Field(description="Disk space free, with its unit.")
    containers_running: int | None = Field(description="Containers that run.")


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
