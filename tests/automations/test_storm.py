"""While a receiver fails in all ways and processes are killed, each delivery has one outcome."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import pytest

from penstock.bus import BusError, streams
from support.drive.automations import Automations, DrivenRun, rule, user, without_service
from support.drive.waiting import eventually
from support.fakes.hostile import FAILURES, Hostile
from support.fakes.receiver import OK, answers
from support.real.automating import KeptProcess
from support.real.nats import NatsServer


@dataclass(frozen=True, slots=True)
class Storm:
    """`fails`: the share of requests that fail. `pause_s`: from one kill to the next."""

    runs: int
    calls: int
    kills: int
    pause_s: float
    timeout_s: float
    fails: float = 0.3
    seed: int = 11

    @property
    def expected(self) -> dict[str, int]:
        """The deliveries of each run, by rule."""
        return {"all": self.calls + 1, "ordered": self.calls, "even": (self.calls + 1) // 2}


SHORT = Storm(runs=6, calls=10, kills=2, pause_s=2.0, timeout_s=60)
FULL = Storm(runs=200, calls=50, kills=10, pause_s=8.0, timeout_s=900)


async def play(storm: Storm, nats: NatsServer) -> Hostile:
    """Run a storm with three rules, and a fourth whose receiver answers 410; check every run."""
    settings = {"retry_delays_s": [1] * 20, "deliver_ack_wait_s": 2, "drain_s": 1}
    async with without_service(nats.url) as made, AsyncExitStack() as stack:
        hostile = Hostile(storm.seed, storm.fails)
        for name in storm.expected:
            made.receiver.usual[f"/{name}"] = hostile.behave
        made.receiver.usual["/gone"] = answers(410)
        await _apply_rules(made)
        processes = [
            await stack.enter_async_context(KeptProcess(nats.url, **settings)) for _ in range(2)
        ]
        runs = [await made.run() for _ in range(storm.runs)]
        luck = random.Random(storm.seed)
        writing = asyncio.gather(*(_events(run, storm.calls, luck) for run in runs))
        for number in range(storm.kills):
            await asyncio.sleep(storm.pause_s)
            await processes[number % 2].kill()
        await writing
        for run in runs:
            await made.penstock.events_until(run.run_id, "lifecycle.completed", storm.timeout_s)
        paused = await made.store.get("gone")
        assert paused is not None
        assert paused.record.paused is not None, "its receiver answered 410"
        made.receiver.usual["/gone"] = OK
        await made.store.resume("gone")
        await eventually(partial(_is_done, made), storm.timeout_s, "all deliveries are done")
        refused = 0
        for run in runs:
            refused += await _check(made, run, storm)
        assert refused > 0
    return hostile


async def _apply_rules(made: Automations) -> None:
    url = made.receiver.url
    webhook = {"concurrency": 32, "timeout_s": 1}
    for each in (
        rule("all", url("/all"), "llm.tool_call", "lifecycle.completed", webhook=webhook),
        rule("ordered", url("/ordered"), "llm.tool_call", order="run", webhook=webhook),
        rule(
            "even",
            url("/even"),
            "llm.tool_call",
            where="event.data.args.n % 2 == 0",
            webhook=webhook,
        ),
        rule("gone", url("/gone"), "lifecycle.started", webhook=webhook),
    ):
        await made.store.apply(each, user("u1"))


async def _events(run: DrivenRun, calls: int, luck: random.Random) -> None:
    await run.open()
    for number in range(calls):
        await run.tool(number, "get_weather", n=number)
        await asyncio.sleep(luck.random() * 0.05)
    await run.complete()


async def _is_done(made: Automations) -> bool:
    """Return whether all events are matched and no job is left; False if NATS does not answer.

    A job may move between the streams while they are asked one after another. Each move writes a
    message, so the answers count only if no message was written meanwhile.
    """
    try:
        before = await _last_written(made)
        left = await _jobs_left(made)
        return left == 0 and await _last_written(made) == before
    except BusError:
        return False  # the machine has stood still for seconds


async def _last_written(made: Automations) -> list[int]:
    return [
        (await made.bus.api(f"STREAM.INFO.{stream}"))["state"]["last_seq"]
        for stream in (streams.DELIVERIES, streams.SCHEDULES)
    ]


async def _jobs_left(made: Automations) -> int:
    left: int
    matching = await made.bus.api(f"CONSUMER.INFO.{streams.EVENTS}.automations")
    left = matching["num_pending"] + matching["num_ack_pending"]
    left += (await made.bus.api(f"STREAM.INFO.{streams.DELIVERIES}"))["state"]["messages"]
    # A process that was killed after it acknowledged a due message leaves it in SCHEDULES.
    due = await made.bus.api(f"CONSUMER.INFO.{streams.SCHEDULES}.automations")
    left += due["num_pending"] + due["num_ack_pending"]
    waiting = {"subjects_filter": "schedule.automations.>"}
    scheduled = await made.bus.api(f"STREAM.INFO.{streams.SCHEDULES}", waiting)
    left += len(scheduled["state"].get("subjects") or ())
    return left


async def _check(made: Automations, run: DrivenRun, storm: Storm) -> int:
    """Check a run's outcomes and requests; return how many webhooks got a 410."""
    said = await made.said(run.run_id)
    triggered = Counter(id for type_, id in said if type_ == "automation.triggered")
    outcomes = Counter(id for type_, id in said if type_ != "automation.triggered")
    assert set(outcomes.values()) == {1}, "one outcome for each event and rule"
    assert triggered == outcomes
    failed = [id for type_, id in said if type_ == "automation.failed"]
    assert _rules(failed).keys() <= {"gone"}, "no other delivery has failed for good"
    assert {**_rules(outcomes), "gone": 0} == {**storm.expected, "gone": 0}
    assert _in_order([id for type_, id in said if type_ == "automation.completed"])
    # On the wire: a delivery may come twice, but never after a later one of its run.
    wire = [
        each.id
        for each in made.receiver.got("/ordered")
        if each.headers["penstock-run-id"] == run.run_id
    ]
    assert _in_order(wire)
    assert set(wire) == {id for id in outcomes if id.startswith("ordered.")}
    shown = await made.outcomes(run.run_id, len(outcomes))
    assert sorted(each.data["delivery_id"] for each in shown) == sorted(outcomes)
    return len(failed)


def _rules(ids: Iterable[str]) -> Counter[str]:
    return Counter(id.partition(".")[0] for id in ids)


def _in_order(ids: list[str]) -> bool:
    numbers = [int(id.rpartition(".")[2]) for id in ids if id.startswith("ordered.")]
    return all(earlier <= later for earlier, later in pairwise(numbers))


@pytest.mark.timeout(180)
async def test_kills_and_a_receiver_that_fails_leave_one_outcome_for_each_event_and_rule(
    fresh_nats: NatsServer,
) -> None:
    await play(SHORT, fresh_nats)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
async def test_ten_kills_under_ten_thousand_events(fresh_nats: NatsServer) -> None:
    hostile = await play(FULL, fresh_nats)
    assert len(hostile.failed) == len(FAILURES), "the receiver has failed in every way"
