"""Votes, votes taken back, questions, deadline, cancel and redelivery in any order, with crashes
between any two writes.

Each approval ends once. A call that runs has the votes that the policy needs, or the policy's own
decision after the deadline. The decision is sent once and announced once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, rule, run_state_machine_as_test

from approvals.test_stateful import FUSES, Deciding, Mortal
from fuzz.cases import examples
from penstock.bus import streams, subjects
from penstock.bus.read import direct
from penstock.bus.records.approvals import ContinueCommand, DecideReply
from penstock_approvals.lifecycle import outbox
from penstock_approvals.lifecycle.decisions import Approvals
from penstock_approvals.outcomes.remarks import with_remark
from penstock_approvals.outcomes.votes import without_vote
from penstock_approvals.policy.document import parse
from penstock_approvals.store.policies import Policies
from support.drive.sync_bus import World
from support.fakes.policies import person, vote
from support.real.nats import NatsServer

POLICY = parse(
    """
version: 1
default: {need: 2, deadline: 1h, deciders: {roles: [ops]}, edit: args.*}
"""
)
PEOPLE = [person(f"p{number}", "ops") for number in range(3)]
EXPECTED = {
    "decided": ["lifecycle.paused", "approval.decided"],
    "expired": ["lifecycle.paused", "approval.expired", "approval.decided"],
    "withdrawn": ["lifecycle.paused", "approval.withdrawn"],
    "pending": ["lifecycle.paused"],
}


class Fixed(Policies):
    """The policies of a test, which always have the same current policy."""

    @property
    def current(self) -> Any:
        """The policy."""
        return POLICY


class Shifted:
    """The clock of an instance for which the deadline has passed."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock

    def now(self) -> Any:
        return self._clock.now() + timedelta(hours=2)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)


class Late(Mortal):
    """A mortal bus whose server's clock is behind the deadline of every approval."""

    @property
    def clock(self) -> Any:
        return Shifted(self._bus.clock)


class Interleaving(Deciding):
    """The model of `Deciding`, with two votes and a deadline."""

    asked = Bundle("asked")

    def _instance(self, fuse: tuple[int, bool] | None, *, is_late: bool = False) -> Approvals:
        bus = (Late if is_late else Mortal)(self.world.bus)
        bus.fuse = fuse
        pod = f"pod-{next(self.numbers)}"
        return Approvals(bus, pod, policies=Fixed(bus))  # type: ignore[arg-type]

    async def _decide(self, approval_id: str, decision: str, fuse: tuple[int, bool] | None) -> None:
        await self._vote(approval_id, next(self.numbers) % len(PEOPLE), decision, fuse, late=False)

    async def _vote(
        self,
        approval_id: str,
        who: int,
        decision: str,
        fuse: tuple[int, bool] | None,
        *,
        late: bool,
    ) -> None:
        instance = self._instance(fuse, is_late=late)
        record = await instance.records.get(approval_id)
        if record is None:
            return
        reply: DecideReply = await instance.take_vote(
            approval_id, vote(record, PEOPLE[who], decision)
        )
        assert reply.status in (200, 409)
        assert not (late and reply.status == 200), "a decision after the deadline was taken"
        if reply.status == 200:
            await instance.outbox.send_on(approval_id)

    @rule(approval_id=Deciding.asked, who=st.integers(0, 2), yes=st.booleans(), fuse=FUSES)
    def a_vote_comes_too_late(
        self, approval_id: str, who: int, yes: bool, fuse: tuple[int, bool] | None
    ) -> None:
        decision = "approve" if yes else "reject"
        self._do(self._vote(approval_id, who, decision, fuse, late=True))

    @rule(approval_id=Deciding.asked, fuse=FUSES, other=FUSES)
    def the_schedule_fires_twice(
        self, approval_id: str, fuse: tuple[int, bool] | None, other: tuple[int, bool] | None
    ) -> None:
        self._do(
            *(self._instance(each, is_late=True).on_due(approval_id) for each in (fuse, other))
        )

    @rule(
        approval_id=Deciding.asked,
        who=st.integers(0, 2),
        yes=st.booleans(),
        fuse=FUSES,
        other=FUSES,
    )
    def a_vote_the_deadline_and_the_end_come_at_once(
        self,
        approval_id: str,
        who: int,
        yes: bool,
        fuse: tuple[int, bool] | None,
        other: tuple[int, bool] | None,
    ) -> None:
        decision = "approve" if yes else "reject"
        self._do(
            self._vote(approval_id, who, decision, fuse, late=False),
            self._instance(other, is_late=True).on_due(approval_id),
            *(self._handle(stored, None) for stored in self.unhandled[-1:]),
        )

    async def _amend(
        self, approval_id: str, who: int, asks: bool, fuse: tuple[int, bool] | None
    ) -> None:
        instance = self._instance(fuse)
        if await instance.records.get(approval_id) is None:
            return
        question = partial(with_remark, kind="question", text=str(next(self.numbers)))
        change = question if asks else without_vote
        reply = await instance.amend(approval_id, PEOPLE[who], change)
        assert reply.status in (200, 409)

    @rule(
        approval_id=Deciding.asked,
        who=st.integers(0, 2),
        asks=st.booleans(),
        fuse=FUSES,
        other=FUSES,
        sweep=st.booleans(),
    )
    def a_person_asks_or_takes_the_vote_back_while_another_votes(
        self,
        approval_id: str,
        who: int,
        asks: bool,
        fuse: tuple[int, bool] | None,
        other: tuple[int, bool] | None,
        sweep: bool,
    ) -> None:
        self._do(
            self._amend(approval_id, who, asks, fuse),
            self._vote(approval_id, (who + 1) % len(PEOPLE), "approve", other, late=False),
            *([self._instance(None).outbox.sweep()] if sweep else []),
        )

    async def _check(self, approval_id: str, run_id: str) -> None:
        bus = self.world.bus
        record = await self._instance(None).records.get(approval_id)
        assert record is not None
        said = direct.replay(bus, streams.RAW, subjects.raw_stored(run_id, "approvals"))
        told = Counter([orjson.loads(stored.payload)["type"] async for stored in said])
        subject = subjects.command("connector", "continue", run_id)
        commands = [
            ContinueCommand.model_validate_json(stored.payload)
            async for stored in direct.replay(bus, streams.COMMANDS, subject)
        ]
        assert await bus.bucket("approvals").get(f"outbox.{approval_id}") is None
        expected = Counter(EXPECTED[record.status])
        remarks = told.pop("approval.remarked", 0)
        # What was said right before the end of the run may be in the audit only.
        assert remarks == len(record.remarks) or (
            record.status == "withdrawn" and remarks < len(record.remarks)
        )
        assert told - Counter(["lifecycle.paused"]) == expected - Counter(["lifecycle.paused"])
        assert told["lifecycle.paused"] <= 1
        assert (
            len(commands)
            == (record.decision is not None)
            == (record.continue_command() is not None)
        )
        votes = [each for each in record.votes if each.taken_back is None]
        voters = [each.by for each in votes]
        assert len(set(voters)) == len(voters)
        if record.status == "decided":
            assert record.decision is not None
            rejected = [each for each in votes if each.items[0].decision == "reject"]
            assert len(rejected) == (record.decision.outcome == "rejected")
            assert rejected or len(voters) == 2
        else:
            assert len(voters) < 2
        if record.status == "pending":
            assert run_id not in self.ended


@pytest.fixture
def world(nats: NatsServer) -> Iterator[World]:
    world = World(nats)
    yield world
    world.close()


@pytest.mark.timeout(300)  # Hypothesis needs time to shrink a failure
@examples(10)
def test_each_approval_ends_once_whatever_comes_in_whatever_order(
    world: World, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(outbox, "ABANDONED_S", 0)
    machine = type("Interleavings", (Interleaving,), {"world": world})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=count, stateful_step_count=20)
    )
