"""A flood of one user's events or deliveries does not stand before what another user has."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from types import SimpleNamespace

import orjson
import pytest
import uuid_utils

from penstock.bus import Message, messages, streams, subjects
from penstock.bus.read import direct
from penstock.bus.streams import events_for
from penstock.turns import TenantUser
from penstock_automations.actions import shares
from penstock_automations.actions.shares import Shares
from penstock_automations.delivery.waking import Waking
from penstock_automations.jobs.job import EventSource, Job
from penstock_automations.jobs.publish import postpone
from penstock_automations.jobs.return_times import RETURNS_PER_S, TENANT_TIMES, ReturnTimes
from penstock_automations.matching.backlog import Waiting
from penstock_automations.matching.lanes import MAX_WAITING
from penstock_automations.rules.store import CurrentRules
from support.drive.automations import Automations, rule, user, without_service
from support.drive.waiting import eventually
from support.fakes.receiver import hangs
from support.real.automating import KeptProcess, automations_process
from support.real.nats import NatsServer

ALICE, BOB = TenantUser("", "alice"), TenantUser("", "bob")
QUICK = 'event.data.tool == "quick"'
# This condition just may be evaluated on the event loop, so it takes none of its owner's share.
LONG = "event.data.args.l.all(a, event.data.args.l.all(b, a == b))"
LIST = [0] * 28
FLOOD = 11_000
LATE_S = 10.0


def test_a_backlog_returns_bit_by_bit_and_each_owner_has_a_queue() -> None:
    times = ReturnTimes()
    waits_s = [times.reserve_wait_s(ALICE, 0.0) for _ in range(3 * RETURNS_PER_S)]
    assert waits_s == sorted(waits_s)
    assert max(Counter(map(int, waits_s)).values()) <= RETURNS_PER_S + 1
    assert times.reserve_wait_s(BOB, 0.0) < 1.1


def test_the_room_of_an_owner_is_what_the_owner_can_take() -> None:
    places = Shares(9)
    places.take(BOB)
    room, taken = places.room(ALICE), 0
    while places.take(ALICE):
        taken += 1
    assert taken == room
    assert places.room(ALICE) == 0


def test_all_owners_of_a_tenant_have_a_queue_and_places_together() -> None:
    owners = [TenantUser("acme", f"user-{number}") for number in range(50)]
    times = ReturnTimes()
    waits_s = [times.reserve_wait_s(owner, 0.0) for owner in owners for _ in range(100)]
    most = RETURNS_PER_S * TENANT_TIMES
    assert max(Counter(map(int, waits_s)).values()) <= most + len(owners)
    assert times.reserve_wait_s(TenantUser("umbrella", "bob"), 0.0) < 1.1
    places = Shares(90)
    taken = Counter(owner for _ in range(90) for owner in owners if places.take(owner))
    assert taken.total() == 45, "a tenant gets half of the places, as a single user does"
    assert max(taken.values()) - min(taken.values()) <= 1
    assert places.take(TenantUser("umbrella", "bob"))
    places = Shares(90)
    while places.take(owners[0]):
        pass
    assert places.take(owners[1]), "there is a place for another user of the tenant"


def test_few_jobs_of_an_owner_are_on_their_way_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(shares, "time", SimpleNamespace(monotonic=lambda: now_s))
    places = Shares(1000)
    for _ in range(shares.MAX_COMING):
        assert places.publishable(ALICE) > 0
        places.expect(ALICE)
    assert places.publishable(ALICE) == 0
    assert places.publishable(BOB) == shares.MAX_COMING
    places.note_arrival(ALICE)
    assert places.publishable(ALICE) == 1
    now_s = shares.COMING_S + 0.1
    assert places.publishable(ALICE) == shares.MAX_COMING, "other processes have got the jobs"
    few = Shares(9)
    assert few.publishable(ALICE) == few.room(ALICE)


async def _scheduled(made: Automations) -> list[tuple[str, Job]]:
    pattern = subjects.schedule("automations", ">")
    found = direct.replay(made.bus, streams.SCHEDULES, pattern)
    return [(each.headers["Nats-Schedule"], Job.parse(each.payload)) async for each in found]


async def test_events_for_whose_jobs_the_owner_has_no_place_make_no_jobs_yet(
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

            async def events_wait() -> bool:
                return await _waiting_events(made) >= count - MAX_WAITING - 50

            await eventually(events_wait, 60, "the events for whose jobs there is no place wait")
            jobs = (await made.bus.api("STREAM.INFO.DELIVERIES"))["state"]["messages"]
            scheduled = await _scheduled(made)
            begun = time.monotonic()
            await other.tool(0)
            await made.receiver.count(1)
            waited_s = time.monotonic() - begun
        assert jobs + len(scheduled) < 50, "an event without room for its jobs makes none"
        assert waited_s < LATE_S


async def test_the_waiting_jobs_of_many_deleted_rules_of_one_owner_return_bit_by_bit(
    fresh_nats: NatsServer,
) -> None:
    rules, jobs = 6, 60
    async with without_service(fresh_nats.url) as made:
        current = CurrentRules(made.bus)
        waking = Waking(made.bus, current, lambda id, uid: None)
        for number in range(rules):
            silent = rule(f"silent-{number}", made.receiver.url(), "llm.tool_call")
            uid = (await made.store.apply(silent, user("alice"))).uid
            run_id = str(uuid_utils.uuid7())
            for sequence in range(jobs):
                source = EventSource(run_id, sequence, event=1, raw=1)
                job = Job(silent.id, 1, uid, "llm.tool_call", source)
                await postpone(made.bus, job, time.time() + 3600)
        await current.refresh()
        waking.wake_changed_rules()
        for number in range(rules):
            await made.store.delete(f"silent-{number}")
        await current.refresh()
        waking.wake_changed_rules()

        async def all_woken() -> bool:
            soon = time.time() + 1800
            times = [at for at, _ in await _scheduled(made)]
            return all(datetime.fromisoformat(at[4:]).timestamp() < soon for at in times)

        await eventually(all_woken, 60, "the jobs are brought forward")
        await waking.stop()

        async def counted() -> list[int]:
            """Jobs that become due between the two reads are in both, so that it is read again."""
            waiting = Counter(at for at, _ in await _scheduled(made))
            due = Counter(
                [
                    each.headers[messages.STORED_AT][:19]
                    async for each in direct.replay(
                        made.bus, streams.SCHEDULES, "due.automations.>"
                    )
                ]
            )
            is_whole = waiting.total() + due.total() == rules * jobs
            return [*waiting.values(), *due.values()] if is_whole else []

        counts = await eventually(counted, 30, "each job is there once")
        # NATS may be late with those of a second.
        assert max(counts) < 2 * RETURNS_PER_S


@pytest.mark.timeout(300)
async def test_events_for_which_one_users_lane_has_no_room_stop_no_other_users_matching(
    fresh_nats: NatsServer, record_property: Callable[[str, object], None]
) -> None:
    async with without_service(fresh_nats.url) as made:
        for number in range(90):
            url = made.receiver.url("/alice")
            long = rule(f"long-{number}", url, "llm.tool_call", where=f"{LONG} && false")
            await made.store.apply(long, user("alice"))
        bobs = rule("bob", made.receiver.url("/bob"), "llm.tool_call", where=QUICK)
        await made.store.apply(bobs, user("bob"))
        async with automations_process(fresh_nats.url):
            attack, other = await made.run("alice"), await made.run("bob")
            await attack.open()
            await other.open()
            await attack.tool(0, "slow", l=LIST)
            await other.tool(0, "quick")
            await made.receiver.count(1, "/bob")
            await _flood(made, attack.run_id)
            waits_s = []
            for number in range(1, 4):
                begun = time.monotonic()
                await other.tool(number, "quick")
                await made.receiver.count(number + 1, "/bob", timeout_s=90)
                waits_s.append(time.monotonic() - begun)
            waiting = await _waiting_events(made)
        record_property("latencies_s", [round(each, 3) for each in waits_s])
        # How long bob waits depends on the machine: what counts is that he does not wait for most
        # of alice's events.
        assert waiting > FLOOD // 2, (waiting, waits_s)


@pytest.mark.chaos
async def test_events_of_a_flood_are_matched_once_and_in_order_although_the_process_is_killed(
    fresh_nats: NatsServer,
) -> None:
    count = 160
    async with without_service(fresh_nats.url) as made:
        for number in range(4):
            url = made.receiver.url("/never")
            long = rule(f"long-{number}", url, "llm.tool_call", where=f"{LONG} && false")
            await made.store.apply(long, user("alice"))
        for name, order in (("each", "none"), ("ordered", "run")):
            url = made.receiver.url(f"/{name}")
            each = rule(name, url, "llm.tool_call", where=LONG, order=order)
            await made.store.apply(each, user("alice"))
        async with KeptProcess(fresh_nats.url) as service:
            run = await made.run("alice")
            await run.open()
            for number in range(count):
                await run.tool(number, "slow", l=LIST)

            async def many_wait() -> bool:
                return await _waiting_events(made) > 20

            await eventually(many_wait, 60, "events wait outside of the shared consumer")
            await service.kill()
            await made.receiver.count(20, "/each", timeout_s=60)
            await service.kill()
            outcomes = await made.outcomes(run.run_id, 2 * count, 120)
        assert len({each.data["delivery_id"] for each in outcomes}) == len(outcomes) == 2 * count
        assert {each.type for each in outcomes} == {"automation.completed"}
        ordered = [orjson.loads(each.body) for each in made.receiver.got("/ordered")]
        tools = [each["data"]["sequence"] for each in ordered]
        assert tools == sorted(tools)
        assert await _waiting_events(made) == 0


async def _waiting_events(made: Automations) -> int:
    """Return how many events wait as scheduled messages for a lane with room."""
    pattern = subjects.schedule("automations-events", ">")
    found = direct.replay(made.bus, streams.SCHEDULES, pattern)
    return sum([len(Waiting.parse(each.payload).sequences) async for each in found])


async def test_an_ordered_rule_that_matches_rarely_and_is_slow_stops_no_other_users_matching(
    fresh_nats: NatsServer,
) -> None:
    """Each match of an ordered rule also looks at the run's events since its last match."""
    count = 1500
    async with without_service(fresh_nats.url) as made:
        url = made.receiver.url("/alice")
        where = f'event.data.tool == "last" || ({LONG} && false)'
        rare = rule("rare", url, "llm.tool_call", where=where, order="run")
        await made.store.apply(rare, user("alice"))
        bobs = rule("bob", made.receiver.url("/bob"), "llm.tool_call", where=QUICK)
        await made.store.apply(bobs, user("bob"))
        async with automations_process(fresh_nats.url):
            attack, other = await made.run("alice"), await made.run("bob")
            await attack.open()
            await other.open()
            await attack.tool(0, "slow", l=LIST)
            await other.tool(0, "quick")
            await made.receiver.count(1, "/bob")
            await _flood(made, attack.run_id, count)

            async def all_matched() -> bool:
                state = await made.bus.api("CONSUMER.INFO.EVENTS.automations")
                consumed = state["num_pending"] == state["num_ack_pending"] == 0
                return consumed and await _waiting_events(made) == 0

            await eventually(all_matched, 120, "the events before the match are matched")
            await _flood(made, attack.run_id, 1, tool="last")
            begun = time.monotonic()
            await other.tool(1, "quick")
            await made.receiver.count(2, "/bob", timeout_s=60)
            waited_s = time.monotonic() - begun
            await made.receiver.count(1, "/alice", timeout_s=60)
        assert waited_s < 3.0


async def _flood(made: Automations, run_id: str, count: int = FLOOD, **fields: str) -> None:
    """Store many events like the run's event `llm.tool_call`, as a normalizer would."""
    subject, stream = subjects.event("llm.tool_call", run_id), events_for(run_id)
    last = await made.bus.tail(stream, subject)
    assert last is not None
    body = orjson.loads(last.payload)
    body["data"] |= fields
    numbers = range(1000, 1000 + count)
    for begin in range(0, count, 500):
        events = [orjson.dumps({**body, "sequence": n}) for n in numbers[begin : begin + 500]]
        writes = (made.bus.publisher.publish(Message(subject, each, {})) for each in events)
        await asyncio.gather(*writes)
