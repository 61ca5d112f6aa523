"""Takes over one leg: continues it if the agent server allows this, and ends it if not.

The fence decides which connector takes a leg over. The connector writes a `claim` after the last
frame that it has read, before it sends any request to the agent server. From then on, the fence
refuses the writes of all other connectors, even of an earlier holder that was only suspended.
"""

from __future__ import annotations

import logging
from typing import Final

import orjson
from pydantic import ValidationError

from penstock.bus import FenceConflict, Retry, Stored
from penstock.bus.connection.retry import with_retries
from penstock.bus.messages import STORED_AT, raw_frame
from penstock.bus.records.runs import CancelCommand
from penstock.settings import Config, ServerAgent
from penstock_connector.legs.leg import survives_disconnect
from penstock_connector.legs.opener import LegOpener
from penstock_connector.legs.orders import Order, Orders
from penstock_connector.legs.outcome import ended_as_cancelled, lost
from penstock_connector.legs.progress import LegHistory
from penstock_connector.legs.registry import LegRegistry
from penstock_connector.legs.runner import LegRunner, sending_state
from penstock_connector.state.leg_record import LegRecord
from penstock_connector.state.run_state import CLOSED, holder_of, kind_of, leg_of
from penstock_connector.state.stores import Stores

log = logging.getLogger(__name__)

DIED: Final = "the connector {}, which held the connection, died"


class Takeover:
    """Takes over legs whose holder is dead, or has released the leg for another connector."""

    def __init__(
        self,
        stores: Stores,
        config: Config,
        *,
        max_frame_bytes: int,
        orders: Orders,
        registry: LegRegistry,
        opener: LegOpener,
        runner: LegRunner,
    ) -> None:
        self._stores = stores
        self._config = config
        self._max_frame_bytes = max_frame_bytes
        self._orders = orders
        self._registry = registry
        self._opener = opener
        self._runner = runner

    async def is_held(self, run_id: str, last: Stored) -> bool:
        """Return whether the connector that wrote the frame `last` still works on the run."""
        pod = holder_of(last)
        if pod == self._stores.pod:
            return self._registry.works_on(run_id)
        return await self._stores.connectors.is_alive(pod)

    async def take_over_unless_held(self, run_id: str, last: Stored) -> None:
        """Take the leg over if its holder is dead; the caller works exclusively on the run. Raises
        Retry if it is unknown at present whether the holder is alive."""
        if kind_of(last) in CLOSED:
            return
        connectors, pod = self._stores.connectors, holder_of(last)
        if not connectors.sees_others() and await connectors.is_alive(pod):
            raise Retry(1)
        # The caller works exclusively on the run, so `is_held` is True for every leg of this
        # connector, even for a leg without a task. The reaper finds such a leg.
        if not await self.is_held(run_id, last):
            await self.take_over(run_id, last, DIED.format(pod))

    async def take_over(
        self,
        run_id: str,
        last: Stored,
        reason: str,
        cancelled: CancelCommand | None = None,
        *,
        only_without_loss: bool = False,
    ) -> bool:
        """Continue an open leg that no connector holds, or end it; return whether it is held here
        now.

        `last` is the run's last source frame. `reason` tells why the leg is taken over; it is part
        of the error if the leg ends as lost. If the run was cancelled, or has ended although the
        leg is open, the leg only asks the agent server to stop. With `only_without_loss`, the
        earlier holder may be alive. The leg is then taken over only if nothing is lost while two
        connectors hold the leg for a moment. The caller works exclusively on the run. After a
        BusError, the leg is unchanged, or has a record of this connector.
        """
        stores, pod = self._stores, self._stores.pod
        holder = holder_of(last)
        cancelled = cancelled or await stores.runs.cancel_that_forbids_continuing(run_id)
        found = await self._order(run_id, last)
        if found is None:
            if not only_without_loss:
                await self._end(run_id, last, reason, cancelled)
            return False
        order, agent = found
        history = await self._history(order, agent, last)
        if only_without_loss and not self._can_move_without_loss(order, agent, history):
            return False
        await self._registry.release(run_id)
        # 1. Write this connector's record of the leg. If there were no record, no connector would
        #    find the leg if this process died right after the `claim`.
        await stores.leg_records.put(run_id, order.record)
        writer = stores.runs.writer(run_id, last)
        try:
            # 2. Write the `claim`, which the fence guards. Without the `claim`, two connectors
            #    could call the agent server for one leg, and the earlier holder could still write
            #    frames.
            claim = await writer.write("claim", orjson.dumps({"calls": False}), leg=order.leg)
        except FenceConflict:
            # This connector does not hold the leg. Its record would make other connectors look for
            # the leg here.
            await stores.leg_records.delete(run_id)
            return False
        # 3. Take the leg's place in the queue after the `claim`, because only the leg's holder may
        #    take the place. If this connector did not take the place, the queue would still name
        #    the dead connector, and the next leg would delete the place.
        mine = order.queued_leg(pod)
        await with_retries(lambda: stores.sessions.take_over(order.session, mine))
        if (approval_id := order.approval_id) is not None:
            # 4. Take over the claim of the sending. If the claim still named the dead connector,
            #    this connector could not record the result of the sending.
            await with_retries(lambda: stores.sendings.record(approval_id, "claimed", holder))
        # 5. Delete the records of earlier holders. This step is the last one, because the records
        #    show a successor that steps are missing.
        await with_retries(lambda: self._opener.delete_records_of_others(run_id, order.leg))
        history.taken(await with_retries(lambda: stores.runs.stored_at(run_id, claim)))
        await self._runner.start(
            order,
            agent,
            writer,
            is_queued=not history.may_have_called_server,
            history=history if history.may_have_called_server else None,
            reason=reason,
            cancelled=cancelled,
        )
        return True

    async def record_sending(self, record: LegRecord, run_id: str) -> None:
        last = await self._stores.runs.tail(run_id)
        if record.approval_id is None or last is None or leg_of(last) < record.leg:
            return  # no decision was sent
        if leg_of(last) > record.leg:
            await self._stores.sendings.record(record.approval_id, "done", is_known=True)
        elif kind_of(last) in CLOSED:
            state = sending_state(orjson.loads(last.payload).get("code"))
            await self._stores.sendings.record(record.approval_id, state, is_known=True)

    def _can_move_without_loss(self, order: Order, agent: ServerAgent, history: LegHistory) -> bool:
        """Return whether two connectors may hold the leg for a moment without any loss."""
        if not history.may_have_called_server:
            # the agent server was not called, and the fence lets only one connector call it
            return True
        seen = history.progress.seen
        has_position = seen.last_event_index is not None or seen.last_id is not None
        return has_position and survives_disconnect(
            self._runner.upstream(agent), seen, order.run_id
        )

    async def _order(self, run_id: str, last: Stored) -> tuple[Order, ServerAgent] | None:
        """Return the order that the leg's holder has recorded, and its agent; None if data is
        missing."""
        found = await self._stores.leg_records.read(run_id, holder_of(last))
        if found is None or found.record.leg != leg_of(last):
            return None
        try:
            order = await self._orders.of_record(found.record)
        except (LookupError, ValidationError) as error:
            log.warning("run %s: its command cannot be carried out again: %s", run_id, error)
            return None
        agent = self._config.server_agent(order.command.agent)
        return (order, agent) if agent is not None else None

    async def _history(self, order: Order, agent: ServerAgent, last: Stored) -> LegHistory:
        upstream = self._runner.upstream(agent)
        history = LegHistory(order.leg, upstream.watch, self._max_frame_bytes)
        history.progress.run_id = order.run_id
        history.progress.seen.run_id = order.record.upstream_run_id
        async for stored in self._stores.runs.frames(order.run_id, order.record.after, last):
            history.feed(raw_frame(stored), stored.headers[STORED_AT])
        # An earlier refusal concerned a connection that is closed now, so it does not count any
        # more.
        history.progress.seen.refusal = None
        return history

    async def _end(
        self, run_id: str, last: Stored, reason: str, cancelled: CancelCommand | None
    ) -> None:
        if cancelled is not None:
            outcome = ended_as_cancelled(cancelled.facts, confirmed=False)
        elif kind_of(last) in ("open", "claim"):
            text = f"{reason}; whether the upstream was called is not known"
            outcome = lost("outcome_unknown", text)
        else:
            outcome = lost("upstream_lost", reason)
        await self._stores.runs.end(run_id, last, outcome.frame_kind, outcome.facts)
