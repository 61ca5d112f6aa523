"""workflow.*: the steps of a run, by a workflow of the upstream or of our own."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from penstock.events.base import Data, Model
from penstock.events.note import WORKFLOW_RUN_ID, Note


class ErrorInfo(Model):
    """A failure as an object."""

    code: str = Field(description="A short name of the failure.")
    message: str = Field(description="What went wrong, for people.")
    retryable: bool | None = Field(default=None, description="Whether trying again may help.")
    status_code: int | None = Field(default=None, description="The HTTP status, if there was one.")
    detail: Any = Field(default=None, description="What else is known.")


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
    run_id: str = Field(description="The workflow's run.")
    version: str | None = Field(default=None, description="The workflow's version.")
    input: Any = Field(default=None, description="What it was given.")


class StepStarted(Data, title="Step started"):
    """A step begins."""

    TYPE: ClassVar[str] = "workflow.step_started"
    NOTE: ClassVar[Note] = Note(
        when="When a step begins.",
        times="once per `step_id`",
        sequence=3,
        example={
            "run_id": WORKFLOW_RUN_ID,
            "step_id": "static_analysis",
            "description": "Running static analysis...",
            "kind": "step",
        },
    )
    run_id: str = Field(description="The workflow's run.")
    step_id: str = Field(description="The step, unique in the run.")
    description: str = Field(description="What the step does.")
    kind: str | None = Field(default=None, description="Step, loop, parallel, condition, router.")
    iteration: int | None = Field(default=None, description="Which turn of a loop.")
    branch: str | None = Field(default=None, description="Which branch of a parallel or condition.")
    parent_step_id: str | None = Field(default=None, description="The step around it.")
    child_run_id: str | None = Field(default=None, description="The run that does the step.")


class StepProgress(Data, title="Step progressed"):
    """A step tells how far it is."""

    TYPE: ClassVar[str] = "workflow.step_progress"
    NOTE: ClassVar[Note] = Note(
        when="While a step runs.",
        times="any number per `step_id`",
        sequence=4,
        example={"step_id": "static_analysis", "message": "12 of 40 files"},
    )
    step_id: str = Field(description="The step.")
    message: str | None = Field(default=None, description="How far it is.")


class StepCompleted(Data, title="Step completed"):
    """A step ended well."""

    TYPE: ClassVar[str] = "workflow.step_completed"
    NOTE: ClassVar[Note] = Note(
        when="When a step ended well.",
        times="at most once per `step_id`",
        sequence=5,
        example={"run_id": WORKFLOW_RUN_ID, "step_id": "static_analysis", "output": {"score": 82}},
    )
    run_id: str = Field(description="The workflow's run.")
    step_id: str = Field(description="The step.")
    output: Any = Field(description="What it came to, or null.")
    child_run_id: str | None = Field(default=None, description="The run that did the step.")


class StepFailed(Data, title="Step failed"):
    """A step ended in an error."""

    TYPE: ClassVar[str] = "workflow.step_failed"
    NOTE: ClassVar[Note] = Note(
        when="When a step ended in an error; the workflow may go on.",
        times="at most once per `step_id`",
        sequence=5,
        example={
            "run_id": WORKFLOW_RUN_ID,
            "step_id": "static_analysis",
            "error": {"code": "tool_error", "message": "No such branch.", "retryable": False},
        },
    )
    run_id: str = Field(description="The workflow's run.")
    step_id: str = Field(description="The step.")
    error: ErrorInfo = Field(description="What went wrong.")
    child_run_id: str | None = Field(default=None, description="The run that did the step.")


class Transition(Data, title="Step chosen"):
    """The workflow goes from one step to another."""

    TYPE: ClassVar[str] = "workflow.transition"
    NOTE: ClassVar[Note] = Note(
        when="When a step has chosen which one comes next.",
        times="any number",
        sequence=6,
        example={
            "run_id": WORKFLOW_RUN_ID,
            "from_step": "static_analysis",
            "to_step": "security_scan",
            "reason": "static_analysis_complete",
        },
    )
    run_id: str = Field(description="The workflow's run.")
    from_step: str = Field(description="The step that chose.")
    to_step: str = Field(description="The step that comes.")
    reason: str = Field(description="Why this one.")


class Completed(Data, title="Workflow completed"):
    """A workflow ended well."""

    TYPE: ClassVar[str] = "workflow.completed"
    NOTE: ClassVar[Note] = Note(
        when="When a workflow ended well, before the run's own end.",
        times="at most once per workflow run",
        sequence=9,
        example={
            "run_id": WORKFLOW_RUN_ID,
            "result": {"summary": "Code review finished successfully."},
        },
    )
    run_id: str = Field(description="The workflow's run.")
    result: Any = Field(description="What it came to.")


class Failed(Data, title="Workflow failed"):
    """A workflow ended in an error."""

    TYPE: ClassVar[str] = "workflow.failed"
    NOTE: ClassVar[Note] = Note(
        when="When a workflow ended in an error, before the run's own end.",
        times="at most once per workflow run",
        sequence=9,
        example={
            "run_id": WORKFLOW_RUN_ID,
            "error": {"code": "step_failed", "message": "static_analysis failed."},
        },
    )
    run_id: str = Field(description="The workflow's run.")
    error: ErrorInfo = Field(description="What went wrong.")
