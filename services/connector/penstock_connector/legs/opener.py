"""Opens a leg: the writes that come before the upstream is called, in an order that is crash-safe.

A connector may end between any two of these writes, or be suspended there until its lease has
expired. `tests/connector/model` checks every such case.
"""

from __future__ import annotations

import time
from typing import Any

import orjson

from penstock.bus import BusError, FenceConflict, RawWriter
from penstock.settings import AgentConfig
from penstock_connector.legs.leg import FRESH_S
from penstock_connector.legs.orders import Order
from penstock_connector.legs.outcome import lost
from penstock_connector.legs.registry import LegRegistry
from penstock_connector.legs.runner import LegRunner
from penstock_connector.state.retries import with_retries
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
        agent: AgentConfig | None,
        writer: RawWriter,
        facts: dict[str, Any],
        *,
        is_taken_over: bool = False,
    ) -> None:
        """Write the leg's records and its `open`, then let it run.

        `facts` are the payload of the `open`. `is_taken_over`: an earlier connector claimed the
        command. Without an agent of that name, the leg is opened and ended.

        Up to the `open`, a BusError leaves the command to be delivered again. From the `open` on
        the leg is ours, so every step is repeated while the bus is away.

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
                # 2. The place in the session's queue, before the `open`. Without this order, a leg
                # that clients saw start could be overtaken by one that they started afterwards.
                is_first = await self._join(order, agent)
                known = await stores.sessions.thread_id(order.session)
                order = order.named(known or self._runner.new_thread_id(order, agent))
                facts = {**facts, **_names(order)}
            if not is_first:
                # A successor must know that nothing was sent before the leg's turn came. Without
                # this field it would end a leg that only waited as one that may have called.
                facts = {**facts, "calls": False}
            # 3. The `open`, before the upstream is called. Without it, a successor could not tell
            # whether the upstream was called. The fence admits one `open` of a leg.
            await writer.write("open", orjson.dumps(facts), leg=order.leg)
        except Exception as error:
            if isinstance(error, FenceConflict) or not isinstance(error, BusError):
                # The leg is not ours. Without these two writes, the turn and the record would block
                # the session and keep others busy. After a BusError nobody knows whether the `open`
                # is stored, so both stay, and the command is delivered again.
                await stores.sessions.leave(order.session, run_id, stores.pod, order.leg)
                await stores.leg_records.delete(run_id)
            raise
        if is_taken_over:
            # 4. Clear away what earlier connectors left, after the `open` and not before. Until the
            # fence admits our `open`, a suspended connector may still be first, and then needs it.
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

    async def _join(self, order: Order, agent: AgentConfig) -> bool:
        return await self._stores.sessions.join(
            order.session,
            agent.id,
            order.command.session_id,
            self._runner.new_thread_id(order, agent),
            order.turn(self._stores.pod),
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
            # before the record is deleted, by which a successor would find the open sending
            await with_retries(lambda: stores.sendings.record(approval_id, "done", is_known=True))
        await with_retries(lambda: stores.leg_records.delete(order.run_id))


def _names(order: Order) -> dict[str, str]:
    """The session's two ids, where its server calls it otherwise."""
    if order.thread_id == order.command.session_id:
        return {}
    return {"session_id": order.command.session_id, "thread_id": order.thread_id}
