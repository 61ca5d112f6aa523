"""Legs that change hands: those of dead connectors, and those that a stopping one hands over.

The fence decides. Who goes on with a leg writes a `claim` after the last frame that it saw, before
it asks the upstream for anything; one that comes second, or wakes up, is refused.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

import orjson
from pydantic import ValidationError

from penstock import telemetry
from penstock.bus import Bus, BusError, FenceConflict, Msg, Retry, Stored, Subscription
from penstock.bus.messages import raw_frame
from penstock.bus.read.direct import STORED_AT
from penstock.bus.records import CancelCommand
from penstock.bus.subjects import handover, session_key
from penstock.settings import AgentConfig, Config
from penstock_connector.legs.history import LegHistory
from penstock_connector.legs.orders import Order, Orders
from penstock_connector.legs.outcome import RELEASED, ended, lost
from penstock_connector.legs.registry import STOPPED, Legs, sending
from penstock_connector.settings import ConnectorSettings
from penstock_connector.state.claims import Claims, patiently
from penstock_connector.state.leg_note import Held
from penstock_connector.state.run_state import CLOSED, Runs, holder_of, kind_of, leg_of

log = logging.getLogger(__name__)

AT_ONCE = 16  # legs that change hands side by side
FULL_SWEEP_S = 30.0
LOOK_FOR_PEERS_S = 1.0
HAND_OVER_S = 10.0
DIED = "the connector {}, which held the connection, died"


class Succession:
    """Goes on with legs that others held, and finds others who go on with ours."""

    def __init__(
        self,
        bus: Bus,
        config: Config,
        settings: ConnectorSettings,
        pod: str,
        runs: Runs,
        claims: Claims,
        legs: Legs,
        orders: Orders,
    ) -> None:
        self._bus = bus
        self._config = config
        self._settings = settings
        self._pod = pod
        self._runs = runs
        self._claims = claims
        self._legs = legs
        self._orders = orders
        self._side_by_side = asyncio.Semaphore(AT_ONCE)
        self._living: set[str] = set()  # as last seen
        self._dead: set[str] = set()  # whose legs are not all dealt with
        self._gone: set[str] = set()  # who seems to be dead: what moves freely is taken over
        self._swept_at = float("-inf")
        self._orphans: set[str] = set()  # runs that we note and do not hold, at the last sweep
        self._offers: Subscription | None = None
        self._taking: set[asyncio.Task[None]] = set()

    # those of dead connectors

    def left(self, pod: str) -> None:
        """A connector's lease has run out, or was given back."""
        self._dead.add(pod)

    def gone(self, pod: str) -> None:
        """Nobody answers for a connector: it was killed, or is cut off for a moment."""
        self._gone.add(pod)

    async def reap(self) -> None:
        """Deal with the legs of connectors that live no more."""
        while self._gone:
            pod = self._gone.pop()
            await self._of_each_leg(pod, self._take_freely)
        await self._look_for_dead()
        for pod in tuple(self._dead):
            if await self._claims.lives(pod):
                if self._claims.sees_others():
                    self._dead.discard(pod)
            elif not await self._of_each_leg(pod, self._settle):
                self._dead.discard(pod)

    async def _look_for_dead(self) -> None:
        living = await self._claims.living()
        if time.monotonic() - self._swept_at > FULL_SWEEP_S:
            noted = await self._claims.active()
            await self._look_at_own({run_id for pod, run_id in noted if pod == self._pod})
            away = {pod for pod, _ in noted} - living
            if self._claims.sees_others():
                self._dead |= away
                self._swept_at = time.monotonic()
            else:
                self._claims.suspect(away)
        if self._claims.sees_others():
            self._dead |= self._living - living
            self._living = living

    async def _look_at_own(self, noted: set[str]) -> None:
        """What we note and do not hold, twice in a row, an error of ours has left behind."""
        orphans = {run_id for run_id in noted if not self._legs.works_on(run_id)}
        for run_id in orphans & self._orphans:
            log.warning("run %s: it is noted as held here, and is not", run_id)
            telemetry.RUNS_STUCK.labels("not_held_here").inc()
            await self._inherit(self._pod, run_id, self._settle)
        self._orphans = orphans

    async def _of_each_leg(
        self, pod: str, deal_with: Callable[[str, str], Awaitable[None]]
    ) -> bool:
        """False when it has none."""
        held = await self._claims.active(pod)
        random.shuffle(held)  # the others are at it, too
        await asyncio.gather(*(self._inherit(pod, run_id, deal_with) for _, run_id in held))
        return bool(held)

    async def _inherit(
        self, pod: str, run_id: str, deal_with: Callable[[str, str], Awaitable[None]]
    ) -> None:
        try:
            async with self._side_by_side:
                with self._legs.alone_with(run_id):
                    await deal_with(pod, run_id)
        except (BusError, Retry) as error:
            log.warning("run %s of %s, which is dead: not now: %s", run_id, pod, error)
        except Exception:  # one leg must not keep the others
            log.exception("run %s of %s, which is dead", run_id, pod)

    async def _take_freely(self, pod: str, run_id: str) -> None:
        """Go on with a leg if nothing is lost by it, should its holder live after all."""
        last = await self._runs.tail(run_id)
        if last is not None and kind_of(last) not in CLOSED and holder_of(last) == pod:
            await self.adopt(run_id, last, DIED.format(pod), freely=True)

    async def _settle(self, pod: str, run_id: str) -> None:
        last = await self._runs.tail(run_id)
        if last is not None and kind_of(last) not in CLOSED:
            noted = await self._claims.held(run_id, pod)
            if noted is not None and noted.leg < leg_of(last):
                # it died between the end of that leg and its turn; the next leg has begun since
                await self._clear(pod, run_id)
                return
            if holder_of(last) != pod and await self._legs.is_held(run_id, last):
                return  # somebody was first, and puts things in order
            log.warning("run %s: its connector %s is dead", run_id, pod)
            if await self.adopt(run_id, last, DIED.format(holder_of(last))):
                return
            last = await self._runs.tail(run_id)
        if last is None or kind_of(last) in CLOSED:
            # without an `open` its command is delivered again
            await self._clear(pod, run_id)

    async def adopt_unless_held(self, run_id: str, last: Stored) -> None:
        """Deal with a leg of which a command tells once more. The caller is alone with the run."""
        if kind_of(last) in CLOSED:
            return
        if not self._claims.sees_others() and await self._claims.lives(holder_of(last)):
            raise Retry(1)  # nobody can tell yet
        if not await self._legs.is_held(run_id, last):
            await self.adopt(run_id, last, DIED.format(holder_of(last)))

    async def adopt(
        self,
        run_id: str,
        last: Stored,
        why: str,
        cancelled: CancelCommand | None = None,
        *,
        freely: bool = False,
    ) -> bool:
        """Go on with an open leg that nobody holds, or say how it ended.

        True when it is ours now; else it has ended, or somebody else was first. Of a run that was
        cancelled, or has ended without the leg, the upstream is only asked to stop. `freely`: only
        where nothing is lost should its holder live; else nothing is done. The caller is alone
        with the run.
        """
        holder = holder_of(last)
        cancelled = cancelled or await self._runs.cancel_of(run_id)
        found = await self._order(run_id, last)
        if found is None:
            if not freely:
                await self._end(run_id, last, why, cancelled)
            return False
        order, agent = found
        history = await self._history(order, agent, last)
        if freely and not self._moves_freely(agent, history):
            return False
        await self._legs.let_go_of(run_id)
        await self._claims.begin(run_id, order.held)
        writer = self._runs.writer(run_id, last)
        try:
            claim = await writer.write("claim", orjson.dumps({"calls": False}), leg=order.leg)
        except FenceConflict:
            await self._claims.end(run_id)
            return False
        mine = order.turn(self._pod)
        await patiently(lambda: self._legs.sessions.take_over(order.session, mine))
        if order.approval_id is not None:
            approval_id = order.approval_id
            await patiently(lambda: self._claims.record_sending(approval_id, "claimed", holder))
        await patiently(lambda: self._legs.forget_others(run_id, order.leg))
        history.taken(await patiently(lambda: self._runs.stored_at(claim)))
        await self._legs.see_through(
            order,
            agent,
            writer,
            queued=not history.called,
            history=history if history.called else None,
            why=why,
            cancelled=cancelled,
        )
        return True

    def _moves_freely(self, agent: AgentConfig, history: LegHistory) -> bool:
        """Whether two may hold the leg for a moment: the server keeps its events for both."""
        if not history.called:
            return True  # the fence lets only one call
        seen = history.progress.seen
        came_so_far = seen.last_event_index is not None or seen.last_id is not None
        return came_so_far and self._legs.upstream(agent).outlives_us(seen)

    async def _order(self, run_id: str, last: Stored) -> tuple[Order, AgentConfig] | None:
        """What the leg's holder has noted; None where that is not enough to go on."""
        held = await self._claims.held(run_id, holder_of(last))
        if held is None or held.leg != leg_of(last):
            return None
        try:
            order = await self._orders.again(held)
        except (LookupError, ValidationError) as error:
            log.warning("run %s: its command cannot be carried out again: %s", run_id, error)
            return None
        agent = self._config.agent(order.command.agent)
        return (order, agent) if agent is not None else None

    async def _history(self, order: Order, agent: AgentConfig, last: Stored) -> LegHistory:
        """The leg up to `last`, as its holder saw it."""
        upstream = self._legs.upstream(agent)
        history = LegHistory(order.leg, upstream.watch, self._settings.max_frame_bytes)
        history.progress.seen.run_id = order.held.upstream_run_id
        async for stored in self._runs.frames(order.run_id, order.held.after, last):
            history.feed(raw_frame(stored), stored.headers[STORED_AT])
        history.progress.seen.refusal = None  # of a connection that is no more
        return history

    async def _end(
        self, run_id: str, last: Stored, why: str, cancelled: CancelCommand | None = None
    ) -> None:
        """The last word on a leg that nobody can go on with."""
        if cancelled is not None:
            told = {"by": cancelled.by, "reason": cancelled.reason}
            outcome = ended("cancelled", **told, confirmed=False)
        elif kind_of(last) in ("open", "claim"):
            # it may have been calling the upstream, or not yet
            text = f"{why}; whether the upstream was called is not known"
            outcome = lost("outcome_unknown", text)
        else:
            outcome = lost("upstream_lost", why)
        await self._runs.end(run_id, last, outcome.kind, outcome.facts)

    async def _clear(self, pod: str, run_id: str) -> None:
        """Away with what a dead connector has noted of a leg that is over, or never began."""
        held, revision = await self._claims.noted(run_id, pod)
        record = await self._runs.record(run_id)
        if record is not None:
            key = session_key(record.user_id, record.agent, record.session_id)
            leg = held.leg if held is not None else None
            await self._legs.sessions.leave(key, run_id, pod, leg)
        if held is not None:
            await self.record_sent(held, run_id)
        if revision:
            await self._claims.end_of(pod, run_id, revision)

    async def record_sent(self, held: Held, run_id: str) -> None:
        """What became of a decision that a connector was to send, once its leg is over."""
        last = await self._runs.tail(run_id)
        if held.approval_id is None or last is None or leg_of(last) < held.leg:
            return  # nothing was sent
        if leg_of(last) > held.leg:
            await self._claims.record_sending(held.approval_id, "done", is_known=True)
        elif kind_of(last) in CLOSED:
            state = sending(str(orjson.loads(last.payload).get("code")))
            await self._claims.record_sending(held.approval_id, state, is_known=True)

    # those of stopping connectors

    async def accept(self) -> None:
        """Let others ask us to go on with their legs."""
        self._offers = await self._bus.subscribe(handover(), self._on_offer, queue="connectors")

    async def refuse(self) -> None:
        """Let nobody ask that any more, and finish what was accepted."""
        if self._offers is not None:
            await self._offers.unsubscribe()
            self._offers = None
        if self._taking:
            await asyncio.wait(self._taking)

    async def drain(self, grace_s: float) -> None:
        """Hand over what loses nothing by it, as soon as another is there; let the rest end."""
        loop = asyncio.get_running_loop()
        until = loop.time() + grace_s
        offered: set[str] = set()
        while (legs := self._legs.held) and loop.time() < until:
            free = {run_id for run_id, (leg, _) in legs.items() if leg.moves_freely} - offered
            if free and await self._somebody_is_there():
                offered |= free
                await asyncio.gather(*map(self._hand_over, free))
            tasks = [task for _, task in self._legs.held.values()]
            if tasks:
                left_s = max(0.0, until - loop.time())
                await asyncio.wait(tasks, timeout=min(LOOK_FOR_PEERS_S, left_s))

    async def stop(self) -> None:
        """Hand over what is left, if another is there; say of the rest that it is lost."""
        try:
            if self._legs.held and await self._somebody_is_there():
                await asyncio.gather(*map(self._hand_over, self._legs.held))
        finally:
            await self._legs.stop()

    async def _somebody_is_there(self) -> bool:
        try:
            await self._bus.request(handover(), b"{}", LOOK_FOR_PEERS_S)
        except BusError:
            return False
        return True

    async def _hand_over(self, run_id: str) -> None:
        try:
            async with self._side_by_side:
                await self._offer(run_id)
        except (BusError, Retry) as error:
            log.warning("run %s: not handed over: %s", run_id, error)
        except Exception:  # one leg must not keep the others
            log.exception("run %s: not handed over", run_id)

    async def _offer(self, run_id: str) -> None:
        held = self._legs.held.get(run_id)
        if held is None:
            return  # it has ended while others were handed over
        leg, task = held
        leg.requests.release()
        await asyncio.wait({task})
        if task.result() != RELEASED:
            return
        try:
            offer = orjson.dumps({"run_id": run_id})
            answer = await self._bus.request(handover(), offer, HAND_OVER_S)
            if orjson.loads(answer.data)["taken"]:
                return
        except BusError as error:
            log.warning("run %s: nobody has said that they go on with it: %s", run_id, error)
        with self._legs.alone_with(run_id):
            await patiently(lambda: self._keep(run_id))

    async def _keep(self, run_id: str) -> None:
        """Go on with it ourselves, if it is still ours."""
        last = await self._runs.tail(run_id)
        if last is not None and kind_of(last) not in CLOSED and holder_of(last) == self._pod:
            await self.adopt(run_id, last, STOPPED)

    async def _on_offer(self, msg: Msg) -> None:
        """`{}` asks whether anybody is there; `{run_id}` to go on with its leg."""
        run_id = orjson.loads(msg.data).get("run_id")
        if run_id is None:
            await self._bus.client.publish(msg.reply, b"{}")
            return
        task = asyncio.create_task(self._take(run_id, msg.reply))
        self._taking.add(task)
        task.add_done_callback(self._taking.discard)

    async def _take(self, run_id: str, reply: str) -> None:
        taken = False
        try:
            with self._legs.alone_with(run_id):
                last = await self._runs.tail(run_id)
                if last is not None and kind_of(last) not in CLOSED and self._legs.room > 0:
                    why = f"the connector {holder_of(last)}, which held the connection, was stopped"
                    taken = await self.adopt(run_id, last, why)
        except (BusError, Retry) as error:
            log.warning("run %s: not taken: %s", run_id, error)
        except Exception:  # whoever asked goes on with it
            log.exception("run %s: not taken", run_id)
        await self._bus.client.publish(reply, orjson.dumps({"taken": taken}))
