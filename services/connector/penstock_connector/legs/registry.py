"""The legs that this connector holds: opened or taken over, seen through, let go."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import httpx
import orjson

from penstock import telemetry
from penstock.bus import (
    Bus,
    BusError,
    FenceConflict,
    Message,
    Msg,
    RawWriter,
    Retry,
    Stored,
    Subscription,
)
from penstock.bus.budget import Budget
from penstock.bus.records import CancelCommand
from penstock.bus.subjects import command as command_subject
from penstock.bus.subjects import control
from penstock.settings import AgentConfig
from penstock_connector.legs.diagnosis import Diagnosis
from penstock_connector.legs.history import LegHistory
from penstock_connector.legs.leg import FRESH_S, Leg, Steps
from penstock_connector.legs.orders import Order
from penstock_connector.legs.outcome import RELEASED, TAKEN_OVER, Outcome, lost
from penstock_connector.legs.response import Resources
from penstock_connector.legs.stop_requests import Cancelled
from penstock_connector.settings import ConnectorSettings
from penstock_connector.state.at_rest import require_at_rest
from penstock_connector.state.claims import Claims, Sessions, patiently
from penstock_connector.state.run_state import Runs, holder_of
from penstock_connector.upstreams import upstreams
from penstock_connector.upstreams.base import Call, Upstream
from penstock_connector.upstreams.session_names import thread_id

log = logging.getLogger(__name__)

# A leg that is stopped says so; a bus that is away must not keep the process.
STOP_S = 2.0
STOP_TRIES = 3
WATCHED = "agui"  # its servers may wait at one place for a whole thread
STOPPED = "the connector was stopped, the upstream was not"


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
        self._callers_known = settings.auth.asks
        self._bus = bus
        self._settings = settings
        self._client = client
        self._diagnosis = Diagnosis(client)
        self._pod = pod
        self._upstreams = upstreams(bus)
        self._runs = runs
        self._claims = claims
        self.sessions = Sessions(bus, claims)
        self._resources = Resources(
            client,
            settings,
            Budget(settings.max_total_buffered_bytes),
            Budget(settings.max_total_frame_bytes),
            bus.clock.stamp,
        )
        self._legs: dict[str, tuple[Leg, asyncio.Task[Outcome]]] = {}
        self._opening: set[str] = set()  # runs whose command is being carried out

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._legs

    def works_on(self, run_id: str) -> bool:
        """Whether a leg of the run is held here, or a command of it is being carried out."""
        return run_id in self._legs or run_id in self._opening

    @property
    def room(self) -> int:
        """How many legs more this connector takes."""
        return self._settings.max_legs - len(self._legs)

    @property
    def held(self) -> Mapping[str, tuple[Leg, asyncio.Task[Outcome]]]:
        """Each leg with the task that sees it through, as they are now."""
        return dict(self._legs)

    def upstream(self, agent: AgentConfig) -> Upstream:
        """How to speak with that agent's server."""
        return self._upstreams[agent.protocol]

    async def stop(self) -> None:
        """Say of what is left that it is lost."""
        await self._diagnosis.stop()
        left = self.held
        for leg, _ in left.values():
            leg.requests.abandon(STOPPED)
        tasks = {task for _, task in left.values()}
        for _ in range(STOP_TRIES):
            if tasks:
                _, tasks = await asyncio.wait(tasks, timeout=STOP_S)
            for task in tasks:
                task.cancel()

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
        order: Order,
        agent: AgentConfig | None,
        writer: RawWriter,
        opened: dict[str, Any],
        *,
        taken_over: bool = False,
    ) -> None:
        """Write the `open`, listen for control, and let the leg run by itself.

        From the `open` on it is ours to see through, so a bus that goes away is waited for. What
        others have left of a leg that was `taken_over` is cleared away then, and not before: until
        the fence lets our `open` in, one that only slept may still be first.
        """
        run_id, command = order.run_id, order.command
        if run_id in self._legs:
            await asyncio.wait({self._legs[run_id][1]})  # it is putting its things in order
        order = order.after(writer.last)
        await self._claims.begin(run_id, order.held)
        noted_at = time.monotonic()
        is_first = True
        try:
            if agent is not None:
                # before the `open`: a run that was seen to start stands before what is started then
                mine = order.turn(self._pod)
                new = thread_id(agent, command, callers_known=self._callers_known)
                is_first = await self.sessions.join(
                    *(order.session, agent.id, command.session_id, new, mine),
                    watched=agent.protocol == WATCHED,
                )
                order = order.named(await self.sessions.thread_id(order.session) or new)
                if order.thread_id != command.session_id:
                    ids = {"session_id": command.session_id, "thread_id": order.thread_id}
                    opened = {**opened, **ids}
            if not is_first:
                opened = {**opened, "calls": False}  # nothing is sent before its turn has come
            await writer.write("open", orjson.dumps(opened), leg=order.leg)
        except Exception as error:
            if isinstance(error, FenceConflict) or not isinstance(error, BusError):
                await self.sessions.leave(order.session, run_id, self._pod, order.leg)
                await self._claims.end(run_id)
            raise
        if taken_over:
            await patiently(lambda: self.clear_others(order))
        if time.monotonic() - noted_at > FRESH_S:
            # who took us for dead has cleared away the note of a leg that was not open yet
            await patiently(lambda: self._claims.begin(run_id, order.held))
        if agent is None:
            unknown = lost("internal", f"no agent {command.agent} in this connector's file")
            await writer.write(unknown.kind, orjson.dumps(unknown.facts), leg=order.leg)
            if order.approval_id is not None:
                approval_id = order.approval_id
                await patiently(
                    lambda: self._claims.record_sending(approval_id, "done", is_known=True)
                )
            await patiently(lambda: self._claims.end(run_id))
            return
        await self.see_through(order, agent, writer, queued=not is_first)

    async def clear_others(self, order: Order) -> None:
        """Take the place in the queue, and away what others have noted, of a leg that is ours."""
        await self.sessions.take_over(order.session, order.turn(self._pod))
        await self.forget_others(order.run_id, order.leg)

    async def forget_others(self, run_id: str, leg: int) -> None:
        """Take away what others have noted of that leg, or of earlier ones."""
        for pod, _ in await self._claims.active(run_id=run_id):
            held, revision = await self._claims.noted(run_id, pod)
            if pod != self._pod and revision and (held is None or held.leg <= leg):
                await self._claims.end_of(pod, run_id, revision)

    async def let_go_of(self, run_id: str) -> None:
        """Of a leg of ours that is over, or another's by now: wait until it has left nothing.

        What it still puts in order would else be that of the leg which we are about to take.
        """
        if run_id in self._legs:
            earlier, task = self._legs[run_id]
            earlier.requests.release()
            await asyncio.wait({task})

    async def see_through(
        self,
        order: Order,
        agent: AgentConfig,
        writer: RawWriter,
        *,
        queued: bool = False,
        history: LegHistory | None = None,
        why: str = "",
        cancelled: CancelCommand | None = None,
    ) -> None:
        """Let a leg that is ours run by itself, and listen for its cancel. See `Leg`."""
        run_id, upstream = order.run_id, self.upstream(agent)
        if not order.thread_id:
            new = thread_id(agent, order.command, callers_known=self._callers_known)
            known = await patiently(lambda: self.sessions.thread_id(order.session))
            order = order.named(known or new)
        leg = Leg(
            run_id=run_id,
            number=order.leg,
            agent=agent,
            upstream=upstream,
            writer=writer,
            resources=self._resources,
            steps=Steps(
                prepare=partial(self._prepare, order, upstream, agent, called=history is not None),
                turn=partial(
                    patiently, partial(self.sessions.wait, order.session, order.turn(self._pod))
                ),
                remember=partial(self._remember, order),
            ),
            is_queued=queued,
            history=history,
            why=why,
        )
        if cancelled is not None:
            leg.requests.cancel(cancelled.by, cancelled.reason)

        async def on_control(msg: Msg) -> None:
            asked = CancelCommand.model_validate_json(msg.data)
            leg.requests.cancel(asked.by, asked.reason)
            await self._bus.client.publish(msg.reply, b"{}")

        listening = await patiently(lambda: self._bus.subscribe(control(run_id), on_control))
        task = asyncio.create_task(
            self._run_leg(leg, listening, order), name=f"leg {run_id}/{order.leg}"
        )
        self._legs[run_id] = leg, task
        task.add_done_callback(lambda _: self._forget(run_id, task))

    async def _prepare(
        self, order: Order, upstream: Upstream, agent: AgentConfig, *, called: bool
    ) -> Call:
        """The leg's request. Raises NotAccepted for a start while its session waits."""
        watched = agent.protocol == WATCHED and agent.starts_while_paused == "refuse"
        if order.leg == 1 and not called and watched:
            key = order.session
            others = await patiently(lambda: self.sessions.others(key, order.run_id))
            if ended := await require_at_rest(self._bus, self._runs, others):
                await patiently(lambda: self.sessions.forget_ended(key, ended))
        return await order.prepare(upstream, agent, order.thread_id)

    def _forget(self, run_id: str, task: asyncio.Task[Outcome]) -> None:
        if run_id in self._legs and self._legs[run_id][1] is task:
            del self._legs[run_id]

    async def _remember(self, order: Order, upstream_run_id: str) -> None:
        held = replace(order.held, upstream_run_id=upstream_run_id)
        await patiently(lambda: self._claims.begin(order.run_id, held))

    async def _run_leg(self, leg: Leg, listening: Subscription, order: Order) -> Outcome:
        telemetry.LEGS_OPEN.inc()
        outcome: Outcome | None = None
        try:
            outcome = await self._see_through(leg)
            await self._let_go(leg, listening, order, outcome)
        except asyncio.CancelledError:
            if outcome is None:
                outcome = await self._say_lost(leg, lost("upstream_lost", STOPPED))
            await self._let_go(leg, listening, order, outcome)
        finally:
            telemetry.LEGS_OPEN.dec()
        return outcome

    async def _see_through(self, leg: Leg) -> Outcome:
        try:
            outcome = await leg.run()
            self._diagnosis.after(leg.run_id, leg.agent, leg.called_url, outcome)
            return outcome
        except Exception:
            log.exception("run %s leg %d broke", leg.run_id, leg.number)
            broken = lost("internal", "the connector failed; its log has the details")
            return await self._say_lost(leg, broken)

    async def _let_go(
        self, leg: Leg, listening: Subscription, order: Order, outcome: Outcome
    ) -> None:
        run_id = leg.run_id
        await listening.unsubscribe()
        cancelled = leg.requests.cancelled
        if cancelled is not None and outcome.kind == "gone":
            await patiently(lambda: self._cancel_again(run_id, cancelled))
        elif cancelled is not None and outcome.label == "eof":
            # The leg may have ended in a pause just before. Then nobody has cancelled the run.
            await patiently(lambda: self._runs.cancel_between_legs(run_id, cancelled.facts))
        if outcome == RELEASED:
            return  # all that notes it as ours is there for whoever goes on with it
        await patiently(lambda: self.sessions.leave(order.session, run_id, self._pod, order.leg))
        if order.approval_id is not None and outcome != TAKEN_OVER:
            approval_id, state = order.approval_id, sending(outcome.label)
            await patiently(lambda: self._claims.record_sending(approval_id, state, is_known=True))
        # the last: by the note another one finds what we leave undone if we die
        await patiently(lambda: self._claims.end(run_id))

    async def _cancel_again(self, run_id: str, cancelled: Cancelled) -> None:
        """Publish the cancel once more: this connector accepted it, and another holds the leg."""
        asked = CancelCommand(run_id=run_id, by=cancelled.by, reason=cancelled.reason)
        subject = command_subject("connector", "cancel", run_id)
        await self._bus.publisher.publish(Message(subject, asked.dump(), {}))

    async def _say_lost(self, leg: Leg, gone: Outcome) -> Outcome:
        try:
            await leg.writer.write(gone.kind, orjson.dumps(gone.facts), leg=leg.number)
        except FenceConflict:
            log.info("run %s leg %d: it had ended", leg.run_id, leg.number)
            return TAKEN_OVER
        return gone

    async def is_held(self, run_id: str, last: Stored) -> bool:
        """Whether somebody sees the leg through that this frame belongs to."""
        pod = holder_of(last)
        if pod == self._pod:
            return self.works_on(run_id)
        return await self._claims.lives(pod)


def sending(label: str) -> Literal["outcome_unknown", "done"]:
    """What became of the decision that a leg was to send. `label` is of the leg's outcome."""
    return "outcome_unknown" if label == "outcome_unknown" else "done"
