"""Start, continue and cancel: the three commands, each safe to be delivered again.

An `open` is in RAW before the upstream is called. So a connector that finds a dead one's claim
knows: without an `open` nothing was sent, and it may take over; with one, nobody knows, and it says
so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import httpx
import orjson

from penstock import telemetry
from penstock.bus import (
    Bus,
    BusUnavailable,
    FenceConflict,
    Msg,
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
    ContinueCommand,
    PauseRecord,
    RunRecord,
    StartCommand,
    Turn,
)
from penstock.bus.streams import RAW
from penstock.bus.subjects import control, raw_stored
from penstock.settings import AgentConfig, Config
from penstock_connector.claims import Claims, Sessions, session_key
from penstock_connector.leg import Leg, Outcome, lost
from penstock_connector.settings import ConnectorSettings
from penstock_connector.upstreams import UPSTREAMS
from penstock_connector.upstreams.base import Call

log = logging.getLogger(__name__)

WRITER = "upstream"
MAX_SHOWN_CHARACTERS = 100_000  # of the message, in lifecycle.started
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
        self.claims = Claims(bus, pod)
        self.sessions = Sessions(bus, self.claims)
        self._legs: dict[str, asyncio.Task[None]] = {}
        self._connections = 0

    @property
    def room(self) -> int:
        """How many legs more this connector takes."""
        return self._settings.max_legs - len(self._legs)

    async def drain(self, timeout_s: float) -> None:
        """Let the legs end by themselves for so long; what is left is ended as lost."""
        if self._legs:
            await asyncio.wait(self._legs.values(), timeout=timeout_s)
        left = list(self._legs.values())
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    # start

    async def start(self, stored: Stored) -> None:
        """`command.connector.start.<run>`."""
        command = StartCommand.model_validate_json(await objects.unwrap(self._bus, stored.payload))
        run_id = command.run_id
        claim = await self.claims.claim(run_id)
        if claim is not None:
            if claim.state == "cancelled" or await self.claims.lives(claim.pod):
                return
            if await self._tail(run_id) is not None:
                await self._end_for_dead(run_id, claim.pod)
                return
            if not await self.claims.take_over(run_id):
                raise Retry(1)
            log.warning("run %s: claimed by %s, which died; going on", run_id, claim.pod)
        agent = self._config.agent(command.agent)
        writer = RawWriter(self._bus, run_id, WRITER, self._connection())
        opened = _opened(command, agent)
        if agent is None:
            await writer.write("open", orjson.dumps(opened), leg=1)
            unknown = lost("internal", f"no agent {command.agent} in this connector's file")
            await writer.write(unknown.kind, orjson.dumps(unknown.facts), leg=1)
            return
        upstream = UPSTREAMS[agent.protocol]
        await self._hold(
            run_id,
            1,
            agent,
            writer,
            opened,
            partial(upstream.start, self._client, agent, command),
            session_key(command.user_id, agent.id, command.session_id),
            command.session_id,
        )

    # continue

    async def resume(self, stored: Stored) -> None:
        """`command.connector.continue.<run>`."""
        command = ContinueCommand.model_validate_json(
            await objects.unwrap(self._bus, stored.payload)
        )
        run_id = command.run_id
        standing = await self.claims.claim_sending(command.approval_id)
        if standing is not None:
            sent, revision = standing
            if sent.state != "claimed":
                return
            if sent.pod == self._pod:
                if run_id in self._legs:
                    return  # it is under way: only the acknowledgement was lost
            elif await self.claims.lives(sent.pod):
                raise Retry(2)
            last = await self._tail(run_id)
            if last is not None and int(last.headers[messages.LEG]) >= command.leg:
                await self._end_for_dead(run_id, sent.pod, code="outcome_unknown")
                await self.claims.record_sending(command.approval_id, "outcome_unknown")
                return
            if not await self.claims.take_over_sending(command.approval_id, revision):
                raise Retry(1)
        pause = await self._pause(command)
        agent = self._config.agent(command.agent)
        last = await self._tail(run_id)
        refused = (
            agent is None
            or (last is not None and last.headers[messages.KIND] == "event")
            or await self._has_ended(run_id)
        )
        if refused or agent is None:
            log.info("run %s: it has ended, the decision is not sent", run_id)
            await self.claims.record_sending(command.approval_id, "refused")
            return
        writer = RawWriter(
            self._bus, run_id, WRITER, self._connection(), last.sequence if last else 0
        )
        opened = {
            "agent": command.agent,
            "approval_id": command.approval_id,
            "items": [item.model_dump() for item in command.items],
        }
        upstream = UPSTREAMS[agent.protocol]
        try:
            await self._hold(
                run_id,
                command.leg,
                agent,
                writer,
                opened,
                partial(upstream.resume, self._client, agent, command, pause),
                session_key(command.user_id, agent.id, command.session_id),
                command.session_id,
                approval_id=command.approval_id,
            )
        except FenceConflict:
            log.info("run %s: it was ended meanwhile, the decision is not sent", run_id)
            await self.claims.record_sending(command.approval_id, "refused")

    async def _pause(self, command: ContinueCommand) -> PauseRecord:
        entry = await self._bus.bucket("pauses").get(command.run_id)
        if entry is not None and entry.value is not None:
            pause = PauseRecord.model_validate_json(entry.value)
            if pause.approval_id == command.approval_id:
                return pause
        raise Retry(0.5)

    async def _has_ended(self, run_id: str) -> bool:
        record = await self._record(run_id)
        return record is not None and record.status in ENDED

    # cancel

    async def cancel(self, stored: Stored) -> None:
        """`command.connector.cancel.<run>`: any connector takes it and asks who holds the run."""
        command = CancelCommand.model_validate_json(stored.payload)
        run_id = command.run_id
        try:
            await self._bus.request(control(run_id), command.dump(), 2.0)
            return  # the holder ends it
        except BusUnavailable:
            pass  # nobody holds a connection of the run
        facts = {"by": command.by, "reason": command.reason}
        claim = await self.claims.claimed(run_id)
        last = await self._tail(run_id)
        if last is None:
            await self._cancel_before_start(run_id, facts)
        elif last.headers[messages.KIND] in CLOSED:
            if not await self._has_ended(run_id):
                await self._end(run_id, last, "event", _cancelled_event(facts))
        elif await self._holder_lives(last):
            raise Retry(0.5)
        else:
            dead = {"outcome": "cancelled", "confirmed": False, **facts}
            await self._end(run_id, last, "end", dead)
            if claim is not None:
                await self.claims.end(run_id, claim.pod)

    async def _cancel_before_start(self, run_id: str, facts: dict[str, Any]) -> None:
        claim = await self.claims.claim(run_id, "cancelled")
        if claim is not None and not await self.claims.take_over(run_id, "cancelled"):
            raise Retry(0.5)
        record = await self._record(run_id)
        if record is None:
            log.warning("run %s: cancelled, and nobody knows it", run_id)
            return
        writer = RawWriter(self._bus, run_id, WRITER, self._connection())
        command = StartCommand.model_validate(
            record.model_dump(include={"run_id", "agent", "session_id", "user_id", "message"})
            | {"created_at": record.created_at}
        )
        opened = _opened(command, self._config.agent(record.agent))
        await writer.write("open", orjson.dumps(opened), leg=1)
        await writer.write("event", orjson.dumps(_cancelled_event(facts)), leg=1)

    # what is common

    async def _hold(
        self,
        run_id: str,
        number: int,
        agent: AgentConfig,
        writer: RawWriter,
        opened: dict[str, Any],
        prepare: Callable[[], Awaitable[Call]],
        session: str,
        session_id: str,
        approval_id: str | None = None,
    ) -> None:
        """Write the `open`, listen for control, and let the leg run by itself."""
        mine = Turn(run_id=run_id, leg=number, pod=self._pod)
        await self.claims.begin(run_id)
        try:
            await writer.write("open", orjson.dumps(opened), leg=number)
        except FenceConflict:
            await self.claims.end(run_id)
            raise
        await self.sessions.join(session, agent.id, session_id, mine)
        leg = Leg(
            run_id=run_id,
            number=number,
            agent=agent,
            upstream=UPSTREAMS[agent.protocol],
            client=self._client,
            writer=writer,
            settings=self._settings,
            prepare=prepare,
            turn=partial(self.sessions.wait, session, mine),
        )

        async def on_control(msg: Msg) -> None:
            command = CancelCommand.model_validate_json(msg.data)
            leg.cancel(command.by, command.reason)
            await self._bus.client.publish(msg.reply, b"{}")

        listening = await self._bus.subscribe(control(run_id), on_control)
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
            outcome = await leg.run()
        except asyncio.CancelledError:
            gone = lost("upstream_lost", "the connector was stopped before the upstream had ended")
            await leg.writer.write(gone.kind, orjson.dumps(gone.facts), leg=leg.number)
        except Exception:
            log.exception("run %s leg %d broke", leg.run_id, leg.number)
            broken = lost("internal", "the connector failed; its log has the details")
            await leg.writer.write(broken.kind, orjson.dumps(broken.facts), leg=leg.number)
        finally:
            telemetry.LEGS_OPEN.dec()
            await listening.unsubscribe()
            await self.sessions.leave(session, leg.run_id)
            await self.claims.end(leg.run_id)
            if approval_id is not None:
                unknown = outcome is not None and outcome.label == "outcome_unknown"
                await self.claims.record_sending(
                    approval_id, "outcome_unknown" if unknown else "done"
                )

    async def _end_for_dead(self, run_id: str, pod: str, code: str = "upstream_lost") -> None:
        """Say that a dead connector's leg is lost, unless it had ended."""
        last = await self._tail(run_id)
        if last is not None and last.headers[messages.KIND] not in CLOSED:
            text = f"the connector {pod}, which held the connection, died"
            if code == "outcome_unknown":
                text += "; whether the decision was carried out is not known"
            gone = lost(code, text)
            await self._end(run_id, last, gone.kind, gone.facts)
        await self.claims.end(run_id, pod)

    async def reap(self) -> None:
        """End the legs of connectors that live no more."""
        living = await self.claims.living()
        for pod, run_id in await self.claims.active():
            if pod in living:
                continue
            last = await self._tail(run_id)
            if last is None:
                continue  # not opened: its start command is delivered again
            log.warning("run %s: its connector %s is dead", run_id, pod)
            record = await self._record(run_id)
            await self._end_for_dead(run_id, pod)
            if record is not None:
                key = session_key(record.user_id, record.agent, record.session_id)
                await self.sessions.leave(key, run_id)

    async def _end(self, run_id: str, last: Stored, kind: str, facts: dict[str, Any]) -> None:
        writer = RawWriter(self._bus, run_id, WRITER, self._connection(), last.sequence)
        try:
            await writer.write(kind, orjson.dumps(facts), leg=int(last.headers[messages.LEG]))
        except FenceConflict:
            log.info("run %s: somebody else ended it first", run_id)

    async def _tail(self, run_id: str) -> Stored | None:
        return await tail(self._bus, RAW, raw_stored(run_id, WRITER))

    async def _holder_lives(self, last: Stored) -> bool:
        return await self.claims.lives(last.headers[messages.CONNECTION].partition("/")[0])

    async def _record(self, run_id: str) -> RunRecord | None:
        entry = await self._bus.bucket("runs").get(run_id)
        if entry is None or entry.value is None:
            return None
        return RunRecord.model_validate_json(entry.value)

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
    if command.idempotency_key:
        facts["idempotency_key"] = command.idempotency_key
    if traceparent := (command.model_extra or {}).get("traceparent"):
        facts["traceparent"] = traceparent
    return facts


def _cancelled_event(facts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "lifecycle.cancelled", "data": {**facts, "confirmed": True}}
