"""Reads, from the leader of KV `approvals`, the decisions that the approvals service has recorded.

A continue command only announces that a decision exists. The request to the agent server is made
from the decision's record, which is written before the command. If the command's content differs
from the record, no request is made.
"""

from __future__ import annotations

from penstock.bus import Bus
from penstock.bus.records.approvals import ApprovalRecord, ContinueCommand
from penstock.bus.records.legs import PauseRecord


class NotDecided(Exception):
    """No decision has the same content as a continue command; the text names the difference."""


class Decisions:
    """Reads the records of approvals, and never writes them."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def confirmed(self, command: ContinueCommand) -> ContinueCommand:
        """Return the command that the decision's record contains.

        Raises:
            NotDecided: there is no decision, or `command` differs from the decision.
            ObjectGone: the record's content has expired in the object store.
        """
        record = await self._record(command.approval_id)
        if record is None:
            raise NotDecided(f"there is no approval {command.approval_id}")
        decided = record.continue_command()
        if decided is None:
            raise NotDecided(
                f"approval {command.approval_id} is {record.status}, so nothing is sent"
            )
        ours, theirs = decided.model_dump(), command.model_dump()
        # A later release may have added fields to the command. These fields are not compared.
        if differing := sorted(name for name in ours if ours[name] != theirs[name]):
            raise NotDecided(
                f"approval {command.approval_id} was decided otherwise: "
                f"the command has another {', '.join(differing)}"
            )
        return decided

    async def command(self, approval_id: str) -> ContinueCommand | None:
        """Return the command that a decision's record contains; None if there is no decision."""
        record = await self._record(approval_id)
        return record.continue_command() if record is not None else None

    async def decided_at(self, approval_id: str) -> str | None:
        """Return when the decision was taken, RFC 3339; None if there is no decision."""
        record = await self._record(approval_id)
        return record.decision.at if record is not None and record.decision is not None else None

    async def is_taken(self, run_id: str) -> bool:
        kept = await self._bus.bucket("pauses").load(run_id, PauseRecord)
        record = await self._record(kept.approval_id) if kept is not None else None
        return record is not None and record.continue_command() is not None

    async def _record(self, approval_id: str) -> ApprovalRecord | None:
        record = await self._bus.bucket("approvals").load(approval_id, ApprovalRecord)
        return record if record is not None and record.approval_id == approval_id else None
