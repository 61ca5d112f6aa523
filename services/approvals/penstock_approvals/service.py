"""The approvals service records requests, takes people's decisions, and sends the decisions to the
runs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from penstock import telemetry
from penstock.budgets.admission import CurrentBudgets
from penstock.bus import BusError, Consumer, Msg, ObjectGone, Stored, streams
from penstock.bus.records.approvals import DecideReply, DecideRequest
from penstock.bus.subjects import due, run_id_of
from penstock.redactions.document import CurrentRedactions
from penstock.service import Context, Service, routes_on_bus
from penstock.settings import Settings
from penstock.tracing import requests
from penstock.web.operation import operations_of
from penstock_approvals.api.accounts import AccountsApi
from penstock_approvals.api.approvals import Api
from penstock_approvals.api.links import LinkRoutes
from penstock_approvals.api.policy import BudgetsApi, PolicyApi, RedactionsApi
from penstock_approvals.api.requests import Requests
from penstock_approvals.audit.anchors import Anchors
from penstock_approvals.audit.trail import ApprovalAudit
from penstock_approvals.budgets.actions import BudgetActions
from penstock_approvals.budgets.ledger import BUDGET, CONSUMER, SWEEP_S, BudgetLedger
from penstock_approvals.inbox.feed import Feed
from penstock_approvals.lifecycle.deadlines import DUE, approval_of
from penstock_approvals.lifecycle.decisions import Approvals
from penstock_approvals.lifecycle.restore import Restore
from penstock_approvals.settings import ApprovalsSettings
from penstock_approvals.store.policies import Policies
from penstock_approvals.store.records import UnreadableRecord

log = logging.getLogger(__name__)

DUE_OF_BUDGETS = due("approvals", f"{BUDGET}.")
ANCHOR_S = 600.0  # Seconds between two checks whether today's anchor exists.
# The subjects of the events that the service reads from EVENTS.
CONCERNS = (
    "approval.requested.*",
    "approval.withdrawn.*",  # a workflow no longer asks
    "lifecycle.completed.*",
    "lifecycle.failed.*",
    "lifecycle.cancelled.*",
    "system.erased.*",  # for the audit
)


class ApprovalsService(Service):
    """Records requests and takes decisions, over NATS and over HTTP."""

    name: ClassVar[str] = "approvals"
    settings_type: ClassVar[type[Settings]] = ApprovalsSettings
    operations = operations_of(Api, LinkRoutes, PolicyApi, BudgetsApi, AccountsApi, RedactionsApi)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        assert isinstance(context.settings, ApprovalsSettings)
        settings = self._settings = context.settings
        audit = ApprovalAudit(
            self.bus, with_details=settings.audit_details, keys=settings.audit_keys
        )
        self._anchors = Anchors(self.bus, settings.audit_keys)
        self._anchored_s = -ANCHOR_S  # the monotonic time of the last check of today's anchor
        self._policies = Policies(self.bus, settings.policy)
        self._budgets = CurrentBudgets(self.bus)
        self._redactions = CurrentRedactions(self.bus)
        self._approvals = Approvals(
            self.bus,
            context.pod,
            audit,
            self._policies,
            self._budgets,
            require_digest=settings.require_digest,
        )
        actions = BudgetActions(self.bus, context.pod)
        self._budget_ledger = BudgetLedger(self.bus, self._budgets, actions)
        self._restore = Restore(self.bus, self._approvals)
        self._approvals.after_losses = self._restore.after_losses
        # requests over NATS that are handled now, and decisions that are being sent
        self._tasks: set[asyncio.Task[None]] = set()
        self._feed = Feed(self.bus, self._approvals.records)
        url = settings.auth.public_url
        self._requests = Requests(self.bus, self._approvals, self._take_vote, public_url=url)
        self.routes = routes_on_bus(
            Api(self.bus, self._approvals, self._feed, take_vote=self._take_vote),
            LinkRoutes(self.bus, self._approvals, self._take_vote, public_url=url),
            PolicyApi(self._policies, self._approvals),
            BudgetsApi(self._budgets),
            AccountsApi(self._budget_ledger.list, self._budgets),
            RedactionsApi(self._redactions),
            statuses={UnreadableRecord: 500},
        )

    async def start(self) -> None:
        """Begin to take decisions, and then to record requests."""
        await self._policies.load()
        await self._budgets.load()
        await self._redactions.load()
        for subject, handle in (
            ("decide.*", self._requests.on_vote),
            ("link.*", self._requests.on_link),
            ("hold.*", self._requests.on_hold),
        ):
            await self.answer(subject, partial(self._in_task, handle))
        outbox_s = self._settings.outbox_s
        self.repeat("outbox", outbox_s, self._sweep)
        self.spawn("policy", self._policies.follow)
        self.spawn("budgets", self._budgets.follow)
        self.spawn("redactions", self._redactions.follow)
        self.repeat("budget accounts", SWEEP_S, self._budget_ledger.sweep)
        self.spawn("budget list", self._budget_ledger.list.index.run)
        self.spawn("policy file", self._policies.watch_file)
        self.spawn("feed", self._feed.run)
        self.repeat("audit", outbox_s, self._complete_audit)
        self.spawn("list", self._approvals.list.index.run)
        ack_wait_s = self._settings.ack_wait_s
        deadlines = Consumer(
            stream=streams.SCHEDULES,
            durable=self.name,
            subjects=(DUE,),
            ack_wait_s=ack_wait_s,
            deletes=True,  # handled messages must be deleted, because SCHEDULES has no age limit
        )
        requests = Consumer(
            stream=streams.EVENTS, durable=self.name, subjects=CONCERNS, ack_wait_s=ack_wait_s
        )
        self.consume(deadlines, self._on_due)
        self.consume(requests, self._approvals.on_event)
        # An instance that is killed must not keep runs from being stopped.
        of_budgets = replace(CONSUMER, ack_wait_s=ack_wait_s)
        self.consume(of_budgets, self._budget_ledger.on_event)
        self.consume_replays(self._approvals.on_event)

    async def _on_due(self, stored: Stored) -> None:
        if stored.subject.startswith(DUE_OF_BUDGETS):
            await self._budget_ledger.on_due(run_id_of(stored.subject))
            return
        await self._approvals.on_due(approval_of(stored.payload))

    async def drain(self, grace_s: float) -> None:
        """End the streams of live changes, so that the clients reconnect to another process."""
        self._feed.close()

    async def stop(self) -> None:
        """Stop taking decisions, and send the decisions that were already taken."""
        await self.stop_consuming()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_s):
                while self._tasks:  # a request's task may begin the task that sends its decision
                    await asyncio.wait(self._tasks)
        await self.cancel(
            *("policy", "policy file", "budgets", "budget accounts", "budget list", "redactions"),
            *("outbox", "audit", "list", "feed"),
        )

    async def _take_vote(self, approval_id: str, request: DecideRequest) -> DecideReply:
        if (traceparent := requests.current()) is not None:
            request = request.model_copy(update={"traceparent": traceparent})
        reply = await self._approvals.take_vote(approval_id, request)
        if reply.approval is not None:
            requests.link(reply.approval.span_context)
        if reply.status == 200:
            self._begin(self._send_on(approval_id))
        return reply

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a request or a decision failed unexpectedly", exc_info=error)

    async def _in_task(self, handle: Callable[[Msg], Coroutine[Any, Any, None]], msg: Msg) -> None:
        """Handle a request in a task of its own, since it may wait for its approval's record."""
        self._begin(handle(msg))

    async def _send_on(self, approval_id: str) -> None:
        try:
            await self._approvals.outbox.send_on(approval_id)
        except (BusError, ObjectGone, UnreadableRecord) as error:
            log.warning("approval %s stays in the outbox: %s", approval_id, error)

    async def _sweep(self) -> None:
        self._measure_pending()
        await self._approvals.outbox.sweep()
        await self._restore.after_losses()

    def _measure_pending(self) -> None:
        if not self._approvals.list.index.is_complete:
            return  # the rows of some approvals are missing, so their number would be too small
        pending, oldest_ms = self._approvals.list.rows.pending()
        age_s = 0.0 if oldest_ms is None else self.bus.clock.time() - oldest_ms / 1000
        telemetry.APPROVALS_PENDING.set(pending)
        telemetry.APPROVALS_OLDEST.set(max(0.0, age_s))

    async def _complete_audit(self) -> None:
        """Write the audit records that NATS has lost, and each day's anchor. Only one pod writes a
        day's anchor."""
        await self._anchors.after_losses(self._approvals.audit, self._approvals.records.all)
        if time.monotonic() - self._anchored_s >= ANCHOR_S:
            await self._anchors.daily()
            self._anchored_s = time.monotonic()
