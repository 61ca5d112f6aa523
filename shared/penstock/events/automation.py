"""automation.*: rules that matched, and their deliveries, also after a run's end."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from penstock.events.base import Data
from penstock.events.note import DELIVERY_ID, Note
from penstock.events.workflow import ErrorInfo


class _Delivery(Data):
    depth: int | None = Field(
        default=None,
        description="How many rules led to this delivery: rules that started the run, and rules "
        "whose events this delivery is about.",
    )


class Triggered(_Delivery, title="Automation triggered"):
    """A rule matched an event."""

    TYPE: ClassVar[str] = "automation.triggered"
    NOTE: ClassVar[Note] = Note(
        when="When a rule matched an event, also after the run's end.",
        times="once per `delivery_id`",
        sequence=17,
        from_agent=False,
        example={
            "automation": "notify-ops",
            "trigger": "lifecycle.completed",
            "delivery_id": DELIVERY_ID,
            "workflow": "SendSlackAlert",
        },
    )
    automation: str = Field(description="The rule's id.")
    trigger: str = Field(
        description="The type of the event that the rule matched. On a run that the rule has "
        "started, also `schedule.fired` or `hook.received`."
    )
    delivery_id: str = Field(description="The delivery's id, the same for all attempts.")
    workflow: str = Field(description="The rule's name.")


class _Outcome(_Delivery):
    automation: str = Field(description="The rule's id.")
    workflow: str = Field(description="The rule's name.")
    delivery_id: str = Field(description="The delivery's id.")
    status_code: int | None = Field(
        default=None, description="The HTTP status of the receiver's last answer."
    )
    result: str = Field(description="A description of the outcome for people.")
    attempts: int = Field(description="The number of attempts.")
    duration_s: float = Field(description="Seconds between the first attempt and the end.")
    started_run_id: str | None = Field(
        default=None, description="The run that the rule has started, if it starts runs."
    )
    error: ErrorInfo | None = Field(default=None, description="The error of the last attempt.")


class Completed(_Outcome, title="Automation completed"):
    """A delivery succeeded."""

    TYPE: ClassVar[str] = "automation.completed"
    NOTE: ClassVar[Note] = Note(
        when="When the receiver accepted the delivery, also after the run's end.",
        times="at most once per `delivery_id`",
        sequence=18,
        from_agent=False,
        example={
            "automation": "notify-ops",
            "workflow": "SendSlackAlert",
            "delivery_id": DELIVERY_ID,
            "status_code": 200,
            "result": "delivered",
            "attempts": 1,
            "duration_s": 0.21,
        },
    )


class Failed(_Outcome, title="Automation failed"):
    """A delivery was given up."""

    TYPE: ClassVar[str] = "automation.failed"
    NOTE: ClassVar[Note] = Note(
        when="When a delivery was given up, also after the run's end.",
        times="at most once per `delivery_id`",
        sequence=18,
        from_agent=False,
        example={
            "automation": "notify-ops",
            "workflow": "SendSlackAlert",
            "delivery_id": DELIVERY_ID,
            "status_code": 503,
            "result": "given up",
            "attempts": 8,
            "duration_s": 3604.5,
            "error": {"code": "http_503", "message": "Service Unavailable", "retryable": True},
        },
    )
