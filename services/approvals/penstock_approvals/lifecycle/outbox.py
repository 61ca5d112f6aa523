"""Sends decisions, and announces the changes of waiting approvals.

If the process that took a decision ends before it has sent the decision, another process sends it.
A change that people make without a decision, such as a question, is announced in the same way.

An entry `outbox.<approval>` is written before the decision is taken and deleted after the decision
was sent. The entry's value is the server's time at which the entry was written, in Unix seconds.
"""

from __future__ import annotations

import logging
from enum import Enum, auto

from penstock import telemetry
from penstock.bus import Bus, BusError, Entry, Message, ObjectGone
from penstock.bus.records.approvals import ApprovalRecord
from penstock.bus.records.runs import CancelCommand
from penstock.bus.subjects import command
from penstock.bus.write import objects
from penstock.tracing import spans
from penstock_approvals.audit.trail import ApprovalAudit
from penstock_approvals.budgets.actions import AROUND
from penstock_approvals.budgets.raises import BudgetRaises
from penstock_approvals.lifecycle.deadlines import Deadlines
from penstock_approvals.outcomes.automatic import (
    CANCEL_REASON,
    POLICY,
    Consequence,
    deadline_consequence,
)
from penstock_approvals.runs.announcements import Announcements
from penstock_approvals.runs.events import WORKFLOWS, end_events, request_events, span_of
from penstock_approvals.store.records import BUCKET, ApprovalRecords, UnreadableRecord

log = logging.getLogger(__name__)

ABANDONED_S = 30.0  # Seconds after which an entry is deleted if no decision was taken.
ENDED = frozenset({"decided", "expired"})  # The statuses of approvals whose outcome must be sent.
_PREFIX = "outbox."


class Phase(Enum):
    """What to do next with an entry of the outbox."""

    TO_SEND = auto()  # The decision is taken: announce it, and send the continue command.
    UNDECIDED = auto()  # The decision may still be taken: announce other changes, and wait.
    ABANDONED = auto()  # The decision was not taken within ABANDONED_S: delete the entry.


def phase_of(record: ApprovalRecord | None, written_s: float, now_s: float) -> Phase:
    """Return the phase of an entry for an approval with this record. Times are in Unix seconds."""
    if record is not None and record.status in ENDED:
        return Phase.TO_SEND
    return Phase.ABANDONED if written_s < now_s - ABANDONED_S else Phase.UNDECIDED


class Outbox:
    """Keeps the entries, and sends the decisions that have been taken."""

    def __init__(
        self,
        bus: Bus,
        *,
        records: ApprovalRecords,
        announcements: Announcements,
        audit: ApprovalAudit,
        deadlines: Deadlines,
    ) -> None:
        self._bus = bus
        self._deadlines = deadlines
        self._raises = BudgetRaises(bus)
        self._audit = audit
        self._bucket = bus.bucket(BUCKET)
        self._records = records
        self._announcements = announcements
        self._reported: dict[str, int] = {}  # maps the key of a reported entry to its revision

    async def open(self, approval_id: str) -> int:
        """Write the entry of a decision or a change that is about to be made; return its
        revision."""
        now = str(self._bus.clock.time()).encode()
        return await self._bucket.put(f"{_PREFIX}{approval_id}", now)

    async def close(self, approval_id: str, revision: int) -> None:
        """Delete the entry of a change that was announced, unless it was written again: a decision
        may be about to be taken."""
        await self._bucket.delete(f"{_PREFIX}{approval_id}", revision)

    async def announce(self, record: ApprovalRecord) -> None:
        """Write the audit and the events of a waiting approval that are missing. Raises BusError.

        The call may be repeated."""
        await self._audit.follow(record)
        *earlier, last = request_events(record)
        await self._announcements.announce(record, last, earlier=earlier)

    async def send_on(self, approval_id: str) -> None:
        """Announce how the approval ended, and send the command that continues the run.

        The call may be repeated.

        Raises:
            UnreadableRecord, ObjectGone: the record cannot be read.
            BusError: the bus does not answer.
        """
        record = await self._records.get(approval_id)
        if record is None or record.status not in ENDED:
            return
        await self._audit.follow(record)
        # The decision may come before the process that recorded the request has announced the
        # pause.
        earlier = request_events(record)
        await self._announcements.announce(record, *end_events(record), earlier=earlier)
        await self._carry_out(record)
        await self._deadlines.cancel(record)
        await self._bucket.delete(f"{_PREFIX}{approval_id}")
        spans.record(span_of(record))

    async def _carry_out(self, record: ApprovalRecord) -> None:
        """Send the command that continues or cancels the run, or none if the run stays paused."""
        continuing = record.continue_command()
        if (record.target == WORKFLOWS or record.is_of_review) and record.decision is not None:
            # For the run of a workflow, `send_on` has reported the decision to the workflows
            # service, and for a redaction to the normalizer, which holds the run's events back.
            # This report takes the place of the command.
            await self._audit.sent(record)
        elif continuing is not None:
            if record.is_of_budget:
                await self._raises.carry_out(record)
            name = f"{record.approval_id}.continue"
            payload = await objects.wrap(self._bus, name, continuing.dump(), record.run_id)
            subject = command("connector", "continue", record.run_id)
            headers = {"Nats-Msg-Id": record.approval_id}
            await self._bus.publisher.publish(Message(subject, payload, headers))
            await self._audit.sent(record)
        elif record.is_of_budget and record.decision is not None:
            await self._cancel(record, record.decision.by, "budget")
        elif deadline_consequence(record) is Consequence.CANCEL:
            await self._cancel(record, POLICY, CANCEL_REASON)

    async def _cancel(self, record: ApprovalRecord, by: str, reason: str) -> None:
        budget = dict(record.items[0]["args"]) if record.is_of_budget else None
        run_id, target = record.run_id, record.target or "connector"
        if budget is not None and (around := budget.pop(AROUND, None)) is not None:
            run_id, target = around, WORKFLOWS
        cancel = CancelCommand(run_id=run_id, by=by, reason=reason, budget=budget)
        subject = command(target, "cancel", run_id)
        headers = {"Nats-Msg-Id": f"{record.approval_id}.expired"}
        await self._bus.publisher.publish(Message(subject, cancel.dump(), headers))

    async def sweep(self) -> None:
        """Handle every entry. An entry that cannot be handled does not block the other entries.
        Raises BusError if the bus does not answer at all; the next sweep handles the rest."""
        stuck: dict[str, int] = {}
        for entry in await self._bucket.entries(f"{_PREFIX}*"):
            try:
                await self._handle(entry)
            except ObjectGone as error:
                text = "approval %s: its decision or change can never be sent on: %s"
                log.error(text, entry.key.removeprefix(_PREFIX), error)
                await self._bucket.delete(entry.key, entry.revision)
            except BusError as error:
                if not self._bus.is_ready:
                    raise
                self._report(entry, error, stuck)
            except Exception as error:  # a failure of one entry must not block the other entries
                self._report(entry, error, stuck)
        self._reported = stuck
        telemetry.OUTBOX_STUCK.set(len(stuck))

    def _report(self, entry: Entry, error: Exception, stuck: dict[str, int]) -> None:
        """Log an entry that cannot be handled. Each revision of an entry is logged once."""
        stuck[entry.key] = entry.revision
        if self._reported.get(entry.key) != entry.revision:
            expected = isinstance(error, UnreadableRecord | BusError)
            log.error(
                "approval %s: its decision or change cannot be sent on now; the outbox tries "
                "again: %s",
                entry.key.removeprefix(_PREFIX),
                error,
                exc_info=None if expected else error,
            )

    async def _handle(self, entry: Entry) -> None:
        approval_id = entry.key.removeprefix(_PREFIX)
        record = await self._records.get(approval_id)
        match phase_of(record, _written_s(entry), self._bus.clock.time()):
            case Phase.TO_SEND:
                await self.send_on(approval_id)
            case Phase.ABANDONED:
                await self._abandon(approval_id, entry)
            case Phase.UNDECIDED if record is not None and record.status == "pending":
                await self.announce(record)
            case Phase.UNDECIDED:
                pass

    async def _abandon(self, approval_id: str, entry: Entry) -> None:
        """Delete the entry of a decision that was never taken.

        The process that wrote the entry may only be slow. If that process took the decision after
        its entry was deleted, and then ended, nothing would send the decision. So the approval's
        record is first written again, as a new revision. The slow process's compare-and-set then
        fails, and that process writes a new entry.
        """
        stored = await self._records.find(approval_id)
        if stored is not None:
            if stored.record.status in ENDED:
                return  # the decision was taken just now; the next sweep sends it
            if stored.record.status == "pending":
                if not await self._records.touch(stored):
                    return
                await self.announce(stored.record)
        await self._bucket.delete(entry.key, entry.revision)


def _written_s(entry: Entry) -> float:
    """Return the Unix time at which the entry was written; 0, so old, if the entry has none."""
    try:
        return float(entry.value or 0)
    except ValueError:
        return 0.0
