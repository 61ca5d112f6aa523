"""Start, continue and cancel: the three commands, each safe to be delivered again.

An `open` is in RAW before the upstream is called. So a connector that finds a dead one's claim
knows: without an `open` nothing was sent, and it may take over; with one, nobody knows, and it says
so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx
import orjson

from penstock import telemetry
from penstock.bus import (
    Bus,
    BusError,
    BusUnavailable,
    FenceConflict,
    Msg,
    OutcomeUnknown,
    Stored,
    Subscription,
    messages,
    objects,
)
from penstock.bus.fence import RawWriter, tail
from penstock.bus.pull import Retry
from penstock.bus.records import (
    ENDED,
    CancelCommand,
    Claim,
    ContinueCommand,
    PauseRecord,
    RunRecord,
    Sent,
    StartCommand,
    Turn,
)
from penstock.bus.streams import RAW
from penstock.bus.subjects import control, raw_stored, session_key
from penstock.settings import AgentConfig, Config
from penstock_connector.claims import Claims, Sessions, patiently
from penstock_connector.leg import Leg, Outcome, lost
from penstock_connector.settings import ConnectorSettings
from penstock_connector.upstreams import upstreams
from penstock_connector.upstreams.agui import client_tools
from penstock_connector.upstreams.base import Call, Upstream

log = logging.getLogger(__name__)

WRITER = "upstream"
MAX_SHOWN_CHARACTERS = 50_000  # of the message, in lifecycle.started: an `open` is one message
CONTROL_TIMEOUT_S = 2.0
# A leg that is stopped says so; a bus that is away must not keep the process.
STOP_S = 2.0
STOP_TRIES = 3
CLOSED = frozenset({"end", "lost", "event"})


class Commands:
    """The handlers, and the legs that they have opened here."""

    def __init__(
        self,
        bus: Bus,
        config: Config,
        settings: ConnectorSettings,
        client: httpx.AsyncClient,
        pod: str,
    ) -> None:
        self._bus = bus
        self._config = config
        self._settings = settings
        self._client = client
        self._pod = pod
        self._upstreams = upstreams(bus)
        self.claims = Claims(bus, pod)
        self.sessions = Sessions(bus, self.claims)
        self._legs: dict[str, asyncio.Task[None]] = {}
        self._opening: set[str] = set()  # runs whose command is being carried out
        self._connections = 0

    @property
    def room(self) -> int:
        """How many legs more this connector takes."""
        return self._settings.max_legs - len(self._legs)

    async def drain(self, timeout_s: float) -> None:
        """Let the legs end by themselves for so long; what is left is ended as lost."""
        if self._legs:
            await asyncio.wait(self._legs.values(), timeout=timeout_s)
        left = set(self._legs.values())
        for _ in range(STOP_TRIES):
            for task in left:
                task.cancel()
            if left:
                _, left = await asyncio.wait(left, timeout=STOP_S)

    # start

    async def start(self, stored: Stored) -> None:
        """`command.connector.start.<run>`."""
        command = StartCommand.model_validate_json(await objects.unwrap(self._bus, stored.payload))
        run_id = command.run_id
        with self._alone_with(run_id):
            standing = await self.claims.claim(run_id)
            if standing is not None and not await self._still_to_start(run_id, standing):
                return
            agent = self._config.agent(command.agent)
            await self._hold(
                run_id,
                1,
                agent,
                RawWriter(self._bus, run_id, WRITER, self._connection()),
                _opened(command, agent),
                lambda upstream, agent: upstream.start(self._client, agent, command),
                command,
                stored.sequence,
            )

    async def _still_to_start(self, run_id: str, standing: Claim) -> bool:
        """Whether a run that was claimed before is still to be started, and by us."""
        if standing.state == "cancelled" or run_id in self._legs:
            return False
        last = await self._tail(run_id)
        if standing.pod != self._pod and await self.claims.lives(standing.pod):
            if last is None:
                raise Retry(1)  # it may still die before it opens: keep the command until then
            return False
        if last is not None:
            await self._end_unless_held(run_id)
            return False
        if standing.pod != self._pod and not await self.claims.take_over(run_id):
            raise Retry(1)
        log.warning("run %s: claimed by %s and never opened; going on", run_id, standing.pod)
        return True

    # continue

    async def resume(self, stored: Stored) -> None:
        """`command.connector.continue.<run>`."""
        command = ContinueCommand.model_validate_json(
            await objects.unwrap(self._bus, stored.payload)
        )
        run_id, approval_id = command.run_id, command.approval_id
        with self._alone_with(run_id):
            pause = await self._pause(command)
            standing = await self.claims.claim_sending(approval_id)
            if standing is not None and not await self._still_to_send(command, *standing):
                return
            last = await self._tail(run_id)
            if (last is not None and _kind(last) == "event") or await self._has_ended(run_id):
                await self._refuse(command)
                return
            writer = RawWriter(
                self._bus, run_id, WRITER, self._connection(), last.sequence if last else 0
            )
            opened = {
                "agent": command.agent,
                "approval_id": approval_id,
                "items": [item.model_dump() for item in command.items],
            }
            try:
                await self._hold(
                    run_id,
                    command.leg,
                    self._config.agent(command.agent),
                    writer,
                    opened,
                    lambda upstream, agent: upstream.resume(self._client, agent, command, pause),
                    command,
                    stored.sequence,
                )
            except FenceConflict:
                await self._refuse(command)

    async def _still_to_send(self, command: ContinueCommand, sent: Sent, revision: int) -> bool:
        """Whether a decision that was claimed before is still to be sent, and by us."""
        if sent.state != "claimed":
            return False
        last = await self._tail(command.run_id)
        if last is not None and int(last.headers[messages.LEG]) >= command.leg:
            if not await self._held(command.run_id, last):
                await self._end_unless_held(command.run_id)
                await self.claims.record_sending(command.approval_id, "outcome_unknown")
            return False
        if sent.pod == self._pod:
            return True
        if await self.claims.lives(sent.pod):
            raise Retry(1)
        if not await self.claims.take_over_sending(command.approval_id, revision):
            raise Retry(1)
        return True

    async def _refuse(self, command: ContinueCommand) -> None:
        log.info("run %s: it has ended, the decision is not sent", command.run_id)
        await self.claims.record_sending(command.approval_id, "refused")

    async def _pause(self, command: ContinueCommand) -> PauseRecord:
        entry = await self._bus.bucket("pauses").get(command.run_id)
        if entry is not None and entry.value is not None:
            kept = await objects.unwrap(self._bus, entry.value)
            pause = PauseRecord.model_validate_json(kept)
            if pause.approval_id == command.approval_id:
                return pause
        raise LookupError(f"nothing is kept of the pause for approval {command.approval_id}")

    # cancel

    async def cancel(self, stored: Stored) -> None:
        """`command.connector.cancel.<run>`: any connector takes it and asks who holds the run."""
        command = CancelCommand.model_validate_json(stored.payload)
        run_id = command.run_id
        try:
            await self._bus.request(control(run_id), command.dump(), CONTROL_TIMEOUT_S)
            return  # the holder ends it
        except OutcomeUnknown:
            raise Retry(0.5) from None
        except BusUnavailable:
            pass  # nobody holds a connection of the run
        told = {"by": command.by, "reason": command.reason}
        last = await self._tail(run_id)
        if last is None:
            await self._cancel_before_start(run_id, told)
        elif _kind(last) in CLOSED:
            await self._cancel_between_legs(run_id, told)
        else:
            claim = await self.claims.claimed(run_id)
            never_called = claim is not None and claim.state == "cancelled"
            if not never_called and await self._held(run_id, last):
                raise Retry(0.5)  # its holder is about to listen
            facts = {"outcome": "cancelled", "confirmed": never_called, **told}
            await self._end(run_id, last, "end", facts)

    async def _cancel_before_start(self, run_id: str, told: dict[str, str]) -> None:
        standing = await self.claims.claim(run_id, "cancelled")
        if standing is not None and standing.state != "cancelled":
            if not await self.claims.take_over(run_id, "cancelled"):
                raise Retry(0.5)
            log.info("run %s: cancelled, its connector %s died", run_id, standing.pod)
        await self._open_and_end(run_id, _ending("lifecycle.cancelled", **told, confirmed=True))

    async def _cancel_between_legs(self, run_id: str, told: dict[str, str]) -> None:
        if await self._has_ended(run_id):
            return
        last = await self._tail(run_id)
        if last is not None and _kind(last) in CLOSED:
            ending = _ending("lifecycle.cancelled", **told, confirmed=True)
            await self._end(run_id, last, "event", ending)

    # a command that nobody can carry out

    async def fail(self, run_id: str, error: Exception) -> None:
        """End the run that a dead letter leaves without an end; one that is held goes on."""
        ending = _ending(
            "lifecycle.failed", code="internal", error=f"the command cannot be carried out: {error}"
        )
        last = await self._tail(run_id)
        if last is None:
            await self._open_and_end(run_id, ending)
        elif not await self._has_ended(run_id) and not await self._held(run_id, last):
            await self._end(run_id, last, "event", ending)

    async def _open_and_end(self, run_id: str, ending: dict[str, Any]) -> None:
        """The whole of a run whose upstream is never called."""
        record = await self._record(run_id)
        if record is None:
            log.warning("run %s: nobody knows it", run_id)
            return
        writer = RawWriter(self._bus, run_id, WRITER, self._connection())
        command = StartCommand.model_validate(
            record.model_dump(include={"run_id", "agent", "session_id", "user_id", "message"})
            | {"created_at": record.created_at}
        )
        opened = _opened(command, self._config.agent(record.agent))
        await writer.write("open", orjson.dumps(opened), leg=1)
        await writer.write("event", orjson.dumps(ending), leg=1)

    # what is common

    @contextmanager
    def _alone_with(self, run_id: str) -> Iterator[None]:
        """One command of a run at a time: the same one may be delivered twice to one process."""
        if run_id in self._opening:
            raise Retry(1)
        self._opening.add(run_id)
        try:
            yield
        finally:
            self._opening.remove(run_id)

    async def _hold(
        self,
        run_id: str,
        number: int,
        agent: AgentConfig | None,
        writer: RawWriter,
        opened: dict[str, Any],
        prepare: Callable[[Upstream, AgentConfig], Awaitable[Call]],
        command: StartCommand | ContinueCommand,
        sequence: int,
    ) -> None:
        """Write the `open`, listen for control, and let the leg run by itself.

        From the `open` on it is ours to see through, so a bus that goes away is waited for.
        """
        if earlier := self._legs.get(run_id):
            await asyncio.wait({earlier})  # it is putting its things in order
        await self.claims.begin(run_id)
        try:
            await writer.write("open", orjson.dumps(opened), leg=number)
        except FenceConflict:
            await self.claims.end(run_id)
            raise
        if agent is None:
            unknown = lost("internal", f"no agent {command.agent} in this connector's file")
            await writer.write(unknown.kind, orjson.dumps(unknown.facts), leg=number)
            await patiently(lambda: self.claims.end(run_id))
            return
        session = session_key(command.user_id, agent.id, command.session_id)
        mine = Turn(run_id=run_id, leg=number, pod=self._pod, sequence=sequence)
        await patiently(lambda: self.sessions.join(session, agent.id, command.session_id, mine))
        upstream = self._upstreams[agent.protocol]
        leg = Leg(
            run_id=run_id,
            number=number,
            agent=agent,
            upstream=upstream,
            client=self._client,
            writer=writer,
            settings=self._settings,
            prepare=partial(prepare, upstream, agent),
            turn=partial(self.sessions.wait, session, mine),
        )

        async def on_control(msg: Msg) -> None:
            asked = CancelCommand.model_validate_json(msg.data)
            leg.cancel(asked.by, asked.reason)
            await self._bus.client.publish(msg.reply, b"{}")

        listening = await patiently(lambda: self._bus.subscribe(control(run_id), on_control))
        approval_id = command.approval_id if isinstance(command, ContinueCommand) else None
        task = asyncio.create_task(
            self._run_leg(leg, listening, session, approval_id), name=f"leg {run_id}/{number}"
        )
        self._legs[run_id] = task
        task.add_done_callback(lambda _: self._forget(run_id, task))

    def _forget(self, run_id: str, task: asyncio.Task[None]) -> None:
        if self._legs.get(run_id) is task:
            del self._legs[run_id]

    async def _run_leg(
        self, leg: Leg, listening: Subscription, session: str, approval_id: str | None
    ) -> None:
        telemetry.LEGS_OPEN.inc()
        outcome: Outcome | None = None
        try:
            outcome = await self._see_through(leg)
            await self._let_go(leg, listening, session, approval_id, outcome)
        except asyncio.CancelledError:
            if outcome is None:
                outcome = lost("upstream_lost", "the connector was stopped, the upstream was not")
                await self._say_lost(leg, outcome)
            await self._let_go(leg, listening, session, approval_id, outcome)
        finally:
            telemetry.LEGS_OPEN.dec()

    async def _see_through(self, leg: Leg) -> Outcome:
        try:
            return await leg.run()
        except Exception:
            log.exception("run %s leg %d broke", leg.run_id, leg.number)
            broken = lost("internal", "the connector failed; its log has the details")
            await self._say_lost(leg, broken)
            return broken

    async def _let_go(
        self,
        leg: Leg,
        listening: Subscription,
        session: str,
        approval_id: str | None,
        outcome: Outcome,
    ) -> None:
        run_id = leg.run_id
        await listening.unsubscribe()
        if leg.cancelled.is_set() and outcome.label == "eof":
            # it may have ended in a pause just before: then nobody has cancelled it
            await patiently(lambda: self._cancel_between_legs(run_id, leg.cancelled_by))
        await patiently(lambda: self.sessions.leave(session, run_id, self._pod))
        await patiently(lambda: self.claims.end(run_id))
        if approval_id is not None:
            state = "outcome_unknown" if outcome.label == "outcome_unknown" else "done"
            await patiently(lambda: self.claims.record_sending(approval_id, state))

    async def _say_lost(self, leg: Leg, gone: Outcome) -> None:
        try:
            await leg.writer.write(gone.kind, orjson.dumps(gone.facts), leg=leg.number)
        except FenceConflict:
            log.info("run %s leg %d: it had ended", leg.run_id, leg.number)

    async def _end_unless_held(self, run_id: str) -> None:
        """Say that a leg is lost whose connector died; not when it had ended, or is held."""
        last = await self._tail(run_id)
        if last is None or _kind(last) in CLOSED or await self._held(run_id, last):
            return
        text = f"the connector {_holder(last)}, which held the connection, died"
        if _kind(last) == "open":
            # it may have been calling the upstream, or not yet
            gone = lost("outcome_unknown", f"{text}; whether the upstream was called is not known")
        else:
            gone = lost("upstream_lost", text)
        await self._end(run_id, last, gone.kind, gone.facts)

    async def reap(self) -> None:
        """End the legs of connectors that live no more."""
        living = await self.claims.living()
        for pod, run_id in await self.claims.active():
            if pod in living:
                continue
            if await self._tail(run_id) is None:
                continue  # not opened: its start command is delivered again
            log.warning("run %s: its connector %s is dead", run_id, pod)
            await self._end_unless_held(run_id)
            if (record := await self._record(run_id)) is not None:
                key = session_key(record.user_id, record.agent, record.session_id)
                await self.sessions.leave(key, run_id, pod)
            await self.claims.end(run_id, pod)

    async def _end(self, run_id: str, last: Stored, kind: str, facts: dict[str, Any]) -> None:
        writer = RawWriter(self._bus, run_id, WRITER, self._connection(), last.sequence)
        try:
            await writer.write(kind, orjson.dumps(facts), leg=int(last.headers[messages.LEG]))
        except FenceConflict:
            log.info("run %s: somebody else ended it first", run_id)

    async def _tail(self, run_id: str) -> Stored | None:
        return await tail(self._bus, RAW, raw_stored(run_id, WRITER))

    async def _held(self, run_id: str, last: Stored) -> bool:
        """Whether somebody sees the leg through that this frame belongs to."""
        pod = _holder(last)
        if pod == self._pod:
            return run_id in self._legs or run_id in self._opening
        return await self.claims.lives(pod)

    async def _record(self, run_id: str) -> RunRecord | None:
        entry = await self._bus.bucket("runs").get(run_id)
        if entry is None or entry.value is None:
            return None
        return RunRecord.model_validate_json(entry.value)

    async def _has_ended(self, run_id: str) -> bool:
        record = await self._record(run_id)
        return record is not None and record.status in ENDED

    def _connection(self) -> str:
        self._connections += 1
        return f"{self._pod}/{self._connections}"


def _opened(command: StartCommand, agent: AgentConfig | None) -> dict[str, Any]:
    """The facts of the run, as `open` tells them to the normalizer."""
    facts: dict[str, Any] = {
        "agent": command.agent,
        # without an agent no frame will come, and any decoder will do
        "protocol": agent.protocol if agent else "agno",
        "kind": agent.kind if agent else "agent",
        "session_id": command.session_id,
        "user_id": command.user_id,
        "message": command.message[:MAX_SHOWN_CHARACTERS],
    }
    if agent is not None and agent.name:
        facts["agent_name"] = agent.name
    if agent is not None and agent.drop:
        facts["drop"] = agent.drop
    if command.body is not None and agent is not None and agent.protocol == "adk":
        # what the client asked for holds for the legs that follow, too
        facts["streaming"] = bool(orjson.loads(command.body).get("streaming", False))
    if agent is not None and agent.protocol == "agui":
        facts["client_tools"] = client_tools(agent, command)
    if command.idempotency_key:
        facts["idempotency_key"] = command.idempotency_key
    if command.traceparent:
        facts["traceparent"] = command.traceparent
    return facts


def _ending(type_: str, **data: Any) -> dict[str, Any]:
    """A terminal event that is no upstream's."""
    return {"type": type_, "data": data}


def _kind(stored: Stored) -> str:
    return stored.headers[messages.KIND]


def _holder(stored: Stored) -> str:
    return stored.headers[messages.CONNECTION].partition("/")[0]


def patient(handle: Callable[[Stored], Awaitable[None]]) -> Callable[[Stored], Awaitable[None]]:
    """A bus that is away makes no message poisonous: it is delivered again."""

    async def handled(stored: Stored) -> None:
        try:
            await handle(stored)
        except BusError as error:
            log.warning("%s: not now: %s", stored.subject, error)
            raise Retry(1) from error

    return handled
