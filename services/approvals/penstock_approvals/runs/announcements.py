"""Announces the events of approvals: as source events in RAW, or to the service `workflows`.

Until a workflow's run ends, only the service `workflows` writes the run's source frames. So this
service sends `ApprovalNews` to `workflows`, which then writes the events.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from penstock.bus import Bus, FenceConflict, Message, RawWriter
from penstock.bus.messages import LEG
from penstock.bus.read import direct
from penstock.bus.records.approvals import ApprovalChange, ApprovalNews, ApprovalRecord
from penstock.bus.streams import raw_for
from penstock.bus.subjects import command, raw_of_run, raw_stored
from penstock.bus.write import objects
from penstock.bus.write.fence import tail
from penstock_approvals.runs.events import WORKFLOWS, Event

log = logging.getLogger(__name__)

WRITER: Final = "approvals"
# Maps the type of an approval's event to the kind of report that `workflows` gets.
_CHANGES: Final[Mapping[str, ApprovalChange]] = {
    "lifecycle.paused": "asked",
    "approval.expired": "expired",
    "approval.decided": "decided",
}


class Announcements:
    """Announces the events of one pod. Every call may be repeated, and raises BusError."""

    def __init__(self, bus: Bus, pod: str) -> None:
        self._bus = bus
        self._pod = pod
        self._writes = 0

    async def announce(
        self, record: ApprovalRecord, *events: Event, earlier: Sequence[Event] = ()
    ) -> None:
        """Announce events of an approval whose run goes on. `earlier` is as in `once`."""
        if record.target == WORKFLOWS:
            for type_, data in (*earlier, *events):
                await self._report(record, type_, data)
        else:
            await self.once(record.run_id, record.leg, *events, earlier=earlier)

    async def once(
        self, run_id: str, leg: int, *events: Event, earlier: Sequence[Event] = ()
    ) -> None:
        """Write source events of the run's leg, in this order, unless they were written before.

        Each call first reads the last event that this service has written for the run. If that
        event is one of the events to write, the call writes only the events that follow it. If that
        event is another event of this leg, the call writes the events that RAW does not have. If
        that event belongs to a later leg, the call writes nothing. All events of this leg are then
        already in RAW, because a decision is announced before it is sent, and only the sent
        decision begins the next leg.

        `earlier` are events that come before `events` and that another process may not have
        written. This call also writes the earlier events that are missing. But if RAW has no frame
        of the run, `earlier` is not written. In this case, the earlier events were written long
        ago, and RAW has already removed them.
        """
        new = [_payload(event) for event in events]
        all_of_them = [*map(_payload, earlier), *new]
        while True:
            last = await tail(self._bus, raw_for(run_id), raw_stored(run_id, WRITER))
            if last is not None and int(last.headers[LEG]) > leg:
                return
            has_frames = last is not None or await self._has_frames(run_id)
            payloads = all_of_them if has_frames else new
            written = last.payload if last is not None else b""
            if written in payloads:
                missing = payloads[payloads.index(written) + 1 :]
            elif last is not None and int(last.headers[LEG]) == leg:
                missing = await self._unwritten(run_id, payloads)
            else:
                missing = payloads
            if not missing:
                return
            self._writes += 1
            connection = f"{self._pod}/{self._writes}"
            sequence = last.sequence if last is not None else 0
            writer = RawWriter(self._bus, run_id, WRITER, connection, sequence)
            try:
                for payload in missing:
                    await writer.write("event", payload, leg=leg)
                return
            except FenceConflict:
                log.info("run %s: another instance has written an event; reading again", run_id)

    async def _report(self, record: ApprovalRecord, type_: str, data: Mapping[str, Any]) -> None:
        """Send an `ApprovalNews`. The NATS server drops a repetition that comes soon. `workflows`
        ignores a later one, because the run's journal has the report already."""
        # `workflows` tells steps apart by their numbers.
        change: ApprovalChange = "escalated" if "step" in data else _CHANGES[type_]
        name = f"{record.approval_id}.{change}"
        if "step" in data:
            name = f"{name}.{data['step']}"
        report = ApprovalNews(
            run_id=record.run_id,
            approval_id=record.approval_id,
            news=change,
            event={"type": type_, "data": dict(data)},
            items=record.decided_items() if type_ == "approval.decided" else None,
        )
        payload = await objects.wrap(self._bus, name, report.dump(), record.run_id)
        subject = command(WORKFLOWS, "continue", record.run_id)
        await self._bus.publisher.publish(Message(subject, payload, {"Nats-Msg-Id": name}))

    async def _has_frames(self, run_id: str) -> bool:
        return await tail(self._bus, raw_for(run_id), raw_of_run(run_id)) is not None

    async def _unwritten(self, run_id: str, payloads: Sequence[bytes]) -> list[bytes]:
        """Return the payloads that RAW does not have.

        The last event alone does not show which payloads are missing, because instances may write
        in another order. For example, a slow instance may announce the pause after another instance
        has announced that the deadline has passed.
        """
        frames = direct.replay(self._bus, raw_for(run_id), raw_stored(run_id, WRITER))
        written = {stored.payload async for stored in frames}
        return [payload for payload in payloads if payload not in written]


def _payload(event: Event) -> bytes:
    type_, data = event
    return orjson.dumps({"type": type_, "data": data})
