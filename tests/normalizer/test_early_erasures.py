"""Runs whose content is kept for less time than events are erased when their time has come."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import orjson

from penstock.bus import Bus, messages, streams, subjects
from penstock.bus.records.erasures import Hold
from penstock.bus.records.runs import RunRecord
from penstock.bus.state.run_trees import RunTrees
from penstock.settings.keep import parse_keep
from penstock_normalizer.erasing.early import EarlyErasures
from support.drive.erasing import ask, erased, record_of
from support.drive.normalizing import Run, bus_to, normalizer
from support.drive.waiting import eventually
from support.fakes.raw import agno
from support.real.nats import NatsServer

KEEP = ("agent:kept=1h", "agent:short-*=1s", "tenant:acme=2s")


async def ended(bus: Bus, agent: str, run: Run | None = None, **fields: Any) -> Run:
    """Let a run of this agent end, and write these fields into its record."""
    run, now = run or Run(bus), messages.now()
    record = RunRecord(
        run_id=run.run_id,
        agent=agent,
        session_id=f"s-{uuid4().hex}",
        user_id="u",
        created_at=now,
        updated_at=now,
        message="words",
        **fields,
    )
    await bus.bucket("runs").put(run.run_id, record.dump())
    await run.open(agent=agent)
    await run.bytes(agno("RunStarted") + agno("RunContent", content="words"))
    await run.bytes(agno("RunContentCompleted") + agno("RunCompleted", content="words"))
    await run.end()

    async def is_recorded() -> bool:
        return (await record_of(bus, run.run_id)).status == "completed"

    await eventually(is_recorded, 30, "the run's end")
    return run


async def test_the_runs_of_an_agent_or_a_tenant_are_erased_when_they_are_old_and_no_others(
    fresh_nats: NatsServer,
) -> None:
    hold = Hold(by="lea", at=messages.now(), reason="case 7")
    async with bus_to(fresh_nats.url) as bus, AsyncExitStack() as stack:
        async with normalizer(fresh_nats.url):
            old = await ended(bus, "short-a")
            held = await ended(bus, "short-a", hold=hold)
            other = await ended(bus, "other")
            kept = await ended(bus, "kept", tenant="acme")
        # One that starts later reads what has become old meanwhile.
        await stack.enter_async_context(normalizer(fresh_nats.url, keep=KEEP))
        root, child = await workflow(bus)
        of_tenant = await ended(bus, "other", tenant="acme")
        for run, entry in (
            (old, "agent:short-*=1s"),
            (of_tenant, "tenant:acme=2s"),
            (root, "agent:short-*=1s"),
        ):
            erasure = (await erased(bus, run.run_id)).erasure
            assert erasure is not None
            assert (erasure.by, erasure.reason) == ("penstock", f"retention: {entry}")
            [event] = await run.events()
            assert orjson.loads(event.payload)["data"]["reason"] == erasure.reason
        # The run of the step has gone with its workflow's, by the same command.
        of_child, of_root = [(await erased(bus, each.run_id)).erasure for each in (child, root)]
        assert of_child is not None
        assert of_root is not None
        assert of_child.id == of_root.id
        for run in (held, other, kept):
            record = await record_of(bus, run.run_id)
            assert (record.erasure, record.message) == (None, "words")

        # When the hold is lifted, its time begins.
        def lift(record: RunRecord) -> None:
            record.hold = None

        await bus.bucket("runs").change(held.run_id, RunRecord, lift)
        await erased(bus, held.run_id)


async def test_a_hold_that_is_set_before_the_erasure_begins_delays_no_other_run(
    fresh_nats: NatsServer,
) -> None:
    hold = Hold(by="lea", at=messages.now(), reason="case 7")
    async with bus_to(fresh_nats.url) as bus:
        async with normalizer(fresh_nats.url):
            held, other = await ended(bus, "short-a"), await ended(bus, "short-a")
        asking = asyncio.create_task(EarlyErasures(bus, parse_keep(KEEP), lambda: True).run())
        try:
            command = subjects.command(subjects.NORMALIZER, "erase", held.run_id)

            async def asked() -> bool:
                return await bus.tail(streams.COMMANDS, command) is not None

            await eventually(asked, 30, "the command")

            def add(record: RunRecord) -> None:
                record.hold = hold

            await bus.bucket("runs").change(held.run_id, RunRecord, add)
            async with normalizer(fresh_nats.url):
                await erased(bus, other.run_id)
            assert (await record_of(bus, held.run_id)).erasure is None
        finally:
            asking.cancel()
            await asyncio.wait([asking])


async def test_an_old_run_does_not_wait_for_a_service_that_is_away_and_had_handled_its_events(
    fresh_nats: NatsServer,
) -> None:
    async with bus_to(fresh_nats.url) as bus, normalizer(fresh_nats.url):
        old = await ended(bus, "other")
        place = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": (await old.events())[-1].sequence + 1,
        }
        config = {"durable_name": "approvals-budgets", "ack_policy": "explicit", **place}
        durable = "EVENTS.approvals-budgets"
        body = {"stream_name": "EVENTS", "config": config}
        await bus.api(f"CONSUMER.DURABLE.CREATE.{durable}", body)
        later = await ended(bus, "other")
        for each in (later, old):
            await ask(bus, each.run_id)
        await erased(bus, old.run_id)
        erasure = (await record_of(bus, later.run_id)).erasure
        assert erasure is not None
        assert erasure.erased_at is None, "its events are not handled yet"
        await bus.api(f"CONSUMER.DELETE.{durable}")
        await erased(bus, later.run_id)


async def test_a_workflow_whose_tree_cannot_be_read_stays_whole_and_delays_no_other_run(
    fresh_nats: NatsServer,
) -> None:
    async with bus_to(fresh_nats.url) as bus, normalizer(fresh_nats.url):
        root, child = await workflow(bus)
        other = await ended(bus, "short-a")
        await bus.bucket("trees").put(f"runs.{root.run_id}", b"{")
        asking = asyncio.create_task(EarlyErasures(bus, parse_keep(KEEP), lambda: True).run())
        try:
            await erased(bus, other.run_id)
        finally:
            asking.cancel()
            await asyncio.wait([asking])
        for each in (root, child):
            assert (await record_of(bus, each.run_id)).erasure is None


async def workflow(bus: Bus) -> tuple[Run, Run]:
    """Make the run of a workflow, and a run of its step, whose agent has no entry; both have
    ended."""
    root, child = Run(bus), Run(bus)
    assert await RunTrees(bus).add(root.run_id, child.run_id, 10)
    await ended(bus, "other", child, root_run_id=root.run_id, ancestors=[root.run_id])
    return await ended(bus, "short-flow", root, target="workflows"), child
