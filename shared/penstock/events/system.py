"""system.*: notices that do not end a run."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from penstock.events.base import Data
from penstock.events.note import Note


class Warned(Data, title="Warning"):
    """A warning. The run goes on."""

    TYPE: ClassVar[str] = "system.warning"
    NOTE: ClassVar[Note] = Note(
        when="When a user or an operator should know something. The run goes on.",
        times="any number",
        sequence=15,
        example={"message": "The answer was cut at the model's limit.", "code": "max_tokens"},
    )
    message: str = Field(description="A description for people.")
    code: str = Field(description="A short name of it, for programs.")
    detail: Any = Field(default=None, description="Further details.")


class Erred(Data, title="Error within a run"):
    """An error that did not end the run."""

    TYPE: ClassVar[str] = "system.error"
    NOTE: ClassVar[Note] = Note(
        when="When an error occurred that did not end the run.",
        times="any number",
        sequence=15,
        example={"message": "An upstream frame could not be read.", "code": "bad_frame"},
    )
    message: str = Field(description="A description of the error for people.")
    code: str = Field(description="A short name of it, for programs.")
    detail: Any = Field(default=None, description="Further details.")


class Erased(Data, title="Content erased"):
    """The content of the run was erased. Only this event and later ones are left of the run."""

    TYPE: ClassVar[str] = "system.erased"
    NOTE: ClassVar[Note] = Note(
        when="When somebody has erased the content of a run that has ended. The earlier events of "
        "the run are then deleted.",
        times="at most once",
        sequence=19,
        from_agent=False,
        example={
            "erasure_id": "0198c5a2-0001-7bbb-8ccc-0123456789ab",
            "by": "ada",
            "reason": "request of 3 November",
        },
    )
    erasure_id: str = Field(description="The erasure, which may be of several runs.")
    by: str = Field(description="The user who has asked for it.")
    reason: str | None = Field(default=None, description="The reason that this user gave.")


class Metrics(Data, title="Gauges"):
    """Measurements of a machine or process. The data may contain further ones."""

    TYPE: ClassVar[str] = "system.metrics"
    NOTE: ClassVar[Note] = Note(
        when="When an upstream reports measurements of its machine.",
        times="any number",
        sequence=4,
        example={
            "cpu": 42.0,
            "memory_used": "3.2GB",
            "disk_free": "120GB",
            "containers_running": 5,
        },
    )
    cpu: float | None = Field(default=None, description="The CPU in use, in percent.")
    memory_used: str | None = Field(default=None, description="The memory in use, with its unit.")
    disk_free: str | None = Field(default=None, description="The free disk space, with its unit.")
    containers_running: int | None = Field(
        default=None, description="The number of running containers."
    )
