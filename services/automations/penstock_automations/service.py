"""The automations service matches events with rules, and carries out the rules' actions."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import ClassVar

from penstock import telemetry
from penstock.bus import BusError, Stored, streams, subjects
from penstock.bus.connection.retry import until_answered
from penstock.runs.calls import CALLS
from penstock.runs.open_runs import OpenRuns
from penstock.runs.session_shards import SessionShards
from penstock.runs.start import Starter
from penstock.service import Context, Service
from penstock.settings import Settings
from penstock.web.auth import AuthConfig
from penstock.web.operation import operations_of, routes_of
from penstock_automations.actions.decide import DecideExecutor
from penstock_automations.actions.executor import ActionExecutor
from penstock_automations.actions.shares import Shares
from penstock_automations.actions.start_run import StartRunExecutor
from penstock_automations.actions.webhook.executor import WebhookExecutor
from penstock_automations.actions.webhook.mirror import Mirror
from penstock_automations.actions.webhook.request import Sender
from penstock_automations.api.deliveries import Deliveries
from penstock_automations.api.endpoints import EndpointStates
from penstock_automations.api.rule_secrets import RuleSecrets
from penstock_automations.api.rules import Rules
from penstock_automations.api.stored_rules import StoredRules
from penstock_automations.api.trials import Trials
from penstock_automations.broker import Broker, Consumer, declare
from penstock_automations.delivery.announcements import Announcements
from penstock_automations.delivery.deliverer import Deliverer
from penstock_automations.delivery.due import DueJobs
from penstock_automations.delivery.failing import FailingRules
from penstock_automations.delivery.listing import DeliveryList
from penstock_automations.delivery.one_delivery import Parts
from penstock_automations.delivery.records import Records
from penstock_automations.delivery.replay import replay
from penstock_automations.delivery.waking import Waking
from penstock_automations.guard.backend import Guard
from penstock_automations.jobs.order import Order
from penstock_automations.matching.consumers import Consumers
from penstock_automations.matching.evaluations import Evaluations
from penstock_automations.matching.matcher import Matcher
from penstock_automations.rules.anonymous import pause_rules_without_owner
from penstock_automations.rules.call_secrets import read_call_secrets
from penstock_automations.rules.file import apply_file
from penstock_automations.rules.model import ActionKind
from penstock_automations.rules.records import CompiledRule
from penstock_automations.rules.refusals import Refusals
from penstock_automations.rules.sealing import RuleKeys
from penstock_automations.rules.store import CurrentRules, RuleStore
from penstock_automations.settings import AutomationsSettings
from penstock_automations.triggers import schedules
from penstock_automations.triggers.hooks import Hooks
from penstock_automations.triggers.schedules import Schedules

log = logging.getLogger(__name__)

NEW_SHARDS_S = 1.0  # seconds between two checks for new shards of the bus
RETRY_S = 1.0
ENCRYPT_AFTER_S = 900.0
LIST = "list of deliveries"
READABLE = "the secrets of rules are stored readable in NATS: set PENSTOCK_RULE_KEYS"


class AutomationsService(Service):
    """Matches events with rules, and carries out the actions of rules that match."""

    name: ClassVar[str] = "automations"
    settings_type: ClassVar[type[Settings]] = AutomationsSettings
    operations = operations_of(Rules, RuleSecrets, Trials, Deliveries, EndpointStates, Hooks)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        assert isinstance(context.settings, AutomationsSettings)
        self._settings = settings = context.settings
        keys = RuleKeys(settings.rule_keys)
        self._store = RuleStore(self.bus, keys)
        self._rules = CurrentRules(self.bus, keys)
        order = Order(self.bus)
        records, failing = Records(self.bus), FailingRules()
        guard = Guard(settings.webhook_allow_hosts, settings.webhook_allow_networks)
        webhooks = WebhookExecutor(
            self.bus,
            Sender(guard),
            settings.webhook_max_bytes,
            records.is_done,
            settings.webhook_requests_per_host,
        )
        self._open_runs = OpenRuns(
            self.bus, settings.max_open_runs_per_user, settings.max_queued_runs_per_user
        )
        shards = SessionShards(self.bus, tuple(agent.id for agent in context.config.agents))
        starter = Starter(
            self.bus,
            self._open_runs,
            shards,
            callers_known=settings.auth.requires_credentials,
            max_runs_per_root=settings.max_runs_per_root,
        )
        executors: dict[ActionKind, ActionExecutor] = {
            "webhook": webhooks,
            "run": StartRunExecutor(self.bus, context.config, starter),
            "decide": DecideExecutor(self.bus),
        }
        evaluations = Evaluations(self._store)
        self._matcher = Matcher(
            self.bus,
            self._rules,
            evaluations,
            order,
            self.give_up,
            settings.deliver_ack_wait_s,
        )
        secrets = settings.call_secrets
        parts = Parts(
            bus=self.bus,
            pod=context.pod,
            rules=self._rules,
            store=self._store,
            order=order,
            executors=executors,
            call_secrets=read_call_secrets(secrets) if secrets is not None else {},
            announcements=Announcements(self.bus, context.pod),
            records=records,
            failing=failing,
            places=Shares(settings.deliveries_at_once),
            delays_s=settings.retry_delays_s,
            max_age_s=settings.delivery_max_age_s,
        )
        self._deliverer = Deliverer(
            parts,
            self.attempts,
            settings.deliveries_at_once,
            settings.deliver_ack_wait_s,
            self.give_up,
        )
        self._waking = Waking(self.bus, self._rules, failing)
        webhooks.on_success = self._on_success
        self._schedules = Schedules(self.bus, self._rules, evaluations, self.give_up)
        self._due = DueJobs(self.bus, self.give_up)
        self._consumers = Consumers(self.bus, self._rules, self.name, settings.deliver_ack_wait_s)
        self._brokers: list[Broker] = []
        self._shards = 0  # the number of shards that have subscribers
        self._changed = asyncio.Event()
        self._rules.on_change = self._on_change
        refusals = Refusals(guard, context.config)
        stored = StoredRules(self._store, refusals, self.rules_changed, self.bus.clock)
        deliveries = DeliveryList(self.bus, lambda index: self.spawn(LIST, index.run))
        surfaces = (
            Rules(stored, self._rules, settings.rules_per_user),
            RuleSecrets(stored),
            Trials(self.bus, self._store, webhooks),
            Deliveries(self.bus, self._store, self._rules, deliveries),
            Hooks(self.bus, self._rules, evaluations, settings.hook_max_bytes),
            EndpointStates(self.bus),
        )
        self.routes = [route for surface in surfaces for route in routes_of(surface)]
        self._mirror = Mirror(self.bus, context.pod, webhooks.endpoints)
        telemetry.BREAKERS_OPEN.set_function(webhooks.endpoints.open_breakers)

    async def start(self) -> None:
        """Load the rules, then begin to deliver, then begin to match.

        Each step is repeated until NATS answers, because NATS may be unavailable at any time.
        """
        if (file := self._settings.rules) is not None:
            config = self.context.config
            await until_answered("the rules file", lambda: apply_file(file, self._store, config))
        if AuthConfig(**self._settings.auth.model_dump()).requires_credentials:
            await until_answered("pausing rules", lambda: pause_rules_without_owner(self._store))
        if self._settings.rule_keys:
            self.spawn("encryption", self._encrypt)
        elif self._settings.auth.requires_credentials:
            log.warning(READABLE)
        await until_answered("reading the rules", self._rules.refresh)
        await self._begin_to_deliver()
        await until_answered("making the consumers of events", self._take_new_shards)
        self.spawn("rules", self._rules.follow)
        self.spawn("consumers", self._keep_consumers)
        self.spawn("schedules", self._schedules.keep)
        self.spawn("shards", self._look_for_shards)
        self.spawn("open runs", self._open_runs.follow)
        self.spawn("endpoints", self._mirror.run)
        self.consume_replays(self._replay)

    @property
    def notices(self) -> list[str]:
        """Texts for operators about lost data and readable secrets."""
        is_readable = self._settings.auth.requires_credentials and not self._settings.rule_keys
        return [*super().notices, *([READABLE] if is_readable else [])]

    async def drain(self, grace_s: float) -> None:
        """Take no new jobs and events, and finish the deliveries that are under way."""
        await self.cancel("shards")
        await self._stop_brokers()
        await self._matcher.finish(grace_s)
        await self._deliverer.finish(grace_s)

    async def stop(self) -> None:
        """Stop taking jobs and events, and give unfinished jobs back."""
        await self.stop_consuming()
        await self.cancel("shards", "consumers", "schedules", "rules", "open runs")
        await self.cancel("endpoints", "encryption", LIST)
        await self._waking.stop()
        await self._stop_brokers()
        await self._matcher.finish(0)
        await self._deliverer.finish(0)

    async def _begin_to_deliver(self) -> None:
        ack_wait_s = self._settings.deliver_ack_wait_s
        jobs = Consumer(streams.DELIVERIES, self.name, ("delivery.*.*",), ack_wait_s, 10_000)
        due = Consumer(streams.SCHEDULES, self.name, (subjects.due(self.name, ">"),), ack_wait_s)
        broker = Broker(self.bus, self._settings.drain_s)
        times = schedules.consumer(self.name, ack_wait_s)
        for consumer in (jobs, due, times):
            what = f"making the consumer {consumer.durable} of {consumer.stream}"
            await until_answered(what, partial(declare, self.bus, consumer))
        self._deliverer.on_room = broker.batches(
            jobs, self._settings.deliveries_at_once, self._deliverer.take, self._deliverer.room
        )
        broker.messages(due, self._due.take)
        broker.batches(times, schedules.BATCH, self._schedules.take)
        await self._start_broker(broker)

    async def _take_new_shards(self) -> None:
        """Match the events of each shard that has no subscribers yet."""
        if self._shards == self.bus.shards.made:
            return
        await self._consumers.update()
        for shard in range(self._shards, self.bus.shards.made):
            broker = Broker(self.bus, self._settings.drain_s)
            events = self._consumers.of(shard)
            broker.batches(events, self._settings.match_batch, self._matcher.batch)
            await self._start_broker(broker)
            self._shards = shard + 1

    async def _start_broker(self, broker: Broker) -> None:
        self._brokers.append(broker)
        await broker.start()

    async def _stop_brokers(self) -> None:
        await asyncio.gather(*(broker.stop() for broker in self._brokers))
        self._brokers.clear()

    async def rules_changed(self) -> None:
        """Make the stored rules match every event that is stored after this call returns.

        The next times of the rules' schedules are scheduled, too.

        Raises:
            BusError: the bus does not answer; call this again.
        """
        await self._consumers.update()
        await self._schedules.arrange()

    async def _encrypt(self) -> None:
        """Encrypt the rules when processes that lack the key have ended, even in a rolling upgrade.

        Such a process would take events of these rules, and do nothing.
        """
        while True:
            await asyncio.sleep(ENCRYPT_AFTER_S)
            await until_answered("encrypting the rules", self._store.encrypt)

    def _on_change(self) -> None:
        self._changed.set()
        self._schedules.wake()
        self._waking.rules_changed()

    def _on_success(self, rule: CompiledRule) -> None:
        # Calls wait at most until their breaker lets a request pass. To wake the calls of one user,
        # the jobs of all calls would have to be read.
        if rule.id != CALLS:
            self._waking.wake(rule.id, rule.record.uid)

    async def _keep_consumers(self) -> None:
        """Change the subjects of the consumers each time that the rules have changed."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._consumers.update()
            except BusError as error:
                log.warning("the consumers of events are changed later: %s", error)
                self._changed.set()
                await asyncio.sleep(RETRY_S)

    async def _look_for_shards(self) -> None:
        while True:
            await asyncio.sleep(NEW_SHARDS_S)
            await self._take_new_shards()

    async def _replay(self, stored: Stored) -> None:
        await replay(self.bus, stored)
