"""The legs that this connector holds: opened, seen through, let go; those of dead ones, ended."""

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
from penstock.bus import Bus, FenceConflict, Msg, Stored, Subscription
from penstock.bus.budget import Budget
from penstock.bus.fence import RawWriter
from penstock.bus.pull import Retry
from penstock.bus.records import CancelCommand, ContinueCommand, StartCommand, Turn
from penstock.bus.subjects import control, session_key
from penstock.settings import AgentConfig
from penstock_connector.claims import Claims, Sessions, patiently
from penstock_connector.leg import Leg, Outcome, lost
from penstock_connector.runs import CLOSED, Runs, holder_of, kind_of
from penstock_connector.settings import ConnectorSettings
from penstock_connector.upstreams import upstreams
from penstock_connector.upstreams.base import Call, Upstream

log = logging.getLogger(__name__)

# A leg that is stopped says so; a bus that is away must not keep the process.
STOP_S = 2.0
STOP_TRIES = 3


class Legs:
    """Every leg that this process sees through, by run."""

    def __init__(
        self,
        bus: Bus,
        settings: ConnectorSettings,
        client: httpx.AsyncClient,
        pod: str,
        runs: Runs,
        claims: Claims,
    ) -> None:
        self._bus = bus
        self._settings = settings
        self._client = client
        self._pod = pod
        self._upstreams = upstreams(bus)
        self._runs = runs
        self._claims = claims
        self._sessions = Sessions(bus, claims)
        self._budget = Budget(settings.max_total_buffered_bytes)
        self._legs: dict[str, asyncio.Task[None]] = {}
        self._opening: set[str] = set()  # runs whose command is being carried out

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._legs

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

    @contextmanager
    def alone_with(self, run_id: str) -> Iterator[None]:
        """One command of a run at a time: the same one may be delivered twice to one process."""
        if run_id in self._opening:
            raise Retry(1)
        self._opening.add(run_id)
        try:
            yield
        finally:
            self._opening.remove(run_id)

    async def hold(
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
        await self._claims.begin(run_id)
        session = session_key(command.user_id, command.agent, command.session_id)
        mine = Turn(run_id=run_id, leg=number, pod=self._pod, sequence=sequence)
        if agent is not None:
            # before the `open`: a run that was seen to start stands before what is started then
            await self._sessions.join(session, agent.id, command.session_id, mine)
        try:
            await writer.write("open", orjson.dumps(opened), leg=number)
        except FenceConflict:
            await self._sessions.leave(session, run_id, self._pod)
            await self._claims.end(run_id)
            raise
        if agent is None:
            unknown = lost("internal", f"no agent {command.agent} in this connector's file")
            await writer.write(unknown.kind, orjson.dumps(unknown.facts), leg=number)
            await patiently(lambda: self._claims.end(run_id))
            return
        upstream = self._upstreams[agent.protocol]
        leg = Leg(
            run_id=run_id,
            number=number,
            agent=agent,
            upstream=upstream,
            client=self._client,
            writer=writer,
            settings=self._settings,
            budget=self._budget,
            prepare=partial(prepare, upstream, agent),
            turn=partial(self._sessions.wait, session, mine),
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
            await patiently(lambda: self._runs.cancel_between_legs(run_id, leg.cancelled_by))
        await patiently(lambda: self._sessions.leave(session, run_id, self._pod))
        await patiently(lambda: self._claims.end(run_id))
        if approval_id is not None:
            state = "outcome_unknown" if outcome.label == "outcome_unknown" else "done"
            await patiently(lambda: self._claims.record_sending(approval_id, state))

    async def _say_lost(self, leg: Leg, gone: Outcome) -> None:
        try:
            await leg.writer.write(gone.kind, orjson.dumps(gone.facts), leg=leg.number)
        except FenceConflict:
            log.info("run %s leg %d: it had ended", leg.run_id, leg.number)

    async def end_unless_held(self, run_id: str) -> None:
        """Say that a leg is lost whose connector died; not when it had ended, or is held."""
        last = await self._runs.tail(run_id)
        if last is None or kind_of(last) in CLOSED or await self.held(run_id, last):
            return
        text = f"the connector {holder_of(last)}, which held the connection, died"
        if kind_of(last) == "open":
            # it may have been calling the upstream, or not yet
            gone = lost("outcome_unknown", f"{text}; whether the upstream was called is not known")
        else:
            gone = lost("upstream_lost", text)
        await self._runs.end(run_id, last, gone.kind, gone.facts)

    async def reap(self) -> None:
        """End the legs of connectors that live no more."""
        living = await self._claims.living()
        for pod, run_id in await self._claims.active():
            if pod in living:
                continue
            if await self._runs.tail(run_id) is None:
                continue  # not opened: its start command is delivered again
            log.warning("run %s: its connector %s is dead", run_id, pod)
            await self.end_unless_held(run_id)
            if (record := await self._runs.record(run_id)) is not None:
                key = session_key(record.user_id, record.agent, record.session_id)
                await self._sessions.leave(key, run_id, pod)
            await self._claims.end(run_id, pod)

    async def held(self, run_id: str, last: Stored) -> bool:
        """Whether somebody sees the leg through that this frame belongs to."""
        pod = holder_of(last)
        if pod == self._pod:
            return run_id in self._legs or run_id in self._opening
        return await self._claims.lives(pod)
