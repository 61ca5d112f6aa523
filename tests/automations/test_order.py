"""An ordered rule's deliveries follow the stream's order, whichever process reports the events."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from penstock.bus.state import deadletters
from penstock_automations.delivery.records import Records
from penstock_automations.jobs import order as queue
from penstock_automations.jobs.job import EventSource, Job
from penstock_automations.jobs.order import Order, Queue
from support.drive.automations import automations, rule
from support.drive.bus import connected, new_run_id
from support.fakes.receiver import late
from support.real.nats import NatsServer


class Log:
    """The jobs of a run's events, in the order of the stream."""

    def __init__(self, run_id: str, count: int) -> None:
        self.jobs = [
            Job("rule", 1, "u", "llm.tool_call", EventSource(run_id, n, event=n * 10, raw=n), True)
            for n in range(1, count + 1)
        ]
        self.reads = 0

    async def between(self, job: Job, after: int, upto: int) -> list[Job]:
        self.reads += 1
        await asyncio.sleep(0)
        return [each for each in self.jobs if after < queue.position(each) <= upto]


async def drained(order: Order, first: Job) -> list[int]:
    """Give the jobs their outcomes one after another; return the positions of their events."""
    found, job = [], first
    while True:
        found.append(queue.position(job))
        following = await order.remove(job)
        if following is None:
            return found
        assert await order.remove(job) == following, "a repeated call returns the same job"
        job = following


@pytest.mark.parametrize("seed", range(5))
async def test_events_reported_in_any_order_and_twice_are_queued_in_the_order_of_the_stream(
    nats_server: NatsServer, seed: int
) -> None:
    luck = random.Random(seed)
    async with connected(nats_server.url) as bus:
        log = Log(new_run_id(), 40)
        processes = [Order(bus, Records(bus).put_queued) for _ in range(3)]
        reports = luck.sample(log.jobs, 40)
        reports += luck.sample(log.jobs, 20)

        async def report(order: Order, batch: Sequence[Job]) -> Job | None:
            return await order.extend(batch, log.between)

        batches = [reports[at : at + 4] for at in range(0, 60, 4)]
        made = [report(processes[n % 3], batch) for n, batch in enumerate(batches)]
        first = {job.key for job in await asyncio.gather(*made) if job is not None}
        assert first == {log.jobs[0].key}, "one job is published, by whoever made it the first"
        assert await drained(processes[0], log.jobs[0]) == [10 * n for n in range(1, 41)]


async def test_a_repeated_report_publishes_the_first_job_again_and_a_late_one_queues_nothing(
    nats_server: NatsServer,
) -> None:
    async with connected(nats_server.url) as bus:
        log, order = Log(new_run_id(), 3), Order(bus, Records(bus).put_queued)
        # The server has delivered the second event to another process, which was killed.
        assert await order.extend([log.jobs[2]], log.between) == log.jobs[0]
        assert await order.extend([log.jobs[0]], log.between) == log.jobs[0]
        assert await order.extend([log.jobs[1]], log.between) is None
        assert await drained(order, log.jobs[0]) == [10, 20, 30]
        reads = log.reads
        assert await order.extend(log.jobs, log.between) is None
        assert log.reads == reads, "a queue that has taken the events reads nothing"


async def test_a_batch_of_a_run_is_one_write(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as bus:

        async def writes() -> int:
            answer = await bus.api("STREAM.INFO.KV_deliveries")
            return int(answer["state"]["last_seq"])

        log, order = Log(new_run_id(), 50), Order(bus, Records(bus).put_queued)
        before = await writes()
        await order.extend(log.jobs, log.between)
        assert await writes() == before + 1


def test_a_queue_is_read_as_it_was_written_and_remembers_where_it_is_when_it_is_empty() -> None:
    [first, second] = Log(new_run_id(), 2).jobs
    made, refused = Queue().extended([first, second])
    assert refused == []
    assert Queue.parse(made.dump()) == made
    assert made.first == first
    assert made.without(replace(first, attempt=4)).first == second
    assert made.without(first).without(second) == Queue(20)
    assert made.without(first).without(second).first is None


def test_jobs_that_differ_in_any_field_are_read_as_they_were_written() -> None:
    jobs = Log(new_run_id(), 6).jobs
    jobs[1] = replace(jobs[1], type="lifecycle.completed", version=2)
    jobs[2] = replace(jobs[2], failure="no", depth=3)
    assert isinstance(jobs[4].source, EventSource)
    jobs[4] = replace(jobs[4], source=replace(jobs[4].source, leg=2))
    made, _ = Queue().extended(jobs[:3])
    made, _ = Queue.parse(made.dump()).extended(jobs[3:])
    for job in jobs:
        made = Queue.parse(made.dump())
        assert made.first == job
        made = made.without(job)
    assert made == Queue(queue.position(jobs[-1]))


def test_a_full_queue_refuses_the_newest_jobs() -> None:
    jobs = Log(new_run_id(), queue.MAX_WAITING + 5).jobs
    made, refused = Queue().extended(jobs)
    assert len(made.jobs) == queue.MAX_WAITING
    assert refused == jobs[-5:]
    assert made.upto == queue.position(jobs[-1])
    assert len(made.dump()) < 50_000, "the fields that jobs have in common are written once"


async def test_what_a_full_queue_refuses_fails_at_once_and_is_a_dead_letter(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "MAX_WAITING", 2)
    async with automations(nats_server.url) as made:
        made.receiver.usual["/hook"] = late(3)
        await made.apply(rule("hook", made.receiver.url(), "llm.tool_call", order="run"))
        run = await made.run()
        await run.open()
        for number in range(5):
            await run.tool(number, n=number)
        outcomes = await made.outcomes(run.run_id, 5)
        codes = [each.data.get("error", {}).get("code") for each in outcomes]
        assert codes == ["queue_full"] * 3 + [None] * 2
        letters = deadletters.letters(made.bus, "automations", run.run_id)
        assert len([each async for each in letters]) == 3
