"""Runs each leg of this connector in its own task, and updates the leg's records at the end."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from functools import partial
from typing import Any, Final

import httpx
from pydantic import ValidationError

from penstock import log_fields, telemetry
from penstock.bus import FenceConflict, Message, Msg, RawWriter, Subscription
from penstock.bus.budget import Budget
from penstock.bus.connection.retry import with_retries
from penstock.bus.records.legs import SendingState
from penstock.bus.records.runs import CancelCommand
from penstock.bus.subjects import command as command_subject
from penstock.bus.subjects import control
from penstock.settings import ServerAgent
from penstock.tracing import spans
from penstock_connector.legs.body import Flush
from penstock_connector.legs.diagnosis import Diagnosis
from penstock_connector.legs.leg import Leg
from penstock_connector.legs.leg_span import span_of
from penstock_connector.legs.leg_stream import LegSpec, Steps
from penstock_connector.legs.leg_writer import LegWriter
from penstock_connector.legs.orders import Order, Orders
from penstock_connector.legs.outcome import TAKEN_OVER, LegEnd, Outcome, lost
from penstock_connector.legs.progress import LegHistory
from penstock_connector.legs.registry import STOPPED, LegRegistry
from penstock_connector.legs.response import Resources
from penstock_connector.settings import ConnectorSettings
from penstock_connector.state.session_queue import require_at_rest
from penstock_connector.state.stores import Stores
from penstock_connector.upstreams import upstreams
from penstock_connector.upstreams.base import Call, Upstream, thread_id

log = logging.getLogger(__name__)

BROKEN: Final = lost("internal", "the connector failed; its log has the details")


class LegRunner:
    """Runs legs, and has the objects that all legs share: budgets, adapters, the HTTP client."""

    def __init__(
        self,
        stores: Stores,
        settings: ConnectorSettings,
        client: httpx.AsyncClient,
        orders: Orders,
        registry: LegRegistry,
    ) -> None:
        self._stores = stores
        self._bus = stores.bus
        self._orders = orders
        self._registry = registry
        self._callers_known = settings.auth.requires_credentials
        self._diagnosis = Diagnosis(client)
        self._upstreams = upstreams(stores.bus, client)
        self._resources = Resources(
            client,
            settings,
            Budget(settings.max_total_buffered_bytes),
            Budget(settings.max_total_frame_bytes),
            stores.bus.clock.stamp,
            Flush(),
        )

    def upstream(self, agent: ServerAgent) -> Upstream[Any]:
        return self._upstreams[agent.protocol]

    def new_thread_id(self, order: Order, agent: ServerAgent) -> str:
        """Return the id that the order's session gets at the agent server if the session is new."""
        return thread_id(agent, order.command, callers_known=self._callers_known)

    async def stop(self) -> None:
        await self._diagnosis.stop()

    async def start(
        self,
        order: Order,
        agent: ServerAgent,
        writer: RawWriter,
        *,
        is_queued: bool = False,
        history: LegHistory | None = None,
        reason: str = "",
        cancelled: CancelCommand | None = None,
    ) -> None:
        """Register the leg and start its task; the caller has written the leg's `open` or `claim`.

        `LegSpec` explains `is_queued`, `history` and `reason`. With `cancelled`, the leg only asks
        the agent server to stop.
        """
        run_id, upstream = order.run_id, self.upstream(agent)
        if not order.thread_id:
            known = await with_retries(lambda: self._stores.sessions.thread_id(order.session))
            order = order.with_thread_id(known or self.new_thread_id(order, agent))
        spec = LegSpec(
            run_id=run_id,
            number=order.leg,
            agent=agent,
            upstream=upstream,
            resources=self._resources,
            steps=Steps(
                prepare=partial(self._prepare, order, agent, was_called=history is not None),
                turn=partial(self._turn, order),
                remember=partial(self._remember, order),
            ),
            is_queued=is_queued,
            history=history,
            reason=reason,
        )
        leg = Leg(spec, LegWriter(writer, run_id, order.leg, agent))
        if cancelled is not None:
            leg.stop_requests.cancel(cancelled)
        # The leg subscribes before it calls the agent server. In the other order, a cancel could
        # arrive between the call and the subscription. Such a cancel would find no holder, and
        # would end the run while the agent server continues the run.
        listening = await with_retries(
            lambda: self._bus.subscribe(control(run_id), partial(self._on_control, leg))
        )
        name = f"leg {run_id}/{order.leg}"
        task = asyncio.create_task(self._run(leg, listening, order), name=name)
        self._registry.register(leg, task)

    async def _on_control(self, leg: Leg, msg: Msg) -> None:
        try:
            asked = CancelCommand.model_validate_json(msg.data)
        except ValidationError as error:
            log.warning(
                "run %s: a malformed request to cancel is ignored: %s", leg.spec.run_id, error
            )
            return
        if asked.leg in (None, leg.spec.number):
            leg.stop_requests.cancel(asked)
        await self._bus.client.publish(msg.reply, b"{}")

    # The steps that a leg calls

    async def _prepare(self, order: Order, agent: ServerAgent, *, was_called: bool) -> Call:
        """Return the leg's request; raise NotAccepted if a paused run of the session forbids a
        start."""
        upstream = self.upstream(agent)
        is_new = order.leg == 1 and not was_called
        if is_new and upstream.refuses_starts_while_paused(agent):
            sessions, key = self._stores.sessions, order.session
            others = await with_retries(lambda: sessions.other_runs(key, order.run_id))
            if ended := await require_at_rest(self._bus, self._stores.runs, others):
                await with_retries(lambda: sessions.forget_ended(key, ended))
        return await self._orders.request(order, upstream, agent)

    async def _turn(self, order: Order) -> None:
        mine = order.queued_leg(self._stores.pod)
        await with_retries(lambda: self._stores.sessions.wait(order.session, mine))

    async def _remember(self, order: Order, upstream_run_id: str) -> None:
        record = replace(order.record, upstream_run_id=upstream_run_id)
        await with_retries(lambda: self._stores.leg_records.put(order.run_id, record))

    # The leg's task

    async def _run(self, leg: Leg, listening: Subscription, order: Order) -> Outcome:
        telemetry.LEGS_OPEN.inc()
        log_fields.bind(leg.spec.run_id)
        outcome = BROKEN
        try:
            outcome = await self._outcome_of(leg, order)
            try:
                await self._close(leg, listening, order, outcome)
            except asyncio.CancelledError:  # the connector stops, and the records are updated first
                await self._close(leg, listening, order, outcome)
        except Exception:
            # The leg's record still exists. The reaper of this connector finds it within a minute,
            # and completes the updates.
            log.exception(
                "run %s leg %d: its records cannot be updated", leg.spec.run_id, leg.spec.number
            )
            await self._stop_listening(leg, listening)
        finally:
            telemetry.LEGS_OPEN.dec()
        return outcome

    async def _outcome_of(self, leg: Leg, order: Order) -> Outcome:
        began_ns = time.time_ns()
        try:
            outcome = await leg.run()
        except asyncio.CancelledError:
            return await self._end_as_lost(leg, leg.lost(STOPPED))
        except Exception:  # if no outcome were written, the run would never end
            log.exception("run %s leg %d: the connector failed", leg.spec.run_id, leg.spec.number)
            return await self._end_as_lost(leg, BROKEN)
        self._observe(leg, order, outcome, began_ns)
        return outcome

    def _observe(self, leg: Leg, order: Order, outcome: Outcome, began_ns: int) -> None:
        """Record the leg's span, and check the agent server after a failure. The leg's last source
        frame is written, so a failure here is only logged."""
        try:
            if spans.is_on():
                spent_s = leg.spec.history.spent_s if leg.spec.history is not None else 0.0
                spans.record(
                    span_of(
                        run_id=leg.spec.run_id,
                        number=leg.spec.number,
                        agent=leg.spec.agent,
                        session_id=order.command.session_id,
                        traceparent=leg.call.traceparent if leg.call is not None else None,
                        outcome=outcome,
                        began_ns=began_ns - round(spent_s * 1e9),
                        milestones=leg.milestones,
                    )
                )
            self._diagnosis.after(leg.spec.run_id, leg.spec.agent, leg.called_url, outcome)
        except Exception:
            log.exception("run %s leg %d: it cannot be observed", leg.spec.run_id, leg.spec.number)

    async def _end_as_lost(self, leg: Leg, outcome: Outcome) -> Outcome:
        try:
            await leg.writer.end(outcome)
        except FenceConflict:
            log.info("run %s leg %d: it had ended", leg.spec.run_id, leg.spec.number)
            return TAKEN_OVER
        return outcome

    async def _close(
        self, leg: Leg, listening: Subscription, order: Order, outcome: Outcome
    ) -> None:
        """Update the leg's records after its last source frame; the order of the writes matters."""
        stores, run_id = self._stores, leg.spec.run_id
        await self._stop_listening(leg, listening)
        await self._pass_cancel_on(leg, outcome)
        if outcome.end is LegEnd.RELEASED:
            # The next holder of the leg needs the leg's record and the leg's place in the queue.
            return
        # 1. Leave the queue. If the leg stayed in the queue, the session's next leg would wait
        #    until it finds in RAW that this leg has ended.
        await with_retries(
            lambda: stores.sessions.leave(order.session, run_id, stores.pod, order.leg)
        )
        # 2. Record the result of sending the decision. Without this record, the watchdog and the
        #    approvals service would assume that the decision is still being sent.
        if order.approval_id is not None and outcome.is_ours:
            approval_id, state = order.approval_id, sending_state(outcome.code)
            await with_retries(lambda: stores.sendings.record(approval_id, state, is_known=True))
        # 3. Delete the record of the leg, last. If this process dies before this write, another
        #    connector finds the record, and completes the updates. If the record were deleted
        #    earlier, no connector would look for missing updates.
        await with_retries(lambda: stores.leg_records.delete(run_id))

    async def _stop_listening(self, leg: Leg, listening: Subscription) -> None:
        try:
            await listening.unsubscribe()
        except Exception as error:  # the subscription or the connection was closed before
            log.debug(
                "run %s leg %d: not unsubscribed: %r", leg.spec.run_id, leg.spec.number, error
            )

    async def _pass_cancel_on(self, leg: Leg, outcome: Outcome) -> None:
        """Pass on a cancel that this connector has accepted but the leg has not carried out."""
        cancelled = leg.stop_requests.cancelled
        if cancelled is None:
            return
        if not outcome.is_ours:
            # Another connector holds the leg, and gets the cancel only by this command.
            await with_retries(lambda: self._cancel_again(cancelled))
        elif outcome.end is LegEnd.EOF and cancelled.ask is None:
            # The leg may have ended with a pause just before the cancel. The run then still waits
            # for a decision, so the run is cancelled here.
            runs = self._stores.runs
            await with_retries(lambda: runs.cancel_between_legs(leg.spec.run_id, cancelled.facts))

    async def _cancel_again(self, cancelled: CancelCommand) -> None:
        subject = command_subject("connector", "cancel", cancelled.run_id)
        await self._bus.publisher.publish(Message(subject, cancelled.dump(), {}))


def sending_state(code: str | None) -> SendingState:
    """Return the result of sending a decision; `code` is the code of a lost leg."""
    return "outcome_unknown" if code == "outcome_unknown" else "done"
