"""Timers on a real server: they are not late, and none is lost when a process ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import pytest
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from penstock.bus import Bus, subjects
from penstock.bus.streams import SCHEDULES
from penstock.bus.write.schedules import schedule
from penstock_workflows.effects import timers
from penstock_workflows.effects.timers import DUE, Timers, timer_of
from penstock_workflows.engine.records import Ended, Record
from penstock_workflows.journal.journal import Journals, Position
from support.drive.bus import connected, new_run_id
from support.drive.dying import instances
from support.drive.pipeline import PIPELINE
from support.drive.waiting import eventually
from support.drive.workflows import counting, define, definition, start_workflow, workflows
from support.real.nats import NatsServer

DEADLINE_S = 30


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    async with connected(nats_server.url) as made:
        yield made


async def _never(run_id: str, timer: str) -> bool:
    """Be a process that does not come to handle its short timers."""
    return await asyncio.Event().wait()


async def test_due_timers_are_delivered_again_after_another_timer_was_cancelled(bus: Bus) -> None:
    """A process takes the timers of three runs and dies after it has handled one of them.

    Meanwhile, another process cancels the second timer, which is due already.
    """
    made = Timers(bus, 60, _never, 1)
    config = ConsumerConfig(
        durable_name="taker", filter_subject=DUE, ack_policy=AckPolicy.EXPLICIT, ack_wait=5
    )
    await bus.jetstream.nats.add_consumer(SCHEDULES, config)
    taker = await bus.jetstream.nats.pull_subscribe_bind("taker", stream=SCHEDULES)
    for _ in range(3):
        await made.start(new_run_id(), "wait", round(time.time() * 1000) - 5000)  # due at once
    first, second, third = [(await taker.fetch(1, timeout=DEADLINE_S))[0] for _ in range(3)]

    await made.cancel(*timer_of(second.subject))
    await third.ack_sync()

    again = await taker.fetch(1, timeout=DEADLINE_S)
    assert again[0].subject == first.subject


async def test_a_cancelled_timer_is_never_due(bus: Bus) -> None:
    made, cancelled, kept = Timers(bus, 60, _never, 1), new_run_id(), new_run_id()
    at_ms = round(time.time() * 1000) + 1500
    await made.start(cancelled, "wait", at_ms)
    await made.start(kept, "wait", at_ms)
    await made.cancel(cancelled, "wait")

    subscribed = await bus.jetstream.nats.subscribe(
        DUE, stream=SCHEDULES, ordered_consumer=True, deliver_policy=DeliverPolicy.ALL
    )
    subjects = [(await subscribed.next_msg(DEADLINE_S)).subject]
    while timer_of(subjects[-1]) != (kept, "wait"):
        subjects.append((await subscribed.next_msg(DEADLINE_S)).subject)
    assert (cancelled, "wait") not in map(timer_of, subjects)


TEN_WAITS = "steps:\n" + "".join(
    f"  w{n}: {{wait: 10ms{f', needs: [w{n - 1}]' if n else ''}}}\n" for n in range(10)
)
RETRIES = """
steps:
  r:
    run: {agent: worker, message: '"fails"'}
    retry: {attempts: 10, backoff: 10ms, factor: 1, codes: [broken]}
    on_failure: continue
"""


def ten_runs(message: str, more: str = "") -> str:
    steps = [f"run: {{agent: worker, message: '\"{message}\"'}}{more}" for _ in range(10)]
    return "steps:\n" + "".join(
        f"  s{n}: {{{step}{f', needs: [s{n - 1}]' if n else ''}}}\n" for n, step in enumerate(steps)
    )


SHORT_WAIT = """
steps:
  w: {wait: 1s}
  d: {needs: [w], run: {agent: worker, message: '"after"'}, output: result.text}
output: d.output
"""


async def test_short_waits_are_not_rounded_up_to_seconds(nats_server: NatsServer) -> None:
    """NATS alone would end each of the ten waits at the next whole second: after 9 s."""
    async with counting() as server, workflows(nats_server.url, server) as penstock:
        await define(penstock.bus, definition(TEN_WAITS))
        begin = time.monotonic()
        events = await penstock.ended(await start_workflow(penstock.bus, "flow"))
        assert events[-1].type == "lifecycle.completed"
        assert time.monotonic() - begin < 6

        async def no_timer_is_left() -> bool:
            state = (await penstock.bus.api(f"STREAM.INFO.{SCHEDULES}"))["state"]
            return bool(state["messages"] == 1)  # the removal of the journal

        await eventually(no_timer_is_left)


@pytest.mark.parametrize(
    "text", [RETRIES, ten_runs("never", ", timeout: 100ms, on_failure: continue")]
)
async def test_short_retries_and_timeouts_are_not_rounded_up_either(
    nats_server: NatsServer, text: str
) -> None:
    """NATS alone would add up to 10 s to what ten runs of an agent take on this machine."""
    async with counting() as server, workflows(nats_server.url, server) as penstock:
        waits: list[str] = []  # attempts and steps that failed

        async def seconds(text: str) -> float:
            await define(penstock.bus, definition(text))
            begin = time.monotonic()
            events = await penstock.ended(await start_workflow(penstock.bus, "flow"))
            assert events[-1].type == "lifecycle.completed"
            failed = ("lifecycle.retrying", "workflow.step_failed")
            waits.extend(event.type for event in events if event.type in failed)
            return time.monotonic() - begin

        alone_s = await seconds(ten_runs("hello"))
        assert await seconds(text) - alone_s < 4
        assert len(waits) == 10


@pytest.mark.parametrize("is_decided", [True, False])
async def test_the_message_of_a_short_timer_stays_for_others_if_this_process_decided_nothing(
    bus: Bus, is_decided: bool
) -> None:
    """Another process may have decided, and died before the effects."""
    handled = asyncio.Event()

    async def handle(run_id: str, timer: str) -> bool:
        handled.set()
        return is_decided

    made, run_id = Timers(bus, 60, handle, 1), new_run_id()
    subject = subjects.schedule("workflows", f"{run_id}.wait")
    scheduled = asyncio.create_task(made.start(run_id, "wait", round(time.time() * 1000) + 300))
    await asyncio.wait_for(handled.wait(), DEADLINE_S)
    await scheduled
    await made.drain()
    due = subjects.due("workflows", f"{run_id}.wait")
    stays = any([await bus.tail(SCHEDULES, each) for each in (subject, due)])
    assert stays != is_decided


async def test_a_short_timer_of_a_process_that_has_ended_is_handled_by_another(
    fresh_nats: NatsServer,
) -> None:
    async with (
        counting() as server,
        workflows(fresh_nats.url, server, PIPELINE) as penstock,
        instances(fresh_nats.url, server.config) as made,
    ):
        first = await made.start()
        await define(penstock.bus, definition(SHORT_WAIT.replace("1s", "3s")))
        run_id = await start_workflow(penstock.bus, "flow")
        await penstock.events_until(run_id, "workflow.step_started")
        await made.end(first)
        await made.start()
        assert (await penstock.ended(run_id))[-1].data["summary"] == "done after"


async def test_a_process_that_dies_before_the_effects_of_a_short_timer_leaves_them_to_another(
    fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Journals.append
    async with (
        counting() as server,
        workflows(fresh_nats.url, server, PIPELINE) as penstock,
        instances(fresh_nats.url, server.config) as made,
    ):
        first = await made.start()

        async def append_and_die(
            self: Journals, run_id: str, after: Position, records: Sequence[Record]
        ) -> Position:
            end = await append(self, run_id, after, records)
            if any(isinstance(each, Ended) and each.step == "w" for each in records):
                made.let_die(first)
            return end

        async def late(bus: Bus, subject: str, target: str, at: float, payload: bytes) -> bool:
            # The message must not be on its way to the process that dies. If it were, it would be
            # delivered a second time, and so every process would repeat the effects.
            return await schedule(bus, subject, target, at + 4, payload)

        monkeypatch.setattr(timers, "schedule", late)
        monkeypatch.setattr(Journals, "append", append_and_die)
        await define(penstock.bus, definition(SHORT_WAIT))
        run_id = await start_workflow(penstock.bus, "flow")
        await made.died()
        monkeypatch.undo()
        await made.start()
        assert (await penstock.ended(run_id))[-1].data["summary"] == "done after"
        assert server.calls == {"after": 1}
