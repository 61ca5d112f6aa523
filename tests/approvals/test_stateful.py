"""Approvals under many deciders, two instances, crashes between two writes, and redelivery."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Iterator
from typing import Any

import orjson
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    multiple,
    rule,
    run_state_machine_as_test,
)

from fuzz.cases import examples
from penstock import lookups
from penstock.bus import Bucket, Bus, Message, Stored, messages, streams, subjects
from penstock.bus.read import direct
from penstock.bus.records.approvals import ContinueCommand, Decided, DecideRequest
from penstock.bus.records.legs import PauseRecord
from penstock.bus.records.runs import RunRecord
from penstock_approvals.lifecycle import outbox
from penstock_approvals.lifecycle.decisions import Approvals
from support.drive.bus import new_run_id
from support.drive.sync_bus import World
from support.fakes.policies import anybody
from support.real.nats import NatsServer

# A fuse is the number of writes before the crash, and whether the write that crashes is stored.
FUSES = st.none() | st.tuples(st.integers(0, 5), st.booleans())


class Crash(Exception):
    """The process ends here."""


class Mortal:
    """A bus on which one write crashes the process, either before or after the write is stored."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.publisher = self
        self.fuse: tuple[int, bool] | None = None

    def bucket(self, name: str) -> Bucket:
        return Bucket(self, name)  # type: ignore[arg-type]  # a bucket needs no more

    async def publish(self, message: Message, *options: Any) -> int:
        if self.fuse is None:
            return await self._bus.publisher.publish(message, *options)
        left, stored = self.fuse
        self.fuse = (left - 1, stored)
        if left > 0:
            return await self._bus.publisher.publish(message, *options)
        if left == 0 and stored:
            await self._bus.publisher.publish(message, *options)
        raise Crash

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)


class Deciding(RuleBasedStateMachine):
    """The model: the decisions that clients were given, by approval, and the unhandled events."""

    world: World
    asked = Bundle("asked")

    @initialize(target=asked)
    def begin(self) -> object:
        self.numbers = itertools.count(1)
        self.runs: dict[str, str] = {}  # approval id to run id
        self.won: dict[str, list[str]] = {}  # approval id to the deciders that were answered 200
        self.lost: set[str] = set()  # deciders that were answered 409
        self.events: list[Stored] = []  # all events, since the bus may deliver any of them again
        self.unhandled: list[Stored] = []
        self.ended: set[str] = set()
        return multiple(self._a_run(), self._a_run())

    def _instance(self, fuse: tuple[int, bool] | None) -> Approvals:
        """Start an instance that crashes when its fuse is burnt."""
        bus = Mortal(self.world.bus)
        bus.fuse = fuse
        return Approvals(bus, f"pod-{next(self.numbers)}")  # type: ignore[arg-type]

    def _do(self, *work: Awaitable[object]) -> list[object]:
        async def all_of_it() -> list[object]:
            return await asyncio.gather(*work, return_exceptions=True)

        results = self.world.runner.run(all_of_it())
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, Crash):
                raise result
        return results

    async def _publish(self, run_id: str, type_: str, data: dict[str, Any]) -> None:
        category, action = type_.split(".")
        body = orjson.dumps(
            {
                "run_id": run_id,
                "timestamp": messages.now(),
                "leg": 1,
                "event": {"category": category, "action": action},
                "data": data,
            }
        )
        subject, headers = subjects.event(type_, run_id), {"ce-type": type_}
        sequence = await self.world.bus.publisher.publish(Message(subject, body, headers))
        stored = Stored(subject, sequence, headers, body)
        self.events.append(stored)
        self.unhandled.append(stored)

    @rule(target=asked)
    def a_run_waits(self) -> str:
        return self._a_run()

    def _a_run(self) -> str:
        run_id, approval_id, now = new_run_id(), new_run_id(), messages.now()
        run = RunRecord(
            **{"run_id": run_id, "agent": "a", "session_id": "s", "user_id": "u"},
            **{"created_at": now, "updated_at": now},
        )
        pause = PauseRecord(
            run_id=run_id, approval_id=approval_id, leg=1, protocol="agno", fold={}, resume={}
        )
        item = {"item_id": "t1", "kind": "confirmation", "digest": "d", "editable": False}
        data = {"approval_id": approval_id, "digest": "d", "items": [item]}

        async def wait() -> None:
            await self.world.bus.bucket("runs").create(run_id, run.dump())
            await self.world.bus.bucket("pauses").create(run_id, pause.dump())
            await self._publish(run_id, "approval.requested", data)

        self.world.runner.run(wait())
        self.runs[approval_id], self.won[approval_id] = run_id, []
        return approval_id

    @rule(approval_id=asked)
    def the_run_ends(self, approval_id: str) -> None:
        run_id = self.runs[approval_id]
        if run_id not in self.ended:
            self.ended.add(run_id)
            self.world.runner.run(self._publish(run_id, "lifecycle.cancelled", {}))

    async def _handle(self, stored: Stored, fuse: tuple[int, bool] | None) -> None:
        await self._instance(fuse).on_event(stored)
        if stored in self.unhandled:
            self.unhandled.remove(stored)

    @rule(fuse=FUSES)
    def events_are_handled(self, fuse: tuple[int, bool] | None) -> None:
        for stored in list(self.unhandled):
            self._do(self._handle(stored, fuse))

    @rule(at=st.integers(0, 20), fuse=FUSES)
    def an_event_comes_twice_at_once(self, at: int, fuse: tuple[int, bool] | None) -> None:
        if self.events:
            stored = self.events[at % len(self.events)]
            self._do(self._handle(stored, fuse), self._handle(stored, None))

    async def _decide(self, approval_id: str, decision: str, fuse: tuple[int, bool] | None) -> None:
        by = f"person-{next(self.numbers)}"
        items = [Decided.model_validate({"item_id": "t1", "decision": decision})]
        instance = self._instance(fuse)
        reply = await instance.take_vote(
            approval_id, DecideRequest(decider=anybody(by), items=items)
        )
        if reply.status == 200:
            self.won[approval_id].append(by)
            await instance.outbox.send_on(approval_id)
        else:
            assert reply.status in (404, 409)
            self.lost.add(by)

    @rule(approval_id=asked, yes=st.booleans(), fuse=FUSES)
    def decide(self, approval_id: str, yes: bool, fuse: tuple[int, bool] | None) -> None:
        self._do(self._decide(approval_id, "approve" if yes else "reject", fuse))

    @rule(approval_id=asked, one=FUSES, other=FUSES, sweep=st.booleans())
    def two_decide_at_once(
        self,
        approval_id: str,
        one: tuple[int, bool] | None,
        other: tuple[int, bool] | None,
        sweep: bool,
    ) -> None:
        self._do(
            self._decide(approval_id, "approve", one),
            self._decide(approval_id, "reject", other),
            *([self._instance(None).outbox.sweep()] if sweep else []),
        )

    @rule(fuse=FUSES)
    def sweep(self, fuse: tuple[int, bool] | None) -> None:
        self._do(self._instance(fuse).outbox.sweep())

    def teardown(self) -> None:
        if hasattr(self, "runs"):
            self.world.runner.run(self._check_all())

    async def _check_all(self) -> None:
        """Handle the remaining events and sweep with new instances, then check every approval."""
        for stored in list(self.unhandled):
            await self._handle(stored, None)
        for _ in range(2):
            await self._instance(None).outbox.sweep()
        for approval_id, run_id in self.runs.items():
            await self._check(approval_id, run_id)

    async def _check(self, approval_id: str, run_id: str) -> None:
        bus = self.world.bus
        record = await self._instance(None).records.get(approval_id)
        assert record is not None
        said = direct.replay(bus, streams.RAW, subjects.raw_stored(run_id, "approvals"))
        told = [orjson.loads(stored.payload) async for stored in said]
        types = Counter(event["type"] for event in told)
        subject = subjects.command("connector", "continue", run_id)
        commands = [
            ContinueCommand.model_validate_json(stored.payload)
            async for stored in direct.replay(bus, streams.COMMANDS, subject)
        ]
        assert await bus.bucket("approvals").get(f"outbox.{approval_id}") is None
        assert len(self.won[approval_id]) <= 1, "two were told that they had decided"
        assert types["lifecycle.paused"] <= 1
        if record.status == "decided":
            assert record.decision is not None
            assert record.decision.by not in self.lost
            assert self.won[approval_id] in ([], [record.decision.by])
            assert types["approval.decided"] == len(commands) == 1
            (event,) = [each["data"] for each in told if each["type"] == "approval.decided"]
            assert event["by"] == record.decision.by
            assert commands[0].items == record.decision.items
            assert types["approval.withdrawn"] == 0
        else:
            assert not self.won[approval_id]
            assert not commands
            assert types["approval.decided"] == 0
            assert record.status == ("withdrawn" if run_id in self.ended else "pending")
            assert types["approval.withdrawn"] == (run_id in self.ended)


@pytest.fixture
def world(nats: NatsServer) -> Iterator[World]:
    world = World(nats)
    yield world
    world.close()


@pytest.mark.timeout(300)  # Hypothesis needs time to shrink a failure
@examples(10)
def test_one_decision_wins_and_is_sent_once_at_any_kill(
    world: World, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    # With 0 s, a sweep removes an outbox entry as soon as its decision is not yet stored, which is
    # the worst moment for the decider.
    monkeypatch.setattr(outbox, "ABANDONED_S", 0)
    # A decision waits for the approval's record, which nothing writes during this step.
    monkeypatch.setattr(lookups, "LOOKUP_S", 0.1)
    machine = type("Deciders", (Deciding,), {"world": world})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=count, stateful_step_count=20)
    )
