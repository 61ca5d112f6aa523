"""Processes of the service are killed: each event and rule has one outcome all the same."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import orjson
import pytest

from penstock.bus import streams, subjects
from penstock.bus.read import direct
from penstock.settings import Config
from penstock_automations.jobs.queue import Queue
from penstock_automations.rules.store import RuleStore
from penstock_normalizer.service import NormalizerService
from support.drive.automations import Automations, DrivenRun, rule, user
from support.drive.pipeline import pipeline
from support.drive.waiting import eventually
from support.fakes.receiver import OK, Behaviour, answers, late, receiver, resets
from support.real.automating import automations_process
from support.real.nats import NatsServer

# Of one delivery: the job, automation.triggered, (the request), the record, the outcome.
WRITES = 4


@asynccontextmanager
async def without_service(url: str) -> AsyncIterator[Automations]:
    """A normalizer and a receiver; the test starts the service's processes itself."""
    async with receiver() as made, pipeline(url, Config(agents=[]), (NormalizerService,)) as base:
        yield Automations(base, made, RuleStore(base.bus))
        assert made.bad_signatures == []


async def said(made: Automations, run_id: str) -> list[tuple[str, str]]:
    """What the service wrote about a run, in the order of RAW: type and delivery."""
    found = []
    async for stored in direct.replay(
        made.bus, streams.RAW, subjects.raw_stored(run_id, "automations")
    ):
        event = orjson.loads(stored.payload)
        found.append((event["type"], event["data"]["delivery_id"]))
    return found


@pytest.mark.parametrize("write", range(1, WRITES + 1))
async def test_a_kill_at_any_step_of_a_delivery_leaves_one_outcome(
    fresh_nats: NatsServer, write: int
) -> None:
    async with without_service(fresh_nats.url) as made:
        await made.store.apply(rule("hook", made.receiver.url(), "lifecycle.started"), user("u1"))
        async with automations_process(fresh_nats.url, dies_before=write) as victim:
            run = await made.run()
            await run.open()
            assert await victim.process.wait() == -signal.SIGKILL
        async with automations_process(fresh_nats.url) as other:
            await made.outcomes(run.run_id, 1)
            assert await other.stop() == 0
        id = f"hook.{run.run_id}.1"
        assert await said(made, run.run_id) == [
            ("automation.triggered", id),
            ("automation.completed", id),
        ]
        # Only a kill between the answer and its record makes another process ask again.
        assert len(made.receiver.got()) == (2 if write == 3 else 1)
        assert await made.bus.tail(streams.DELIVERIES, "delivery.>") is None


# Of one delivery in order: its place in the queue, the job, automation.triggered, (the request),
# the record, the outcome, the end of its place.
@pytest.mark.parametrize(
    "write", [*(pytest.param(n, marks=pytest.mark.chaos) for n in range(1, 6)), 6]
)
async def test_a_kill_at_any_step_of_an_ordered_delivery_leaves_one_outcome_and_no_queue(
    fresh_nats: NatsServer, write: int
) -> None:
    async with without_service(fresh_nats.url) as made:
        hook = rule("hook", made.receiver.url(), "llm.tool_call", order="run")
        await made.store.apply(hook, user("u1"))
        async with automations_process(fresh_nats.url, dies_before=write) as victim:
            run = await made.run()
            await run.open()
            await run.tool(1)
            assert await victim.process.wait() == -signal.SIGKILL
        async with automations_process(fresh_nats.url) as other:
            await run.tool(2)
            outcomes = await made.outcomes(run.run_id, 2)
            assert await other.stop() == 0
        ids = [str(each.data["delivery_id"]) for each in outcomes]
        assert len(set(ids)) == 2
        assert await said(made, run.run_id) == [
            (type_, id) for id in ids for type_ in ("automation.triggered", "automation.completed")
        ]
        assert [each.id for each in made.receiver.got()] in (ids, [ids[0], *ids])
        entry = await made.bus.bucket("deliveries").get(f"order.hook.{run.run_id}")
        assert entry is not None
        assert Queue.parse(entry.value).jobs == ()


async def test_a_kill_before_a_retry_is_scheduled_loses_no_retry(fresh_nats: NatsServer) -> None:
    async with without_service(fresh_nats.url) as made:
        await made.store.apply(rule("hook", made.receiver.url(), "lifecycle.started"), user("u1"))
        made.receiver.plans["/hook"] = [answers(500)]
        delays = [1, 1, 1]
        # the job, automation.triggered, the record, and now the schedule
        async with automations_process(
            fresh_nats.url, dies_before=4, retry_delays_s=delays
        ) as victim:
            run = await made.run()
            await run.open()
            assert await victim.process.wait() == -signal.SIGKILL
        async with automations_process(fresh_nats.url, retry_delays_s=delays):
            [outcome] = await made.outcomes(run.run_id, 1)
        assert outcome.data["attempts"] == 2
        assert len(made.receiver.got()) == 2


async def test_sigterm_cuts_no_delivery_and_makes_none_twice(fresh_nats: NatsServer) -> None:
    async with without_service(fresh_nats.url) as made:
        made.receiver.usual["/hook"] = late(1.0)
        webhook = {"concurrency": 32}
        await made.store.apply(
            rule("hook", made.receiver.url(), "lifecycle.started", webhook=webhook), user("u1")
        )
        async with automations_process(fresh_nats.url, drain_s=15) as first:
            runs = [await made.run() for _ in range(16)]
            await asyncio.gather(*(run.open() for run in runs))
            await made.receiver.count(1)
            assert await first.stop() == 0
            taken = len(made.receiver.requests)
        async with automations_process(fresh_nats.url):
            for run in runs:
                await made.outcomes(run.run_id, 1)
        assert taken >= 1
        assert Counter(each.id for each in made.receiver.requests) == {
            f"hook.{run.run_id}.1": 1 for run in runs
        }


# Few answers that count for the circuit breaker, which would stop everything for 30 s.
BAD: Sequence[Behaviour] = (answers(404), answers(302), answers(400), answers(409), resets)


class Storm:
    """Runs that go on, and a receiver that fails."""

    def __init__(self, made: Automations, seed: int) -> None:
        self.made = made
        self.luck = random.Random(seed)

    async def sometimes(self, writer: asyncio.StreamWriter, received: object) -> None:
        """A receiver that fails three times in ten."""
        behave = self.luck.choice(BAD) if self.luck.random() < 0.3 else OK
        await behave(writer, received)  # type: ignore[arg-type]

    async def events(self, run: DrivenRun, count: int) -> None:
        """A run with so many tool calls."""
        await run.open()
        for number in range(count):
            await run.tool(number, "get_weather", n=number)
            await asyncio.sleep(self.luck.random() * 0.05)
        await run.complete()


async def storm(
    fresh_nats: NatsServer, runs: int, calls: int, kills: int, pause_s: float, timeout_s: float
) -> None:
    """Three rules, `runs` runs with `calls` tool calls each, and kills every `pause_s`."""
    async with without_service(fresh_nats.url) as made, AsyncExitStack() as stack:
        weather = Storm(made, seed=11)
        for path in ("/all", "/ordered", "/even"):
            made.receiver.usual[path] = weather.sometimes
        url = made.receiver.url
        wide = {"concurrency": 32}
        for each in (
            rule("all", url("/all"), "llm.tool_call", "lifecycle.completed", webhook=wide),
            rule("ordered", url("/ordered"), "llm.tool_call", order="run", webhook=wide),
            rule(
                "even",
                url("/even"),
                "llm.tool_call",
                where="event.data.args.n % 2 == 0",
                webhook=wide,
            ),
        ):
            await made.store.apply(each, user("u1"))
        processes = [await stack.enter_async_context(_kept(fresh_nats.url)) for _ in range(2)]
        driven = [await made.run() for _ in range(runs)]
        writing = asyncio.gather(*(weather.events(run, calls) for run in driven))
        for number in range(kills):
            await asyncio.sleep(pause_s)
            await processes[number % 2].kill()
        await writing
        expected = calls + 1 + calls + (calls + 1) // 2
        for run in driven:
            await made.outcomes(run.run_id, expected, timeout_s)
        # Nothing is left that could be said again.
        for stream in (streams.DELIVERIES, streams.SCHEDULES):
            await eventually(partial(_empty, made, stream), 60, f"{stream} is empty")
        for run in driven:
            await _check(made, run, calls)


class _Kept:
    """A process that is started again after each kill."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._now: AsyncExitStack | None = None
        self._starting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._now = AsyncExitStack()
        await self._now.enter_async_context(
            automations_process(self._url, retry_delays_s=[1] * 15, deliver_ack_wait_s=2, drain_s=1)
        )

    async def kill(self) -> None:
        """Kill it, and start the next one meanwhile."""
        await self.settle()
        assert self._now is not None
        await self._now.aclose()
        self._starting = asyncio.create_task(self.start())

    async def settle(self) -> None:
        if self._starting is not None:
            await self._starting
            self._starting = None


@asynccontextmanager
async def _kept(url: str) -> AsyncIterator[_Kept]:
    kept = _Kept(url)
    await kept.start()
    try:
        yield kept
    finally:
        await kept.settle()
        assert kept._now is not None
        await kept._now.aclose()


async def _empty(made: Automations, stream: str) -> bool:
    return bool((await made.bus.api(f"STREAM.INFO.{stream}"))["state"]["messages"] == 0)


async def _check(made: Automations, run: DrivenRun, calls: int) -> None:
    by_kind: dict[str, Counter[str]] = defaultdict(Counter)
    ordered = []
    for type_, id in await said(made, run.run_id):
        kind = "triggered" if type_ == "automation.triggered" else "outcome"
        by_kind[kind][id] += 1
        if kind == "outcome" and id.startswith("ordered."):
            ordered.append(int(id.rpartition(".")[2]))
        assert type_ != "automation.failed"
    assert set(by_kind["outcome"].values()) == {1}, "one outcome for each event and rule"
    assert by_kind["outcome"].keys() == by_kind["triggered"].keys()
    assert set(by_kind["triggered"].values()) == {1}
    rules = Counter(id.partition(".")[0] for id in by_kind["outcome"])
    assert rules == {"all": calls + 1, "ordered": calls, "even": (calls + 1) // 2}
    assert ordered == sorted(ordered)
    # On the wire: an event may come twice, but never after a later event of its run.
    seen = [
        int(each.id.rpartition(".")[2])
        for each in made.receiver.got("/ordered")
        if each.headers["penstock-run-id"] == run.run_id
    ]
    assert seen == sorted(seen)


@pytest.mark.timeout(180)
async def test_kills_of_two_processes_leave_one_outcome_for_each_event_and_rule(
    fresh_nats: NatsServer,
) -> None:
    await storm(fresh_nats, runs=6, calls=12, kills=5, pause_s=1.5, timeout_s=60)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
async def test_ten_kills_under_ten_thousand_events(fresh_nats: NatsServer) -> None:
    await storm(fresh_nats, runs=200, calls=50, kills=10, pause_s=8, timeout_s=900)
