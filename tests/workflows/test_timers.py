"""Timers on a real server: a cancelled timer takes no other run's timer with it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from penstock.bus import Bus
from penstock.bus.streams import SCHEDULES
from penstock_workflows.effects.timers import DUE, Timers, timer_of
from support.drive.bus import connected, new_run_id
from support.real.nats import NatsServer

DEADLINE_S = 30


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    async with connected(nats_server.url) as made:
        yield made


async def test_due_timers_are_delivered_again_after_another_timer_was_cancelled(bus: Bus) -> None:
    """A process takes the timers of three runs and dies after it has handled one of them.

    Meanwhile, another process cancels the second timer, which is due already.
    """
    timers = Timers(bus, 60)
    config = ConsumerConfig(
        durable_name="taker", filter_subject=DUE, ack_policy=AckPolicy.EXPLICIT, ack_wait=5
    )
    await bus.jetstream.nats.add_consumer(SCHEDULES, config)
    taker = await bus.jetstream.nats.pull_subscribe_bind("taker", stream=SCHEDULES)
    for _ in range(3):
        await timers.start(new_run_id(), "wait", round(time.time() * 1000) - 5000)  # due at once
    first, second, third = [(await taker.fetch(1, timeout=DEADLINE_S))[0] for _ in range(3)]

    await timers.cancel(*timer_of(second.subject))
    await third.ack_sync()

    again = await taker.fetch(1, timeout=DEADLINE_S)
    assert again[0].subject == first.subject


async def test_a_cancelled_timer_is_never_due(bus: Bus) -> None:
    timers, cancelled, kept = Timers(bus, 60), new_run_id(), new_run_id()
    at_ms = round(time.time() * 1000) + 1500
    await timers.start(cancelled, "wait", at_ms)
    await timers.start(kept, "wait", at_ms)
    await timers.cancel(cancelled, "wait")

    subscribed = await bus.jetstream.nats.subscribe(
        DUE, stream=SCHEDULES, ordered_consumer=True, deliver_policy=DeliverPolicy.ALL
    )
    subjects = [(await subscribed.next_msg(DEADLINE_S)).subject]
    while timer_of(subjects[-1]) != (kept, "wait"):
        subjects.append((await subscribed.next_msg(DEADLINE_S)).subject)
    assert (cancelled, "wait") not in map(timer_of, subjects)
