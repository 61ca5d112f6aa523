"""The watchdog: no open run is without a connector, a command, or somebody who is asked.

Connectors find each other's legs by what they note, and commands come again by themselves. What
slips through both (a start whose edge died before it sent the command, a note that is lost, a
decision that is taken and not on its way) would wait for ever. The watchdog goes through the open
runs and puts such a run in order, or ends it. A decision that is not on its way is sent as its
record says.

One connector does it at a time. It reads the list of runs once, a few pages a look, and then only
what has changed; of the open ones it looks at some each time. It acts on what it has seen twice,
and each of its writes is fenced, or takes the claim by which others would begin.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

import orjson

from penstock import telemetry
from penstock.bus import Bus, BusError, Lease, Retry, Stored
from penstock.bus.read import direct
from penstock.bus.records import ENDED, ApprovalRecord, RunRecord
from penstock.bus.streams import COMMANDS
from penstock.bus.subjects import command
from penstock.bus.write import objects
from penstock_connector.state.claims import Claims
from penstock_connector.state.run_state import CLOSED, Runs, holder_of, kind_of, leg_of

log = logging.getLogger(__name__)

RUNS_STREAM, PREFIX = "KV_runs", "$KV.runs."
PAGES = 10  # of 500 records, a look: a million records are read in less than two hours
EXAMINED = 100  # runs a look
UNSTARTED_S = 120.0  # an edge tries for less long to send the command


class Stuck(StrEnum):
    """Why nobody will ever move a run."""

    NOBODY_HOLDS = "nobody_holds"  # its leg is open, and its connector is dead
    NEVER_STARTED = "never_started"  # no command, no claim of a connector that lives, no `open`
    NEVER_SENT = "never_sent"  # decided; no command, and no connector that sends it


@dataclass(slots=True)
class _Watched:
    """An open run, and what was found the last time."""

    revision: int
    since: float
    found: tuple[Stuck, int] | None = None  # with the sequence of its last source frame


class Watchdog:
    """See the module. `adopt`, `send` and `end` do what is needed, alone with the run."""

    def __init__(
        self,
        bus: Bus,
        pod: str,
        runs: Runs,
        claims: Claims,
        *,
        adopt: Callable[[str, Stored], Awaitable[None]],
        send: Callable[[str, str], Awaitable[None]],
        end: Callable[[str, Stuck, str | None], Awaitable[None]],
        ttl_s: float,
    ) -> None:
        self._bus = bus
        self._runs = runs
        self._claims = claims
        self._adopt = adopt
        self._send = send
        self._end = end
        self._lease = Lease(bus, "watchdog", pod, ttl_s)
        self._read_to = 0
        self._open: dict[str, _Watched] = {}

    async def beat(self) -> bool:
        """Keep the lease, or take it; False while another one has it. Raises BusError."""
        held = await (self._lease.renew() if self._lease.held else self._lease.acquire())
        if not held:
            self._forget()  # what is known grows old
        return held

    async def look(self) -> None:
        """Read what has changed, and look at some of the open runs. Raises BusError."""
        await self._read()
        for run_id in tuple(self._open)[:EXAMINED]:
            watched = self._open.pop(run_id)
            self._open[run_id] = watched  # to the end of the line
            try:
                await self._examine(run_id, watched)
            except (BusError, Retry) as error:
                log.warning("run %s: not looked at now: %s", run_id, error)
            except Exception:  # one run must not keep the others
                log.exception("run %s: it cannot be looked at", run_id)

    async def stop(self) -> None:
        """Let another one do it."""
        await self._lease.release()

    def _forget(self) -> None:
        self._read_to = 0
        self._open.clear()

    async def _read(self) -> None:
        last = await self._bus.tail(RUNS_STREAM, f"{PREFIX}>")
        if last is None or last.sequence < self._read_to:
            self._forget()  # NATS has an older store than it had
        for _ in range(PAGES):
            found, pending = await direct.read(
                self._bus, RUNS_STREAM, f"{PREFIX}>", self._read_to + 1
            )
            for stored in found:
                self._read_to = stored.sequence
                self._note(stored)
            if not found or not pending:
                return

    def _note(self, stored: Stored) -> None:
        run_id = stored.subject.removeprefix(PREFIX)
        try:
            record = orjson.loads(stored.payload or b"{}")
            is_open = bool(record) and record["status"] not in ENDED
        except (orjson.JSONDecodeError, KeyError, TypeError):
            is_open = False
        self._open.pop(run_id, None)
        if is_open:
            self._open[run_id] = _Watched(stored.sequence, time.monotonic())

    async def _examine(self, run_id: str, watched: _Watched) -> None:
        record = await self._runs.record(run_id)
        if record is None or record.status in ENDED:
            self._open.pop(run_id, None)
            return
        last = await self._runs.tail(run_id)
        stuck, approval_id = await self._why(record, last, watched)
        found = (stuck, last.sequence if last is not None else 0) if stuck is not None else None
        is_certain = found is not None and found == watched.found
        watched.found = found
        if stuck is None or not is_certain:
            return
        log.warning("run %s: nobody would ever move it (%s)", run_id, stuck.value)
        telemetry.RUNS_STUCK.labels(stuck.value).inc()
        watched.found = None
        if stuck is Stuck.NOBODY_HOLDS:
            assert last is not None
            await self._adopt(run_id, last)
        elif stuck is Stuck.NEVER_SENT and approval_id is not None:
            await self._send(run_id, approval_id)
        else:
            await self._end(run_id, stuck, approval_id)

    async def _why(
        self, record: RunRecord, last: Stored | None, watched: _Watched
    ) -> tuple[Stuck | None, str | None]:
        """Why nobody will ever move the run, and the decision that is not sent; None if some do."""
        run_id = record.run_id
        if last is None:
            if time.monotonic() - watched.since < UNSTARTED_S or await self._waits(run_id, "start"):
                return None, None
            claim = await self._claims.claimed(run_id)
            if claim is not None and await self._claims.lives(claim.pod):
                return None, None
            return Stuck.NEVER_STARTED, None
        if kind_of(last) not in CLOSED:
            lives = await self._claims.lives(holder_of(last))
            return None if lives else Stuck.NOBODY_HOLDS, None
        approval_id = record.approval_id
        if approval_id is None or await self._is_on_its_way(run_id, approval_id, leg_of(last)):
            return None, None  # the normalizer, or somebody who is asked, has the next word
        return Stuck.NEVER_SENT, approval_id

    async def _is_on_its_way(self, run_id: str, approval_id: str, leg: int) -> bool:
        """Whether a run that paused waits for its decision still, or the decision is being sent."""
        approvals = self._bus.bucket("approvals")
        entry = await approvals.get(approval_id)
        if entry is None or not entry.value:
            return True  # approvals has not read the request yet
        approval = await self._approval(entry.value)
        if approval.status != "decided" or approval.leg != leg:
            return True
        in_outbox = await approvals.get(f"outbox.{approval_id}") is not None
        if in_outbox or await self._waits(run_id, "continue"):
            return True
        sent = await self._claims.sending(approval_id)
        if sent is None:
            return False
        # what was sent, and has no `open`, RAW has lost: the normalizer ends the run
        is_begun = sent.state in ("done", "outcome_unknown")
        return is_begun or (sent.state == "claimed" and await self._claims.lives(sent.pod))

    async def _approval(self, value: bytes) -> ApprovalRecord:
        return ApprovalRecord.model_validate_json(await objects.unwrap(self._bus, value))

    async def _waits(self, run_id: str, kind: str) -> bool:
        subject = command("connector", kind, run_id)
        return await self._bus.tail(COMMANDS, subject) is not None
