"""The automations service matches events with rules, and carries out the rules' actions."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import ClassVar

from penstock import telemetry
from penstock.bus import RETRY_S, BusError, Consumer, streams, subjects
from penstock.bus.connection.retry import until_answered
from penstock.runs.calls import CALLS
from penstock.runs.start import Starter
from penstock.service import Context, Service, routes_on_bus
from penstock.settings import Settings
from penstock.web.auth import AuthConfig
from penstock.web.operation import operations_of
from penstock_automations.actions.decide import DecideExecutor
from penstock_automations.actions.executor import ActionExecutor
from penstock_automations.actions.shares import Shares
from penstock_automations.actions.start_run import StartRunExecutor
from penstock_automations.actions.webhook.checks import Checks
from penstock_automations.actions.webhook.exchange import Sender
from penstock_automations.actions.webhook.executor import WebhookExecutor
from penstock_automations.actions.webhook.mirror import Mirror
from penstock_automations.api.deliveries import Deliveries
from penstock_automations.api.hooks import Hooks
from penstock_automations.api.pushes import Pushes
from penstock_automations.api.rules import Rules
from penstock_automations.api.stored_rules import StoredRules
from penstock_automations.api.trials import Trials
from penstock_automations.delivery.announcements import Announcements
from penstock_automations.delivery.failing import FailingRules
from penstock_automations.delivery.listing import DeliveryList
from penstock_automations.delivery.one_delivery import Deliverer, Parts
from penstock_automations.delivery.records import Records
from penstock_automations.delivery.replay import replay_dead_letter
from penstock_automations.delivery.waking import Waking
from penstock_automations.guard import Guard
from penstock_automations.jobs.order import Order
from penstock_automations.jobs.publish import publish_due
from penstock_automations.jobs.return_times import ReturnTimes
from penstock_automations.matching.backlog import SERVICE as EVENTS_OF
from penstock_automations.matching.consumers import Consumers
from penstock_automations.matching.evaluations import Evaluations
from penstock_automations.matching.lanes import MAX_WAITING
from penstock_automations.matching.matcher import Matcher
from penstock_automations.rules.actions import ActionKind
from penstock_automations.rules.calls import read_call_secrets
from penstock_automations.rules.draft import Draft
from penstock_automations.rules.file import apply_file
from penstock_automations.rules.hidden import RuleKeys
from penstock_automations.rules.records import CompiledRule
from penstock_automations.rules.store import CurrentRules, RuleStore, pause_rules_without_owner
from penstock_automations.settings import AutomationsSettings
from penstock_automations.triggers.firing import SERVICE as SCHEDULES_OF
from penstock_automations.triggers.schedules import Schedules

log = logging.getLogger(__name__)

# How many events a process has in memory: they wait to be matched, most of them in lanes.
EVENTS_AT_ONCE = 4000
# How many messages that name events for full lanes a process has in hand. If each of them has one
# event in one user's lane, others still have half.
RETURNING_AT_ONCE = 2 * MAX_WAITING
ENCRYPT_AFTER_S = 900.0
LIST = "list of deliveries"
READABLE = "the secrets of rules are stored readable in NATS: set PENSTOCK_RULE_KEYS"


class AutomationsService(Service):
    """Matches events with rules, and carries out the actions of rules that match."""

    name: ClassVar[str] = "automations"
    settings_type: ClassVar[type[Settings]] = AutomationsSettings
    operations = operations_of(Rules, Trials, Deliveries, Hooks)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        assert isinstance(context.settings, AutomationsSettings)
        self._settings = settings = context.settings
        keys = RuleKeys(settings.rule_keys)
        self._store = RuleStore(self.bus, keys)
        callers_known = settings.auth.requires_credentials
        self._rules = CurrentRules(self.bus, keys, callers_known=callers_known)
        records, failing = Records(self.bus), FailingRules()
        order = Order(self.bus, records.put_queued)
        guard = Guard(settings.webhook_allow_hosts, settings.webhook_allow_networks)
        webhooks = WebhookExecutor(
            self.bus,
            Sender(guard),
            max_bytes=settings.webhook_max_bytes,
            is_done=records.is_done,
            requests_per_host=settings.webhook_requests_per_host,
        )
        self._starter = Starter(self.bus, context.config, settings)
        executors: dict[ActionKind, ActionExecutor] = {
            "webhook": webhooks,
            "run": StartRunExecutor(self.bus, context.config, self._starter),
            "decide": DecideExecutor(self.bus),
        }
        evaluations = Evaluations(self._store)
        places, times = Shares(settings.deliveries_at_once), ReturnTimes()
        self._matcher = Matcher(
            self.bus,
            self._rules,
            evaluations,
            order,
            places,
            times,
            give_up=self.give_up,
            batch=settings.match_batch,
        )
        file = settings.call_secrets
        call_secrets = read_call_secrets(file) if file is not None else {}
        self._checks = Checks(self.bus, webhooks, call_secrets)
        parts = Parts(
            bus=self.bus,
            pod=context.pod,
            rules=self._rules,
            store=self._store,
            order=order,
            executors=executors,
            call_secrets=call_secrets,
            announcements=Announcements(self.bus, context.pod),
            records=records,
            failing=failing,
            places=places,
            times=times,
            delays_s=settings.retry_delays_s,
            max_age_s=settings.delivery_max_age_s,
        )
        self._deliverer = Deliverer(parts, self.give_up)

        def forget(rule_id: str, uid: str) -> None:
            failing.forget(rule_id)
            webhooks.endpoints.forget(rule_id, uid)

        self._waking = Waking(self.bus, self._rules, forget)
        webhooks.on_success = self._on_success
        self._schedules = Schedules(self.bus, self._rules, evaluations, self.give_up)
        self._consumers = Consumers(self.bus, self._rules, self.name, settings.deliver_ack_wait_s)
        self._changed = asyncio.Event()
        self._rules.on_change = self._on_change
        new_draft = partial(Draft, context.config, guard)
        stored = StoredRules(
            self._store,
            self._rules,
            new_draft,
            self.apply_rule_changes,
            self.bus.clock,
            most=settings.rules_per_user,
            tenant_limits=settings.auth.tenant_limits,
        )
        self._pushes = Pushes(self.bus, stored, self._matcher.backlog.put)
        deliveries = DeliveryList(self.bus, lambda index: self.spawn(LIST, index.run))
        self.routes = routes_on_bus(
            Rules(stored, deliveries),
            Trials(self.bus, stored, webhooks, self._matcher.store_past),
            Deliveries(self.bus, self._store, self._rules, deliveries),
            Hooks(self.bus, self._rules, evaluations, settings.hook_max_bytes),
        )
        self._mirror = Mirror(self.bus, context.pod, webhooks.endpoints)
        telemetry.BREAKERS_OPEN.set_function(webhooks.endpoints.open_breakers)

    async def start(self) -> None:
        """Load the rules, then begin to deliver, then begin to match. Each step is repeated until
        NATS answers, because NATS may be unavailable at any time."""
        if (file := self._settings.rules) is not None:
            config = self.context.config
            await until_answered("the rules file", lambda: apply_file(file, self._store, config))
        if AuthConfig(**self._settings.auth.model_dump()).requires_credentials:
            await until_answered("pausing rules", lambda: pause_rules_without_owner(self._store))
        if self._settings.rule_keys:
            # By then, processes that lack the key have ended, even in a rolling upgrade. Such a
            # process would take events of these rules, and do nothing.
            self.repeat("encryption", ENCRYPT_AFTER_S, self._store.encrypt)
        elif self._settings.auth.requires_credentials:
            log.warning(READABLE)
        await until_answered("reading the rules", self._rules.refresh_all)
        await until_answered("making the consumers of events", self._consumers.update)
        self._consume()
        await self.answer(subjects.push("*"), self._pushes.on_request)
        await self.answer(subjects.check("*"), self._checks.on_request)
        self.spawn("rules", self._rules.follow)
        self.spawn("schedules of workflows", self._rules.follow_schedules)
        self.spawn("consumers", self._keep_consumers)
        self.spawn("schedules", self._schedules.keep)
        self.spawn("starts", self._starter.follow)
        self.spawn("endpoints", self._mirror.run)

    @property
    def notices(self) -> list[str]:
        is_readable = self._settings.auth.requires_credentials and not self._settings.rule_keys
        return [*super().notices, *([READABLE] if is_readable else [])]

    async def drain(self, grace_s: float) -> None:
        await self.stop_consuming()

    async def stop(self) -> None:
        await self._waking.stop()
        await self._checks.stop()
        await super().stop()
        await self._matcher.stop()

    def _consume(self) -> None:
        durable, ack_wait_s = self.name, self._settings.deliver_ack_wait_s
        due = Consumer(
            stream=streams.SCHEDULES,
            durable=durable,
            subjects=(subjects.due(self.name, ">"),),
            deletes=True,
            ack_wait_s=ack_wait_s,
        )
        times = replace(
            due, durable=f"{durable}-schedules", subjects=(subjects.due(SCHEDULES_OF, ">"),)
        )
        jobs = Consumer(
            stream=streams.DELIVERIES,
            durable=durable,
            subjects=("delivery.*.*",),
            ack_wait_s=ack_wait_s,
            at_once=self._settings.deliveries_at_once,
            finish_s=self._settings.drain_s,
        )
        returning = replace(
            due,
            durable=f"{durable}-events",
            subjects=(subjects.due(EVENTS_OF, ">"),),
            at_once=RETURNING_AT_ONCE,
        )
        events = Consumer(
            stream=streams.EVENTS,
            durable=durable,
            make=self._consumers.update,
            ack_wait_s=ack_wait_s,
            at_once=EVENTS_AT_ONCE,
        )
        self.consume(jobs, self._deliverer.handle, give_up=self._deliverer.give_up)
        self.consume(due, partial(publish_due, self.bus, self.give_up))
        self.consume(times, self._schedules.handle)
        # Matching has budgets, so no event kills a process. But an event may be in a lane for long,
        # and would be blamed if the process were killed again and again.
        self.consume(returning, self._matcher.backlog.handle, counts_attempts=False)
        self.consume(events, self._matcher.handle, counts_attempts=False)
        self.consume_replays(partial(replay_dead_letter, self.bus))

    async def apply_rule_changes(self) -> None:
        """Make the stored rules match every event that is stored after this call returns. The next
        times of the rules' schedules are scheduled, too. Raises BusError; repeat the call."""
        await self._consumers.update()
        await self._schedules.arrange()

    def _on_change(self) -> None:
        self._changed.set()
        self._schedules.wake()
        self._waking.wake_changed_rules()

    def _on_success(self, rule: CompiledRule) -> None:
        # Calls wait at most until their breaker lets a request pass. To wake the calls of one user,
        # the jobs of all calls would have to be read.
        if rule.record.uid != CALLS:
            self._waking.wake(rule)

    async def _keep_consumers(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._consumers.update()
            except BusError as error:
                log.warning("the consumers of events are changed later: %s", error)
                self._changed.set()
                await asyncio.sleep(RETRY_S)
