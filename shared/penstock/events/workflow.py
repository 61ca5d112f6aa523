"""workflow.*: the steps of a workflow that the agent server or Penstock carries out."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from penstock.events.base import Data, Model
from penstock.events.note import WORKFLOW_RUN_ID, Note


class ErrorInfo(Model):
    """An error as an object."""

    code: str = Field(description="A short name of the error.")
    message: str = Field(description="A description of the error for people.")
    retryable: bool | None = Field(default=None, description="Whether another attempt may succeed.")
    status_code: int | None = Field(default=None, description="The HTTP status, if there was one.")
    detail: Any = Field(default=None, description="Further details of the error.")


class Started(Data, title="Workflow started"):
    """A workflow begins."""

    TYPE: ClassVar[str] = "workflow.started"
    NOTE: ClassVar[Note] = Note(
        when="When a workflow begins.",
        times="once per workflow run",
        sequence=2,
        example={"workflow": "review_workflow", "run_id": WORKFLOW_RUN_ID, "version": "3"},
    )
    workflow: str = Field(description="The workflow's name.")
    run_id: str = Field(description="The id of the workflow's run.")
    version: str | None = Field(default=None, description="The workflow's version.")
    input: Any = Field(default=None, description="The input of the workflow.")


class StepStarted(Data, title="Step started"):
    """A step begins."""

    TYPE: ClassVar[str] = "workflow.step_started"
    NOTE: ClassVar[Note] = Note(
        when="When a step begins.",
        times="once per `step_id`, and again for each further attempt",
        sequence=3,
        example={
            "run_id": WORKFLOW_RUN_ID,
            "step_id": "step_static_analysis",
            "description": "Running static analysis...",
            "kind": "step",
        },
    )
    run_id: str = Field(description="The id of the workflow's run.")
    step_id: str = Field(description="The step's id, unique in the run.")
    description: str = Field(description="A description of the step.")
    kind: str | None = Field(
        default=None,
        description="The kind of the step: step, loop, parallel, condition or router; of "
        "Penstock's workflows also workflow, approve, call, listen, wait and set.",
    )
    iteration: int | None = Field(default=None, description="The number of the loop's iteration.")
    branch: str | None = Field(
        default=None, description="The branch of a parallel step or of a condition."
    )
    parent_step_id: str | None = Field(
        default=None, description="The id of the step that contains this one."
    )
    child_run_id: str | None = Field(
        default=None, description="The id of the run that does the step."
    )
    attempt: int | None = Field(
        default=None, description="The number of the attempt, from the second one on."
    )
    role: str | None = Field(
        default=None,
        description="The `agent_type` of the run that does the step, as `include=children` shows "
        "it: `global_supervisor`, `team_supervisor` or `worker`.",
    )
    team_name: str | None = Field(default=None, description="The team that does the step.")


class StepProgress(Data, title="Step progressed"):
    """A step reports progress."""

    TYPE: ClassVar[str] = "workflow.step_progress"
    NOTE: ClassVar[Note] = Note(
        when="While a step runs.",
        times="any number per `step_id`",
        sequence=4,
        example={"step_id": "step_static_analysis", "message": "12 of 40 files"},
    )
    step_id: str = Field(description="The step's id.")
    message: str | None = Field(default=None, description="A description of the progress.")


class TakenFrom(Model):
    """Where a fork's output of a step comes from."""

    run_id: str = Field(description="The workflow's run in which the step was done.")
    child_run_id: str | None = Field(
        default=None, description="The id of the run that did the step, if there was one."
    )


class StepCompleted(Data, title="Step completed"):
    """A step ended successfully."""

    TYPE: ClassVar[str] = "workflow.step_completed"
    NOTE: ClassVar[Note] = Note(
        when="When a step ended successfully.",
        times="at most once per `step_id`",
        sequence=5,
        example={
            "run_id": WORKFLOW_RUN_ID,
            "step_id": "step_static_analysis",
            "output": {"score": 82},
        },
    )
    run_id: str = Field(description="The id of the workflow's run.")
    step_id: str = Field(description="The step's id.")
    output: Any = Field(description="The output of the step, or null.")
    child_run_id: str | None = Field(
        default=None, description="The id of the run that did the step."
    )
    taken_from: TakenFrom | None = Field(
        default=None,
        description="Set if the run is a fork that has not done the step again: where the output "
        "comes from.",
    )


class StepFailed(Data, title="Step failed"):
    """A step ended with an error."""

    TYPE: ClassVar[str] = "workflow.step_failed"
    NOTE: ClassVar[Note] = Note(
        when="When a step ended with an error. The workflow may go on.",
        times="at most once per `step_id`",
        sequence=5,
        example={
            "run_id": WORKFLOW_RUN_ID,
            "step_id": "step_static_analysis",
            "error": {"code": "tool_error", "message": "No such branch.", "retryable": False},
        },
    )
    run_id: str = Field(description="The id of the workflow's run.")
    step_id: str = Field(description="The step's id.")
    error: ErrorInfo = Field(description="The error of the step.")
    child_run_id: str | None = Field(
        default=None, description="The id of the run that did the step."
    )


class Transition(Data, title="Step chosen"):
    """The workflow chose the next step."""

    TYPE: ClassVar[str] = "workflow.transition"
    NOTE: ClassVar[Note] = Note(
        when="When a step chose the next step.",
        times="any number",
        sequence=6,
        example={
            "run_id": WORKFLOW_RUN_ID,
            "from_step": "static_analysis",
            "to_step": "security_scan",
            "reason": "static_analysis_complete",
        },
    )
    run_id: str = Field(description="The id of the workflow's run.")
    from_step: str = Field(description="The id of the step that ended.")
    to_step: str = Field(description="The id of the step that follows.")
    reason: str = Field(description="The reason for the choice.")


class Completed(Data, title="Workflow completed"):
    """A workflow ended successfully."""

    TYPE: ClassVar[str] = "workflow.completed"
    NOTE: ClassVar[Note] = Note(
        when="When a workflow ended successfully, before the end of the run.",
        times="at most once per workflow run",
        sequence=9,
        example={
            "run_id": WORKFLOW_RUN_ID,
            "result": {"summary": "Code review finished successfully."},
        },
    )
    run_id: str = Field(description="The id of the workflow's run.")
    result: Any = Field(description="The result of the workflow.")


class Failed(Data, title="Workflow failed"):
    """A workflow ended with an error."""

    TYPE: ClassVar[str] = "workflow.failed"
    NOTE: ClassVar[Note] = Note(
        when="When a workflow ended with an error, before the end of the run.",
        times="at most once per workflow run",
        sequence=9,
        example={
            "run_id": WORKFLOW_RUN_ID,
            "error": {"code": "upstream_error", "message": "the step static_analysis failed: …"},
        },
    )
    run_id: str = Field(description="The id of the workflow's run.")
    error: ErrorInfo = Field(description="The error of the workflow.")
