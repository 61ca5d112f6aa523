"""dispatch.*: work handed to teams, workers and other agents."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from penstock.events.base import Data


class Team(Data, title="Team dispatched"):
    """A team was given a task."""

    TYPE: ClassVar[str] = "dispatch.team"
    team_name: str = Field(description="The team.")
    task: str = Field(description="What it shall do.")


class Worker(Data, title="Worker dispatched"):
    """An agent inside the run was given a task: an inner run begins."""

    TYPE: ClassVar[str] = "dispatch.worker"
    worker_name: str = Field(description="The agent that works.")
    task: str = Field(description="What it shall do.")
    subrun_id: str = Field(description="The inner run.")
    parent_subrun_id: str | None = Field(default=None, description="The inner run around it.")


class Transfer(Data, title="Control transferred"):
    """One agent hands the conversation over to another."""

    TYPE: ClassVar[str] = "dispatch.transfer"
    to: str = Field(description="Who goes on.")
    from_: str = Field(alias="from", description="Who hands over.")
    reason: str | None = Field(default=None, description="Why.")


class Finished(Data, title="Worker finished"):
    """An inner run ended."""

    TYPE: ClassVar[str] = "dispatch.finished"
    subrun_id: str = Field(description="The inner run.")
    status: str = Field(description="`completed`, `failed` or `cancelled`.")
    result: Any = Field(default=None, description="What it came to.")
    error: str | None = Field(default=None, description="What went wrong.")


EVENTS: tuple[type[Data], ...] = (Team, Worker, Transfer, Finished)
