"""Rules, runs and receivers for the tests of automations, over a real NATS server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson

from penstock.bus import Bus, RawWriter, streams, subjects
from penstock.bus.read import direct
from penstock.service import Service
from penstock.settings import Config
from penstock.web.auth.grants import DEFAULT
from penstock_automations.delivery.records import DeliveryRecord
from penstock_automations.rules.check import read_rule
from penstock_automations.rules.model import Rule
from penstock_automations.rules.records import Owner, RuleRecord
from penstock_automations.rules.store import RuleStore
from penstock_automations.service import AutomationsService
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import Event, Pipeline, Services, pipeline
from support.drive.waiting import eventually
from support.fakes.raw import agno
from support.fakes.receiver import SECRET, Receiver, receiver

SERVICES = (NormalizerService, AutomationsService)
FAST = (1.0, 1.0, 1.0)  # seconds between attempts; scheduled messages have whole seconds only
OUTCOMES = frozenset({"automation.completed", "automation.failed"})


def rule(id: str, url: str, *subjects: str, **fields: Any) -> Rule:
    """Return a rule that sends its events to the URL; `webhook` has further webhook fields."""
    webhook = {"url": url, "secrets": [SECRET], **fields.pop("webhook", {})}
    return read_rule(
        {"id": id, "subjects": list(subjects), "action": {"webhook": webhook}, **fields}, Rule
    )


def rule_with(id: str, action: dict[str, Any], *subjects: str, **fields: Any) -> Rule:
    """Return a rule with this action."""
    return read_rule({"id": id, "subjects": list(subjects), "action": action, **fields}, Rule)


def user(user_id: str) -> Owner:
    """Return the owner of a rule that a user with the default scopes makes."""
    return Owner(user_id=user_id, scopes=sorted(DEFAULT | {"automate"}))


@dataclass
class DrivenRun:
    """A run whose source frames the test writes in place of a connector."""

    bus: Bus
    run_id: str
    user_id: str
    session_id: str = ""  # default: a session of its own
    writer: RawWriter = field(init=False)

    def __post_init__(self) -> None:
        self.writer = RawWriter(self.bus, self.run_id, "upstream", f"test/{self.run_id}")

    async def open(self) -> None:
        """Write the frame of `lifecycle.started`."""
        facts = {
            "agent": "assistant",
            "protocol": "agno",
            "kind": "agent",
            "session_id": self.session_id or f"s-{self.run_id}",
            "user_id": self.user_id,
            "message": "hello",
        }
        await self.writer.write("open", orjson.dumps(facts), leg=1)

    async def tool(self, number: int, name: str = "get_weather", **args: Any) -> None:
        """Write the frames of `llm.tool_call` and of the events that follow it."""
        tool = {"tool_call_id": f"t{number}", "tool_name": name, "tool_args": args}
        await self.writer.write("bytes", agno("ToolCallStarted", tool=tool), leg=1)

    async def text(self, text: str) -> None:
        """Write the frame of one `llm.stream`."""
        await self.writer.write("bytes", agno("RunContent", content=text), leg=1)

    async def complete(self) -> None:
        """Write the frame of `lifecycle.completed`."""
        await self.writer.write("bytes", agno("RunCompleted", content="done"), leg=1)
        await self.writer.write("end", orjson.dumps({"outcome": "eof"}), leg=1)


@dataclass
class Automations:
    """The running services, a receiver, and helpers for the tests."""

    penstock: Pipeline
    receiver: Receiver
    store: RuleStore

    @property
    def bus(self) -> Bus:
        """The test's own connection."""
        return self.penstock.bus

    async def apply(self, made: Rule, owner: str = "u1", *, all_users: bool = False) -> RuleRecord:
        """Store a rule, and return when the service matches events against it."""
        record = await self.store.apply(made, user(owner), all_users=all_users)
        await self.settled()
        return record

    async def settled(self) -> None:
        """Return when the service matches new events against all stored rules."""
        for service in self.penstock.services:
            if isinstance(service, AutomationsService):
                await service.apply_rule_changes()

    async def run(self, user_id: str = "u1", **fields: Any) -> DrivenRun:
        """Return a run with a record and without frames. `fields`: further fields of the record."""
        command = await self.penstock.register("assistant", "hello", user_id=user_id)
        if fields:
            record = await self.penstock.record(command.run_id)
            await self.bus.bucket("runs").put(
                command.run_id, record.model_copy(update=fields).dump()
            )
        return DrivenRun(self.bus, command.run_id, user_id)

    async def outcomes(self, run_id: str, count: int, timeout_s: float = 60) -> list[Event]:
        """Return the outcomes on the run's timeline when there are `count` of them."""
        events = await self.penstock.events_until(run_id, _nth(OUTCOMES, count), timeout_s)
        return [event for event in events if event.type in OUTCOMES]

    async def delivery(self, rule_id: str, run_id: str, sequence: int) -> DeliveryRecord:
        """Return the record of a delivery when it exists."""

        async def probe() -> DeliveryRecord | None:
            entry = await self.bus.bucket("deliveries").get(f"{rule_id}.{run_id}-{sequence}")
            return DeliveryRecord.model_validate_json(entry.value) if entry else None

        found = await eventually(probe, what="the delivery's record")
        assert found is not None
        return found

    async def said(self, run_id: str) -> list[tuple[str, str]]:
        """Return the automation events of a run, in order, as type and delivery id."""
        found = []
        pattern = subjects.raw_stored(run_id, "automations")
        async for stored in direct.replay(self.bus, streams.raw_for(run_id), pattern):
            event = orjson.loads(stored.payload)
            if event["type"] != "system.warning":  # tells the owner of a rule that keeps failing
                found.append((event["type"], event["data"]["delivery_id"]))
        return found


def _nth(types: frozenset[str], count: int) -> Any:
    seen: set[int] = set()

    def probe(event: Event) -> bool:
        if event.type in types:
            seen.add(event.sequence)
        return len(seen) >= count

    return probe


@asynccontextmanager
async def automations(
    url: str,
    count: int = 1,
    config: Config | None = None,
    others: Services = (NormalizerService,),
    **settings: Any,
) -> AsyncIterator[Automations]:
    """Run a normalizer, `count` automations services, and a receiver that they may reach."""
    given = {
        "webhook_allow_hosts": ("127.0.0.1",),
        "retry_delays_s": FAST,
        "drain_s": 5,
        **settings,
    }
    services: Services = (*others, *[AutomationsService] * count)
    async with (
        receiver() as made,
        pipeline(url, config or Config(agents=[]), services, **given) as penstock,
    ):
        store = RuleStore(penstock.bus)
        for each in await store.all():
            await store.delete(each.id)
        yield Automations(penstock, made, store)
        assert made.bad_signatures == []


@asynccontextmanager
async def without_service(url: str, *others: type[Service]) -> AsyncIterator[Automations]:
    """Run a normalizer and a receiver; the test starts the service's processes itself."""
    async with (
        receiver() as made,
        pipeline(url, Config(agents=[]), (NormalizerService, *others)) as base,
    ):
        yield Automations(base, made, RuleStore(base.bus))
        assert made.bad_signatures == []
