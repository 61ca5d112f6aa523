"""Opens a leg: makes the writes that come before the upstream's call, in a crash-safe order.

A connector may end between any two of these writes, or be suspended there until its lease has
expired. `tests/connector/model` checks every such case.
"""

from __future__ import annotations

import time
from typing import Any

import orjson

from penstock.bus import BusError, FenceConflict, RawWriter
from penstock.settings import ServerAgent
from penstock_connector.legs.leg import FRESH_S
from penstock_connector.legs.orders import Order
from penstock_connector.legs.outcome import lost
from penstock_connector.legs.registry import LegRegistry
from penstock_connector.legs.runner import LegRunner
from penstock_connector.state.retries import with_retries
from penstock_connector.state.session_queue import Joined
from penstock_connector.state.stores import Stores


class LegOpener:
    """Opens legs, and clears away what earlier connectors have left of them."""

    def __init__(self, stores: Stores, registry: LegRegistry, runner: LegRunner) -> None:
        self._stores = stores
        self._registry = registry
        self._runner = runner

    async def open(
        self,
        order: Order,
        agent: ServerAgent | None,
        writer: RawWriter,
        facts: dict[str, Any],
        *,
        is_taken_over: bool = False,
    ) -> None:
        """Write the leg's records and its `open`, then let it run.

        `facts` is the payload of the `open`. `is_taken_over`: an earlier connector claimed the
        command. If `agent` is None, no agent has the command's name, and the leg is opened and
        ended.

        If the bus fails before the `open` is written, the command is delivered again. Once the
        `open` is written, the leg is ours, so every step is repeated while the bus is away.

        Raises:
            FenceConflict: another connector has opened the leg, or the run has moved on.
            BusError: the bus is away.
        """
        stores, run_id = self._stores, order.run_id
        await self._registry.closed(run_id)
        order = order.after(writer.last)
        # 1. The record of the leg. Without it, nobody would find an open leg whose connector ended
        # right after the `open`.
        await stores.leg_records.put(run_id, order.record)
        recorded_at_s = time.monotonic()
        try:
            is_first = True
            if agent is not None:
                # 2. The place in the session's queue, before the `open`. In the other order, a leg
                # that clients saw start could be overtaken by a leg that they started afterwards.
                is_first, thread_id = await self._join(order, agent)
                order = order.named(thread_id)
                facts = {**facts, **_names(order)}
            if not is_first:
                # A successor must know that nothing was sent before the leg's turn came. Without
                # this field, a successor would treat a leg that only waited as a leg that may have
                # called the upstream.
                facts = {**facts, "calls": False}
            # 3. The `open`, before the upstream is called. Without it, a successor could not tell
            # whether the upstream was called. The fence admits one `open` of a leg.
            await writer.write("open", orjson.dumps(facts), leg=order.leg)
        except Exception as error:
            if isinstance(error, FenceConflict) or not isinstance(error, BusError):
                # The leg is not ours. Without these two writes, the turn would block the session,
                # and the record would make other connectors look for the leg. After a BusError,
                # nobody knows whether the `open` is stored. So the turn and the record stay, and
                # the command is delivered again.
                await stores.sessions.leave(order.session, run_id, stores.pod, order.leg)
                await stores.leg_records.delete(run_id)
            raise
        if is_taken_over:
            # 4. Clear away what earlier connectors left, after the `open` and not before. Until the
            # fence admits our `open`, a suspended connector may still write its own `open` first.
            # Then it needs its turn and its record.
            await with_retries(lambda: self._clear_predecessors(order))
        if time.monotonic() - recorded_at_s > FRESH_S:
            # 5. Another connector may have taken us for dead and deleted the record of a leg that
            # was not open yet. Without this write the open leg would have no record.
            await with_retries(lambda: stores.leg_records.put(run_id, order.record))
        if agent is None:
            await self._end_without_agent(order, writer)
            return
        await self._runner.run(order, agent, writer, is_queued=not is_first)

    async def delete_records_of_others(self, run_id: str, leg: int) -> None:
        """Delete the records that other connectors have of that leg, or of earlier legs."""
        records, pod = self._stores.leg_records, self._stores.pod
        for other, _ in await records.find(run_id=run_id):
            record, revision = await records.read(run_id, other)
            if other != pod and revision and (record is None or record.leg <= leg):
                await records.delete_of(other, run_id, revision)

    async def _join(self, order: Order, agent: ServerAgent) -> Joined:
        return await self._stores.sessions.join(
            order.session,
            agent.id,
            order.command.session_id,
            self._runner.new_thread_id(order, agent),
            order.turn(self._stores.pod),
            owner=order.command.user_id,
            lists_open_runs=agent.protocol == "agui",  # see `state/paused_session.py`
        )

    async def _clear_predecessors(self, order: Order) -> None:
        await self._stores.sessions.take_over(order.session, order.turn(self._stores.pod))
        await self.delete_records_of_others(order.run_id, order.leg)

    async def _end_without_agent(self, order: Order, writer: RawWriter) -> None:
        """End an open leg whose agent this connector's file does not name."""
        stores, approval_id = self._stores, order.approval_id
        unknown = lost("internal", f"no agent {order.command.agent} in this connector's file")
        await writer.write(unknown.kind, orjson.dumps(unknown.facts), leg=order.leg)
        if approval_id is not None:
            # This write comes before the deletion of the record: by the record, a successor would
            # find that the sending is still open.
            await with_retries(lambda: stores.sendings.record(approval_id, "done", is_known=True))
        await with_retries(lambda: stores.leg_records.delete(order.run_id))


def _names(order: Order) -> dict[str, str]:
    """The session's two ids; empty if the server uses the same id as the clients."""
    if order.thread_id == order.command.session_id:
        return {}
    return {"session_id": order.command.session_id, "thread_id": order.thread_id}
