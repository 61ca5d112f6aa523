"""Processes of the service are killed: each event and rule has one outcome all the same."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from typing import Any

import pytest

from penstock.bus import streams
from penstock_automations.jobs.order import Queue
from penstock_automations.settings import AutomationsSettings
from support.drive.automations import rule, user, without_service
from support.drive.short import in_short
from support.fakes.receiver import answers, hangs, late
from support.real.automating import automations_process
from support.real.nats import NatsServer

# Of one delivery: the job, automation.triggered, (the request), the record, the outcome.
WRITES = 4


@pytest.mark.parametrize("write", in_short(range(1, WRITES + 1), [1, 3]))
async def test_a_kill_at_any_step_of_a_delivery_leaves_one_outcome(
    fresh_nats: NatsServer, write: int
) -> None:
    async with without_service(fresh_nats.url) as made:
        await made.store.apply(rule("hook", made.receiver.url(), "lifecycle.started"), user("u1"))
        async with automations_process(fresh_nats.url, dies_before=write) as victim:
            run = await made.run()
            await run.open()
            assert await victim.process.ended() == -signal.SIGKILL
        async with automations_process(fresh_nats.url) as other:
            await made.outcomes(run.run_id, 1)
            assert await other.stop() == 0
        id = f"hook.{run.run_id}.1"
        assert await made.said(run.run_id) == [
            ("automation.triggered", id),
            ("automation.completed", id),
        ]
        # Only a kill between the answer and its record makes another process ask again.
        assert len(made.receiver.got()) == (2 if write == 3 else 1)
        assert await made.bus.tail(streams.DELIVERIES, "delivery.>") is None


# Of one delivery in order: its place in the queue, the job, automation.triggered, (the request),
# the record, the outcome, the end of its place.
@pytest.mark.parametrize("write", in_short(range(1, 7), [6]))
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
            assert await victim.process.ended() == -signal.SIGKILL
        async with automations_process(fresh_nats.url) as other:
            await run.tool(2)
            outcomes = await made.outcomes(run.run_id, 2)
            assert await other.stop() == 0
        ids = [str(each.data["delivery_id"]) for each in outcomes]
        assert len(set(ids)) == 2
        assert await made.said(run.run_id) == [
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
            assert await victim.process.ended() == -signal.SIGKILL
        async with automations_process(fresh_nats.url, retry_delays_s=delays):
            [outcome] = await made.outcomes(run.run_id, 1)
        assert outcome.data["attempts"] == 2
        assert len(made.receiver.got()) == 2


@pytest.mark.parametrize("order", ["none", "run"])
async def test_sigterm_cuts_no_delivery_and_makes_none_twice(
    fresh_nats: NatsServer, order: str
) -> None:
    """Each run has three deliveries; in order, two of them wait for the one before."""
    async with without_service(fresh_nats.url) as made:
        made.receiver.usual["/hook"] = late(1.0)
        webhook = {"concurrency": 32}
        types = ("lifecycle.started", "llm.tool_call")
        hook = rule("hook", made.receiver.url(), *types, webhook=webhook, order=order)
        await made.store.apply(hook, user("u1"))
        async with automations_process(fresh_nats.url, drain_s=15) as first:
            runs = [await made.run() for _ in range(16)]
            await asyncio.gather(*(run.open() for run in runs))
            await asyncio.gather(*(run.tool(n) for run in runs for n in range(2)))
            await made.receiver.count(1)
            assert await first.stop() == 0
            taken = len(made.receiver.requests)
        async with automations_process(fresh_nats.url):
            ids = [each for run in runs for each in await made.outcomes(run.run_id, 3)]
        assert taken >= 1
        assert Counter(each.id for each in made.receiver.requests) == Counter(
            str(each.data["delivery_id"]) for each in ids
        )
        assert len({each.id for each in made.receiver.requests}) == 48


async def test_a_request_under_way_when_its_process_dies_is_sent_again_within_five_seconds(
    fresh_nats: NatsServer,
) -> None:
    """Another user's deliveries, made meanwhile, tell how much later all is on this machine."""
    async with without_service(fresh_nats.url) as made:
        made.receiver.plans["/hook"] = [hangs()]
        await made.store.apply(rule("hook", made.receiver.url(), "llm.tool_call"), user("u1"))
        beside = rule("beside", made.receiver.url("/beside"), "lifecycle.started")
        await made.store.apply(beside, user("u2"))
        settings: dict[str, Any] = {"deliver_ack_wait_s": AutomationsSettings().deliver_ack_wait_s}
        async with automations_process(fresh_nats.url, **settings) as victim:
            run = await made.run()
            await run.open()
            await run.tool(0)
            await made.receiver.count(1)
            async with automations_process(fresh_nats.url, **settings):
                await victim.kill()
                killed_at = time.monotonic()
                late_s = 0.0
                while len(made.receiver.got()) < 2:
                    begun = time.monotonic()
                    await (await made.run("u2")).open()
                    count = len(made.receiver.got("/beside")) + 1
                    last = (await made.receiver.count(count, "/beside"))[-1]
                    late_s = max(late_s, last.at - begun)
                _, again = made.receiver.got()
                await made.outcomes(run.run_id, 1)
        assert again.at - killed_at < 5 + late_s
