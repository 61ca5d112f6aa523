"""Opens a leg: makes the writes that must come before the request to the agent server.

The writes have a fixed order, because a connector may die between any two of them. A connector may
also be suspended between two writes until its lease has expired. `tests/connector/model` checks
every such case.
"""

from __future__ import annotations

import time
from typing import Any

import orjson

from penstock.bus import BusError, FenceConflict, RawWriter
from penstock.bus.connection.retry import with_retries
from penstock.settings import ServerAgent
from penstock_connector.legs.leg_writer import FRESH_S
from penstock_connector.legs.orders import Order
from penstock_connector.legs.outcome import lost
from penstock_connector.legs.registry import LegRegistry
from penstock_connector.legs.runner import LegRunner
from penstock_connector.state.session_queue import Joined
from penstock_connector.state.stores import Stores


class LegOpener:
    """Opens legs, and deletes the records that earlier connectors have left of these legs."""

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
        """Write the leg's records and its `open`, and then start the leg.

        `facts` is the payload of the `open`. `is_taken_over` means that an earlier connector
        claimed the command. If the configuration has no agent of the command's name, `agent` is
        None, and the leg is opened and ended at once.

        If the bus fails before the `open` is written, the command is delivered again. Once the
        `open` is written, this connector holds the leg, so it repeats each further step while the
        bus does not answer. Raises FenceConflict if another connector has opened the leg, or the
        run has a new source frame.
        """
        stores, run_id = self._stores, order.run_id
        await self._registry.closed(run_id)
        order = order.after(writer.last)
        # 1. Write the record of the leg. If there were no record, no connector would find an open
        #    leg whose connector died right after the `open`.
        await stores.leg_records.put(run_id, order.record)
        recorded_at_s = time.monotonic()
        try:
            is_first = True
            if agent is not None:
                # 2. Take the place in the session's queue before the `open` is written. In the
                #    other order, clients could see this leg begin, and then start another leg. The
                #    later leg could get an earlier place.
                is_first, thread_id = await self._join(order, agent)
                order = order.with_thread_id(thread_id)
                facts = {**facts, **_names(order)}
            if not is_first:
                # The leg must wait for its turn. If this connector dies before the turn comes, its
                # successor reads here that nothing was sent. If the field were missing, the
                # successor would assume that the agent server may have been called.
                facts = {**facts, "calls": False}
            # 3. Write the `open` before the agent server is called. In the other order, a successor
            #    could not know whether the agent server was called. The fence accepts only one
            #    `open` of a leg.
            await writer.write("open", orjson.dumps(facts), leg=order.leg)
        except Exception as error:
            if isinstance(error, FenceConflict) or not isinstance(error, BusError):
                # This connector does not hold the leg. The place in the queue would block the
                # session, and the record would make other connectors look for the leg, so both are
                # deleted. After a BusError, it is unknown whether the `open` is stored. So both are
                # kept, and the command is delivered again.
                await stores.sessions.leave(order.session, run_id, stores.pod, order.leg)
                await stores.leg_records.delete(run_id)
            raise
        if is_taken_over:
            # 4. Delete the records of earlier connectors after the `open` is written. A suspended
            #    connector may still write its own `open` before the fence has accepted the `open`
            #    of this connector. That connector then needs its place in the queue and its record.
            await with_retries(lambda: self._clear_predecessors(order))
        if time.monotonic() - recorded_at_s > FRESH_S:
            # 5. Write the record again if the writes took long. Another connector may have
            #    considered this connector dead. That connector may then have deleted the record of
            #    the leg, because the leg was not open yet.
            await with_retries(lambda: stores.leg_records.put(run_id, order.record))
        if agent is None:
            await self._end_without_agent(order, writer)
            return
        await self._runner.start(order, agent, writer, is_queued=not is_first)

    async def delete_records_of_others(self, run_id: str, leg: int) -> None:
        """Delete other connectors' records of this leg, and of the run's earlier legs."""
        records, pod = self._stores.leg_records, self._stores.pod
        for other, _ in await records.find(run_id=run_id):
            found = await records.read(run_id, other) if other != pod else None
            if found is not None and found.record.leg <= leg:
                await records.delete_of(other, run_id, found.revision)

    async def _join(self, order: Order, agent: ServerAgent) -> Joined:
        return await self._stores.sessions.join(
            order.session,
            agent.id,
            order.command.session_id,
            self._runner.new_thread_id(order, agent),
            order.queued_leg(self._stores.pod),
            owner=order.command.user_id,
            lists_open_runs=self._runner.upstream(agent).pauses_thread,
        )

    async def _clear_predecessors(self, order: Order) -> None:
        await self._stores.sessions.take_over(order.session, order.queued_leg(self._stores.pod))
        await self.delete_records_of_others(order.run_id, order.leg)

    async def _end_without_agent(self, order: Order, writer: RawWriter) -> None:
        stores, approval_id = self._stores, order.approval_id
        unknown = lost("internal", f"no agent {order.command.agent} in this connector's file")
        await writer.write(unknown.frame_kind, orjson.dumps(unknown.facts), leg=order.leg)
        if approval_id is not None:
            # The result is recorded before the leg's record is deleted. If this process dies
            # between the two writes, a successor finds the leg's record and completes the work.
            await with_retries(lambda: stores.sendings.record(approval_id, "done", is_known=True))
        await with_retries(lambda: stores.leg_records.delete(order.run_id))


def _names(order: Order) -> dict[str, str]:
    """Return the session's two ids; nothing if the server uses the same id as the clients."""
    if order.thread_id == order.command.session_id:
        return {}
    return {"session_id": order.command.session_id, "thread_id": order.thread_id}
