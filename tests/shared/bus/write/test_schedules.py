"""A scheduled message comes at its time, and a repeated call does not schedule it again."""

from __future__ import annotations

import time

from penstock.bus import streams, subjects
from penstock.bus.write.schedules import schedule
from support.drive.bus import connected, new_run_id
from support.drive.waiting import eventually
from support.real.nats import NatsServer


async def test_a_scheduled_message_comes_once_and_not_before_its_time(
    nats_server: NatsServer,
) -> None:
    run_id = new_run_id()
    subject = subjects.schedule("tests", f"rule.{run_id}-1.1-0")
    target = subjects.due("tests", f"rule.{run_id}-1")
    async with connected(nats_server.url) as bus:
        at = time.time() + 3
        assert await schedule(bus, subject, target, at, b"first")
        assert not await schedule(bus, subject, target, at, b"second")
        assert await bus.tail(streams.SCHEDULES, target) is None
        found = await eventually(lambda: bus.tail(streams.SCHEDULES, target), what="the message")
        assert time.time() >= at
        assert found.payload == b"first"
        assert subjects.run_id_of(found.subject) == run_id
        assert await bus.tail(streams.SCHEDULES, subject) is None, "a schedule ends when it fires"
