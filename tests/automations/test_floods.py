"""A flood of one user's events or deliveries does not stand before what another user has."""

from __future__ import annotations

import time
from collections import Counter

from penstock.bus import streams, subjects
from penstock.bus.read import direct
from penstock_automations.actions.shares import RETURNS_PER_S, Shares
from penstock_automations.jobs.job import Job
from support.drive.automations import Automations, rule, user, without_service
from support.drive.waiting import eventually
from support.fakes.receiver import hangs
from support.real.automating import automations_process
from support.real.nats import NatsServer

QUICK = 'event.data.tool == "quick"'
# This condition just may be evaluated on the event loop, so it takes none of its owner's share.
LONG = "event.data.args.l.all(a, event.data.args.l.all(b, a == b))"
LIST = [0] * 28
FLOOD = 11_000
LATE_S = 10.0


def test_deliveries_without_a_place_return_one_after_another_and_each_owner_has_a_queue() -> None:
    places = Shares(8)
    waits_s = [places.reserve_wait_s("alice", 0.0) for _ in range(3 * RETURNS_PER_S)]
    assert waits_s == sorted(waits_s)
    assert max(Counter(map(int, waits_s)).values()) <= RETURNS_PER_S + 1
    assert places.reserve_wait_s("bob", 0.0) < 1.1


def test_the_room_of_an_owner_is_what_the_owner_can_take() -> None:
    places = Shares(9)
    places.take("bob")
    room, taken = places.room("alice"), 0
    while places.take("alice"):
        taken += 1
    assert taken == room
    assert places.room("alice") == 0


async def _scheduled(made: Automations) -> list[tuple[str, Job]]:
    pattern = subjects.schedule("automations", "silent.>")
    found = direct.replay(made.bus, streams.SCHEDULES, pattern)
    return [(each.headers["Nats-Schedule"], Job.parse(each.payload)) async for each in found]


async def test_jobs_of_an_owner_without_a_place_wait_outside_the_queue_of_jobs(
    fresh_nats: NatsServer,
) -> None:
    count = 250
    async with without_service(fresh_nats.url) as made:
        made.receiver.usual["/silent"] = hangs()
        webhook = {"concurrency": 32, "timeout_s": 60}
        silent = rule("silent", made.receiver.url("/silent"), "llm.tool_call", webhook=webhook)
        await made.store.apply(silent, user("u1"))
        await made.store.apply(rule("good", made.receiver.url(), "llm.tool_call"), user("u2"))
        async with automations_process(fresh_nats.url, deliveries_at_once=8):
            attack, other = await made.run("u1"), await made.run("u2")
            await attack.open()
            await other.open()
            for number in range(count):
                await attack.tool(number)

            async def all_wait() -> bool:
                return len(await _scheduled(made)) > count - 20

            await eventually(all_wait, 30, "the jobs that found no place are scheduled")
            waiting = await _scheduled(made)
            begun = time.monotonic()
            await other.tool(0)
            await made.receiver.count(1)
            waited_s = time.monotonic() - begun
        assert max(Counter(at for at, _ in waiting).values()) <= RETURNS_PER_S + 1
        assert any(job.deferrals == 0 for _, job in waiting), "all came through the queue of jobs"
        assert waited_s < LATE_S
