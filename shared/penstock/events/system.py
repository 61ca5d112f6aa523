"""system.*: notices that do not end a run."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from penstock.events.base import Data
from penstock.events.note import Note


class Warned(Data, title="Warning"):
    """Something to know; the run goes on."""

    TYPE: ClassVar[str] = "system.warning"
    NOTE: ClassVar[Note] = Note(
        when="When something should be known; the run goes on.",
        times="any number",
        sequence=15,
        example={"message": "The answer was cut at the model's limit.", "code": "max_tokens"},
    )
    message: str = Field(description="What to know, for people.")
    code: str = Field(description="A short name of it.")
    detail: Any = Field(default=None, description="What else is known.")


class Erred(Data, title="Error within a run"):
    """Something went wrong that did not end the run."""

    TYPE: ClassVar[str] = "system.error"
    NOTE: ClassVar[Note] = Note(
        when="When something went wrong that did not end the run.",
        times="any number",
        sequence=15,
        example={"message": "An upstream frame could not be read.", "code": "bad_frame"},
    )
    message: str = Field(description="What went wrong, for people.")
    code: str = Field(description="A short name of it.")
    detail: Any = Field(default=None, description="What else is known.")


class Metrics(Data, title="Gauges"):
    """Gauges of a machine or process; further ones stand beside the named."""

    TYPE: ClassVar[str] = "system.metrics"
    NOTE: ClassVar[Note] = Note(
        when="When an upstream tells gauges of its machine.",
        times="any number",
        sequence=4,
        example={
            "cpu": 42.0,
            "memory_used": "3.2GB",
            "disk_free": "120GB",
            "containers_running": 5,
        },
    )
    cpu: float | None = Field(default=None, description="CPU in use, percent.")
    memory_used: str | None = Field(default=None, description="Memory in use, with its unit.")
    disk_free: str | None = Field(default=None, description="Disk space free, with its unit.")
    containers_running: int | None = Field(default=None, description="Containers that run.")
