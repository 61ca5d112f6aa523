"""Hands the legs of a stopping connector over to other connectors, and accepts legs of others.

A connector that stops releases a leg, and then sends the core request `handover.leg`. The request
`{}` asks whether any other connector exists. The request `{"run_id": …}` asks another connector to
take the leg of this run. The answer is `{"taken": true}` or `{"taken": false}`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import orjson

from penstock.bus import Bus, BusError, Msg, Retry, Subscription
from penstock.bus.connection.retry import until_answered, with_retries
from penstock.bus.subjects import handover
from penstock_connector.legs.outcome import LegEnd
from penstock_connector.legs.registry import STOPPED, LegRegistry
from penstock_connector.legs.runner import LegRunner
from penstock_connector.state.run_state import CLOSED, holder_of, kind_of
from penstock_connector.state.stores import Stores
from penstock_connector.succession.takeover import Takeover

log = logging.getLogger(__name__)

AT_ONCE: Final = 16  # the most legs that are handed over at the same time
# The most seconds to wait for another connector's answer to the request `{}`, and between two such
# requests.
LOOK_FOR_PEERS_S: Final = 1.0
# the most seconds to wait for another connector's answer to the offer of a leg
HAND_OVER_S: Final = 10.0


class Handover:
    """Hands this connector's legs over when it stops, and takes legs of other connectors."""

    def __init__(
        self, stores: Stores, registry: LegRegistry, runner: LegRunner, takeover: Takeover
    ) -> None:
        self._bus: Bus = stores.bus
        self._stores = stores
        self._registry = registry
        self._runner = runner
        self._takeover = takeover
        self._side_by_side = asyncio.Semaphore(AT_ONCE)
        self._offers: Subscription | None = None
        self._taking: set[asyncio.Task[None]] = set()

    # Taking legs of other connectors

    async def accept(self) -> None:
        self._offers = await until_answered(
            "subscribing to offers of legs",
            lambda: self._bus.subscribe(handover(), self._on_offer, queue="connectors"),
        )

    async def refuse(self) -> None:
        """Accept no more offers, and complete the takeovers of accepted offers."""
        if self._offers is not None:
            await self._offers.unsubscribe()
            self._offers = None
        if self._taking:
            await asyncio.wait(self._taking)

    async def _on_offer(self, msg: Msg) -> None:
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
            with self._registry.exclusively(run_id):
                last = await self._stores.runs.tail(run_id)
                is_open = last is not None and kind_of(last) not in CLOSED
                if last is not None and is_open and self._registry.free_legs > 0:
                    reason = (
                        f"the connector {holder_of(last)}, which held the connection, was stopped"
                    )
                    taken = await self._takeover.take_over(run_id, last, reason)
        except (BusError, Retry) as error:
            log.warning("run %s: its leg is not taken over: %s", run_id, error)
        except Exception:  # without an answer, the stopping connector would wait for 10 s
            log.exception("run %s: its leg is not taken over", run_id)
        try:
            await self._bus.client.publish(reply, orjson.dumps({"taken": taken}))
        except Exception as error:
            # The connector that made the offer then reads in RAW which connector holds the leg.
            log.warning("run %s: the offer of its leg is not answered: %r", run_id, error)

    # Handing over this connector's legs

    async def drain(self, grace_s: float) -> None:
        """Hand over the legs that can move without a loss; let the others end within `grace_s`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + grace_s
        offered: set[str] = set()
        while (legs := self._registry.legs) and loop.time() < until:
            free = {
                run_id for run_id, (leg, _) in legs.items() if leg.can_move_without_loss
            } - offered
            if free and await self._has_peers():
                offered |= free
                await asyncio.gather(*map(self._hand_over, free))
            tasks = [task for _, task in self._registry.legs.values()]
            if tasks:
                left_s = max(0.0, until - loop.time())
                await asyncio.wait(tasks, timeout=min(LOOK_FOR_PEERS_S, left_s))

    async def stop(self) -> None:
        """Hand over the remaining legs if another connector exists; then end those that are left as
        lost."""
        try:
            if self._registry.legs and await self._has_peers():
                await asyncio.gather(*map(self._hand_over, self._registry.legs))
        finally:
            await self._runner.stop()
            await self._registry.stop()

    async def _has_peers(self) -> bool:
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
            log.warning("run %s: its leg is not handed over: %s", run_id, error)
        except Exception:  # one leg must not prevent the handover of all other legs
            log.exception("run %s: its leg is not handed over", run_id)

    async def _offer(self, run_id: str) -> None:
        held = self._registry.legs.get(run_id)
        if held is None:
            return  # the leg has ended while others were handed over
        # The leg is released before it is offered. In the other order, two connectors would read
        # the agent server's stream at once, and only the fence would stop this connector.
        held.leg.stop_requests.release()
        await asyncio.wait({held.task})
        if held.task.result().end is not LegEnd.RELEASED:
            return
        try:
            offer = orjson.dumps({"run_id": run_id})
            answer = await self._bus.request(handover(), offer, HAND_OVER_S)
            if orjson.loads(answer.data)["taken"]:
                return
        except BusError as error:
            log.warning("run %s: no connector says that it takes the leg: %s", run_id, error)
        with self._registry.exclusively(run_id):
            await with_retries(lambda: self._keep(run_id))

    async def _keep(self, run_id: str) -> None:
        """Take the leg back if RAW still names this connector as its holder; nobody else would end
        it."""
        last = await self._stores.runs.tail(run_id)
        if last is not None and kind_of(last) not in CLOSED and holder_of(last) == self._stores.pod:
            await self._takeover.take_over(run_id, last, STOPPED)
