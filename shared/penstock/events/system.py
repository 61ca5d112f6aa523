"""system.*: notices that do not end a run."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from penstock.events.base import Data


class Warned(Data, title="Warning"):
    """Something to know; the run goes on."""

    TYPE: ClassVar[str] = "system.warning"
    message: str = Field(description="What to know, for people.")
    code: str = Field(description="A short name of it.")
    detail: Any = Field(default=None, description="What else is known.")


class Erred(Data, title="Error within a run"):
    """Something went wrong that did not end the run."""

    TYPE: ClassVar[str] = "system.error"
    message: str = Field(description="What went wrong, for people.")
    code: str = Field(description="A short name of it.")
    detail: Any = Field(default=None, description="What else is known.")


class Metrics(Data, title="Gauges"):
    """Gauges of a machine or process; further ones stand beside the named."""

    TYPE: ClassVar[str] = "system.metrics"
    cpu: float | None = Field(default=None, description="CPU in use, percent.")
    memory_used: str | None = Field(default=None, description="Memory in use, with its unit.")
    disk_free: str | None = Field(default=None, description="Disk space free, with its unit.")
    containers_running: int | None = Field(default=None, description="Containers that run.")


EVENTS: tuple[type[Data], ...] = (Warned, Erred, Metrics)
