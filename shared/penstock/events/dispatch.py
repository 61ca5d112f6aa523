"""dispatch.*: tasks that are given to teams, workers and other agents."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from penstock.events.base import Data
from penstock.events.note import Note


class Team(Data, title="Team dispatched"):
    """A team was given a task."""

    TYPE: ClassVar[str] = "dispatch.team"
    NOTE: ClassVar[Note] = Note(
        when="When a team is given its task.",
        times="any number",
        sequence=2,
        example={"team_name": "Research", "task": "Find the old report."},
    )
    team_name: str = Field(description="The name of the team.")
    task: str = Field(description="The task of the team.")
    subrun_id: str | None = Field(
        default=None, description="The id of the team's inner run, where the team is one run."
    )
    parent_subrun_id: str | None = Field(
        default=None, description="The id of the inner run that contains this one."
    )


class Worker(Data, title="Worker dispatched"):
    """An agent inside the run was given a task, and an inner run begins."""

    TYPE: ClassVar[str] = "dispatch.worker"
    NOTE: ClassVar[Note] = Note(
        when="When an agent inside the run begins an inner run.",
        times="once per `subrun_id`",
        sequence=3,
        example={"worker_name": "Librarian", "task": "Search the archive.", "subrun_id": "sub-1"},
    )
    worker_name: str = Field(description="The name of the agent that does the task.")
    task: str = Field(description="The task of the agent.")
    subrun_id: str = Field(description="The id of the inner run.")
    parent_subrun_id: str | None = Field(
        default=None, description="The id of the inner run that contains this one."
    )


class Transfer(Data, title="Control transferred"):
    """One agent hands the conversation over to another."""

    TYPE: ClassVar[str] = "dispatch.transfer"
    NOTE: ClassVar[Note] = Note(
        when="When one agent hands the conversation over to another.",
        times="any number",
        sequence=4,
        example={"to": "Librarian", "from": "Assistant", "reason": "It knows the archive."},
    )
    to: str = Field(description="The agent that takes over.")
    from_: str = Field(alias="from", description="The agent that hands over.")
    reason: str | None = Field(default=None, description="The reason for the transfer.")


class Finished(Data, title="Worker finished"):
    """An inner run ended."""

    TYPE: ClassVar[str] = "dispatch.finished"
    NOTE: ClassVar[Note] = Note(
        when="When an inner run ends, or the run no longer waits for its end: after a timeout.",
        times="once per `subrun_id`",
        sequence=8,
        example={"subrun_id": "sub-1", "status": "completed", "result": "Found d-2."},
    )
    subrun_id: str = Field(description="The id of the inner run.")
    status: str = Field(
        description="The end of the inner run: `completed`, `failed` or `cancelled`."
    )
    result: Any = Field(default=None, description="The result of the inner run.")
    error: str | None = Field(default=None, description="What went wrong.")
