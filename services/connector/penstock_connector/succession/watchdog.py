"""Finds open runs that no connector, command or person would ever continue.

If a connector dies, other connectors find its legs by the legs' records, and NATS delivers its
commands again. These two ways do not suffice in three cases: an edge died before it sent the
command of a start, a leg's record is lost, or the command of a decision is lost. The run would then
wait for ever. The watchdog checks the open runs, and continues or ends such a run.

At any time, one connector is the watchdog: the connector with the lease `watchdog`. The watchdog
reads the list of runs once, a few pages in each check, and then only the changes. In each check the
watchdog examines some of the open runs. The watchdog acts on a run only if two checks have found
the same problem. Each write of the watchdog is fenced, or takes the run's claim. So the watchdog
and another connector cannot both act on a run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

import orjson

from penstock import telemetry
from penstock.bus import BusError, Lease, Retry, Stored
from penstock.bus.read import direct
from penstock.bus.records.approvals import ApprovalRecord
from penstock.bus.records.runs import ENDED, RunRecord, Target
from penstock.bus.streams import COMMANDS, raw_for
from penstock.bus.subjects import command, raw_of_run
from penstock.bus.write import objects
from penstock_connector.state.run_state import CLOSED, holder_of, kind_of, leg_of
from penstock_connector.state.stores import Stores

log = logging.getLogger(__name__)

RUNS_STREAM, PREFIX = "KV_runs", "$KV.runs."
# The number of pages, of 500 records each, that one check reads. With this number, a million
# records are read in less than two hours.
PAGES = 10
EXAMINED = 100  # the most runs that one check examines
# Seconds after which a run without a command counts as never started. An edge stops its attempts to
# send the command before this time.
UNSTARTED_S = 120.0


class StuckReason(StrEnum):
    """The reason why a run would never continue."""

    # the run's leg is open, and the lease of its connector has expired
    NOBODY_HOLDS = "nobody_holds"
    # there is no command, no claim of a live connector, and no `open`
    NEVER_STARTED = "never_started"
    # The approval is decided, but no command and no connector has the decision.
    NEVER_SENT = "never_sent"


@dataclass(slots=True)
class _Watched:
    """An open run, and the problem that the last check has found."""

    revision: int  # the revision of the run's record
    since: float  # the monotonic time, in seconds, at which this revision was read
    # The problem, and the sequence of the run's last frame when the problem was found.
    found: tuple[StuckReason, int] | None = None


class Watchdog:
    """Finds stuck runs, and calls `take_over`, `send` or `end` to continue or end a stuck run."""

    def __init__(
        self,
        stores: Stores,
        *,
        take_over: Callable[[str, Stored], Awaitable[None]],
        send: Callable[[str, str], Awaitable[None]],
        end: Callable[[str, StuckReason, str | None], Awaitable[None]],
        ttl_s: float,
    ) -> None:
        self._stores = stores
        self._bus = stores.bus
        self._runs = stores.runs
        self._take_over = take_over
        self._send = send
        self._end = end
        self._lease = Lease(stores.bus, "watchdog", stores.pod, ttl_s)
        self._read_to = 0
        self._open: dict[str, _Watched] = {}

    async def renew_lease(self) -> bool:
        """Renew or take the lease; return False while another connector has the lease."""
        held = await (self._lease.renew() if self._lease.is_held else self._lease.acquire())
        if not held:
            # Another connector acts on the runs now, so the state in this process becomes outdated.
            self._forget()
        return held

    async def check(self) -> None:
        """Read the changes in the list of runs, and examine some of the open runs."""
        await self._read()
        for run_id in tuple(self._open)[:EXAMINED]:
            watched = self._open.pop(run_id)
            # The run moves to the end of the dict, so each open run is examined after some checks.
            self._open[run_id] = watched
            try:
                await self._examine(run_id, watched)
            except (BusError, Retry) as error:
                log.warning("run %s: not examined now: %s", run_id, error)
            except Exception:  # one run must not prevent the examination of all other runs
                log.exception("run %s: it cannot be examined", run_id)

    async def stop(self) -> None:
        """Give the lease back, so that another connector becomes the watchdog."""
        await self._lease.release()

    def _forget(self) -> None:
        self._read_to = 0
        self._open.clear()

    async def _read(self) -> None:
        last = await self._bus.tail(RUNS_STREAM, f"{PREFIX}>")
        if last is None or last.sequence < self._read_to:
            self._forget()  # NATS was restored to an older state
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
        if record.target == "workflows":
            stuck, approval_id = await self._why_workflow_stuck(record, watched), None
        else:
            stuck, approval_id = await self._why_stuck(record, last, watched)
        found = (stuck, last.sequence if last is not None else 0) if stuck is not None else None
        is_certain = found is not None and found == watched.found
        watched.found = found
        if stuck is None or not is_certain:
            return
        log.warning("run %s: it is stuck (%s)", run_id, stuck.value)
        telemetry.RUNS_STUCK.labels(stuck.value).inc()
        watched.found = None
        if stuck is StuckReason.NOBODY_HOLDS:
            assert last is not None
            await self._take_over(run_id, last)
        elif stuck is StuckReason.NEVER_SENT and approval_id is not None:
            await self._send(run_id, approval_id)
        else:
            await self._end(run_id, stuck, approval_id)

    async def _why_stuck(
        self, record: RunRecord, last: Stored | None, watched: _Watched
    ) -> tuple[StuckReason | None, str | None]:
        """Return why the run is stuck, and the approval whose decision was not sent; both may be
        None."""
        run_id = record.run_id
        if last is None:
            if time.monotonic() - watched.since < UNSTARTED_S or await self._is_command_stored(
                run_id, "start"
            ):
                return None, None
            claim = await self._stores.claims.read(run_id)
            if claim is not None and await self._stores.connectors.is_alive(claim.pod):
                return None, None
            return StuckReason.NEVER_STARTED, None
        if kind_of(last) not in CLOSED:
            is_alive = await self._stores.connectors.is_alive(holder_of(last))
            return None if is_alive else StuckReason.NOBODY_HOLDS, None
        approval_id = record.approval_id
        if approval_id is None or await self._is_on_its_way(run_id, approval_id, leg_of(last)):
            return None, None  # the normalizer or a person continues the run
        return StuckReason.NEVER_SENT, approval_id

    async def _why_workflow_stuck(self, record: RunRecord, watched: _Watched) -> StuckReason | None:
        """Return NEVER_STARTED if a workflow's run was never started, else None. The workflows
        service continues all other runs of workflows."""
        run_id = record.run_id
        if record.status != "queued" or time.monotonic() - watched.since < UNSTARTED_S:
            return None
        if await self._is_command_stored(run_id, "start", "workflows"):
            return None
        frame = await self._bus.tail(raw_for(run_id), raw_of_run(run_id))
        return StuckReason.NEVER_STARTED if frame is None else None

    async def _is_on_its_way(self, run_id: str, approval_id: str, leg: int) -> bool:
        """Return whether a paused run waits for its decision, or the decision is being sent."""
        approvals = self._bus.bucket("approvals")
        entry = await approvals.get(approval_id)
        if entry is None or not entry.value:
            return True  # the approvals service has not read the request yet
        approval = await self._approval(entry.value)
        # A question of redactions takes a number of a leg, for which there are no frames.
        if approval.continue_command() is None or approval.leg < leg:
            return True
        in_outbox = await approvals.get(f"outbox.{approval_id}") is not None
        if in_outbox or await self._is_command_stored(run_id, "continue"):
            return True
        sent = await self._stores.sendings.read(approval_id)
        if sent is None:
            return False
        # If the decision was sent, RAW has lost the `open` of the leg that sent it. In this case,
        # the normalizer ends the run.
        is_begun = sent.state in ("done", "outcome_unknown")
        return is_begun or (
            sent.state == "claimed" and await self._stores.connectors.is_alive(sent.pod)
        )

    async def _approval(self, value: bytes) -> ApprovalRecord:
        return ApprovalRecord.model_validate_json(await objects.unwrap(self._bus, value))

    async def _is_command_stored(
        self, run_id: str, kind: str, target: Target = "connector"
    ) -> bool:
        subject = command(target, kind, run_id)
        return await self._bus.tail(COMMANDS, subject) is not None
