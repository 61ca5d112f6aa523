"""A rule fires once at each time of its schedule, despite kills, clock changes and rule changes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.bus import BusError, FenceConflict, streams
from penstock.bus.write.schedules import reschedule
from penstock.documents.cron import rfc3339
from penstock.settings import Config
from penstock_automations.rules.check import read_rule
from penstock_automations.rules.model import Rule
from penstock_automations.rules.records import CompiledRule, Owner
from penstock_automations.rules.store import RuleStore
from penstock_automations.service import AutomationsService
from penstock_automations.triggers.firing import Firing, id_of_time, schedule_subject
from support.drive.automations import Automations, automations
from support.drive.pipeline import pipeline
from support.drive.short import in_short
from support.drive.waiting import eventually
from support.fakes.clocks import server_steps
from support.fakes.receiver import SECRET, receiver
from support.real.automating import automations_process
from support.real.nats import NatsServer

YEARLY = "0 0 1 1 *"
ids = itertools.count(1)


def scheduled(url: str, cron: str = YEARLY, id: str = "", **fields: Any) -> Rule:
    """A rule with a schedule that sends webhooks to the URL."""
    schedule = {"cron": cron, **fields.pop("schedule", {})}
    webhook = {"url": url, "secrets": [SECRET], "concurrency": 32}
    id = id or f"timed-{next(ids)}"
    action = {"webhook": webhook}
    return read_rule({"id": id, "schedule": schedule, "action": action, **fields}, Rule)


def once_today(moment: datetime) -> str:
    """A cron expression in UTC that fires every day at the minute of this moment."""
    return f"{moment.minute} {moment.hour} * * *"


def minute_ago(minutes: float = 2) -> datetime:
    return (datetime.now(UTC) - timedelta(minutes=minutes)).replace(second=0, microsecond=0)


async def in_force_since(store: RuleStore, rule: Rule, seconds_ago: float) -> CompiledRule:
    """Store a rule whose schedule came into force at an earlier time.

    A service must not see the rule before. It would schedule the next time, and a time is only
    missed while no time is scheduled.
    """
    await store.apply(rule.model_copy(update={"enabled": False}), Owner(user_id="u1"))
    found = await store.get(rule.id)
    assert found is not None
    record = found.record
    changes = {
        "rule": record.rule.model_copy(update={"enabled": True}),
        "since": record.since - seconds_ago,
    }
    await store.put(record.model_copy(update=changes), found.revision)
    changed = await store.get(rule.id)
    assert changed is not None
    return changed


def firing_of(rule: CompiledRule, at: float, **fields: Any) -> Firing:
    schedule = rule.record.rule.schedule
    assert schedule is not None
    given = {
        "rule": rule.id,
        "uid": rule.record.uid,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "at": at,
    }
    return Firing(**{**given, **fields})


async def put(made: Automations, firing: Firing, publish_at: float = 0) -> None:
    """Replace the rule's scheduled message by a message for an earlier time."""
    while True:
        with contextlib.suppress(FenceConflict):  # a service has scheduled the rule's own message
            await put_once(made, firing, publish_at)
            return


async def put_once(made: Automations, firing: Firing, publish_at: float = 0) -> None:
    tail = await made.bus.tail(streams.SCHEDULES, firing.subject)
    last = tail.sequence if tail is not None else 0
    at = publish_at or firing.at
    await reschedule(made.bus, firing.subject, firing.due_subject, at, firing.dump(), last)


async def changed_to(made: Automations, rule: CompiledRule, cron: str) -> None:
    await _apply(made, rule, schedule={"cron": cron})
    await made.settled()


async def refused_or_put(made: Automations, firing: Firing) -> None:
    with contextlib.suppress(FenceConflict):
        await put_once(made, firing)


async def pending(made: Automations, rule_id: str) -> Firing | None:
    """The rule's scheduled message."""
    tail = await made.bus.tail(streams.SCHEDULES, schedule_subject(rule_id))
    return Firing.parse(tail.payload) if tail is not None else None


async def handled(made: Automations, firing: Firing | None = None) -> None:
    """Wait until the server has published the firing, and all firings were handled."""

    async def probe() -> bool:
        if firing is not None and await pending(made, firing.rule) == firing:
            return False
        return await made.bus.tail(streams.SCHEDULES, "due.automations-schedules.>") is None

    await eventually(probe, 30, what="that all firings are handled")


async def test_the_next_time_is_scheduled_and_a_missed_one_is_fired_once(
    nats_server: NatsServer,
) -> None:
    """There are three processes. No process was running at a time two minutes ago."""
    async with automations(nats_server.url, 3) as made:
        missed = minute_ago()
        rule = scheduled(made.receiver.url(), once_today(missed), name="Daily")
        await in_force_since(made.store, rule, 3600)
        await made.settled()
        [request] = await made.receiver.count(1)
        stamp = missed.strftime("%Y-%m-%dT%H:%M:00.000Z")
        assert request.id == f"{rule.id}.schedule-{missed:%Y%m%dT%H%M00Z}"
        assert request.json == {
            "type": "schedule.fired",
            "timestamp": stamp,
            "data": {
                "timestamp": stamp,
                "event": {"category": "schedule", "action": "fired"},
                "data": {
                    "scheduled_at": stamp,
                    "local_time": missed.strftime("%Y-%m-%dT%H:%M:00+00:00"),
                    "cron": once_today(missed),
                    "timezone": "UTC",
                },
            },
        }

        async def next_day() -> bool:
            found = await pending(made, rule.id)
            return found is not None and found.at == (missed + timedelta(days=1)).timestamp()

        await eventually(next_day, what="the next day's time")
        await handled(made)
        await made.settled()
        assert len(made.receiver.requests) == 1


async def test_a_time_that_is_fired_again_and_again_starts_one_delivery(
    nats_server: NatsServer,
) -> None:
    """The same firing is published five times, as after kills or with different clocks."""
    async with automations(nats_server.url, 2) as made:
        rule = await in_force_since(made.store, scheduled(made.receiver.url()), 3600)
        await made.settled()
        firing = firing_of(rule, float(int(made.bus.clock.time()) - 1))
        for _ in range(5):
            await put(made, firing)
            await handled(made, firing)
        await made.receiver.count(1)
        record = await eventually(
            lambda: made.bus.bucket("deliveries").get(f"{rule.id}.{id_of_time(firing.at)}")
        )
        assert record is not None
        assert [each.id for each in made.receiver.requests] == [
            f"{rule.id}.{id_of_time(firing.at)}"
        ]


async def test_of_many_missed_times_the_latest_is_fired_and_the_log_says_so(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with automations(nats_server.url, 2) as made:
        rule = await in_force_since(made.store, scheduled(made.receiver.url(), "*/10 * * * *"), 9e4)
        latest = minute_ago(0) - timedelta(minutes=minute_ago(0).minute % 10)
        missed = firing_of(rule, latest.timestamp() - 3000)
        await put(made, missed)
        await made.receiver.count(1)
        await handled(made, missed)
        assert {each.id for each in made.receiver.requests} <= {
            f"{rule.id}.{id_of_time(latest.timestamp() + more)}" for more in (0, 600)
        }, "only the latest time (or the next, if it has come meanwhile)"
        assert f"{rfc3339(missed.at)} was missed; the rule is fired for its latest" in caplog.text


async def test_a_time_that_has_passed_too_long_ago_is_not_fired(nats_server: NatsServer) -> None:
    async with automations(nats_server.url) as made:
        rule = scheduled(made.receiver.url(), schedule={"catch_up_s": 60})
        found = await in_force_since(made.store, rule, 9000)
        missed = firing_of(found, float(int(made.bus.clock.time()) - 120))
        await put(made, missed)
        await made.settled()
        await handled(made, missed)
        assert made.receiver.requests == []
        after = await pending(made, rule.id)
        assert after is not None, "the next time is scheduled all the same"
        assert after.at > made.bus.clock.time()


CHANGES: dict[str, Any] = {
    "paused": lambda made, rule: made.store.pause(rule.id, "a test", "a test"),
    "disabled": lambda made, rule: _apply(made, rule, enabled=False),
    "deleted": lambda made, rule: made.store.delete(rule.id),
    "another schedule": lambda made, rule: _apply(made, rule, schedule={"cron": "1 0 1 1 *"}),
    "another time zone": lambda made, rule: _apply(
        made, rule, schedule={"cron": YEARLY, "timezone": "Europe/Rome"}
    ),
    "no schedule": lambda made, rule: _apply(made, rule, schedule=None, hook={}),
}


async def _apply(made: Automations, rule: CompiledRule, **fields: Any) -> None:
    dumped = {**rule.record.rule.model_dump(), **fields}
    await made.store.apply(read_rule(dumped, Rule), Owner(user_id="u1"))


@pytest.mark.parametrize("change", CHANGES)
async def test_a_changed_rule_fires_no_time_of_before(nats_server: NatsServer, change: str) -> None:
    async with automations(nats_server.url, 2) as made:
        rule = await in_force_since(made.store, scheduled(made.receiver.url()), 3600)
        await made.settled()
        await CHANGES[change](made, rule)
        # A change of the schedule deletes no message, so the earlier message is still published.
        firing = firing_of(rule, float(int(made.bus.clock.time())))
        await put(made, firing)
        await handled(made, firing)
        assert made.receiver.requests == []


async def test_the_times_of_a_pause_are_not_fired_after_it(nats_server: NatsServer) -> None:
    async with automations(nats_server.url) as made:
        rule = await in_force_since(made.store, scheduled(made.receiver.url()), 3600)
        await made.store.pause(rule.id, "a test", "a test")
        in_pause = float(int(made.bus.clock.time()))
        await asyncio.sleep(1.1)
        assert await made.store.resume(rule.id)
        await made.settled()
        await put(made, firing_of(rule, in_pause))
        await handled(made, firing_of(rule, in_pause))
        assert made.receiver.requests == []


async def test_a_rule_of_the_same_id_but_another_owner_does_not_get_the_time(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url) as made:
        rule = await in_force_since(made.store, scheduled(made.receiver.url()), 3600)
        await made.store.apply(rule.record.rule, Owner(user_id="somebody else"))
        await made.settled()
        firing = firing_of(rule, float(int(made.bus.clock.time())))
        await put(made, firing)
        await handled(made, firing)
        assert made.receiver.requests == []


async def test_a_name_that_is_changed_in_the_moment_of_firing_loses_no_time(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url, 2) as made:
        rule = await in_force_since(made.store, scheduled(made.receiver.url()), 3600)
        await made.settled()
        fired = []
        for number in range(8):
            at = float(int(made.bus.clock.time()) - number)
            fired.append(f"{rule.id}.{id_of_time(at)}")
            firing = firing_of(rule, at)
            await asyncio.gather(put(made, firing), _apply(made, rule, name=f"name {number}"))
            await handled(made, firing)
        await made.receiver.count(len(set(fired)))
        assert Counter(each.id for each in made.receiver.requests) == Counter(set(fired))


async def test_a_schedule_that_is_changed_in_the_moment_of_firing_is_the_one_that_stays(
    nats_server: NatsServer,
) -> None:
    """Even if a process handles the old time last, the new schedule's time stays scheduled."""
    async with automations(nats_server.url, 3) as made:
        rule = await in_force_since(made.store, scheduled(made.receiver.url()), 3600)
        await made.settled()
        for number in range(12):
            cron = f"{number} 0 1 1 *"
            at = float(int(made.bus.clock.time()) - 1)

            # The test's own message may be refused: the new time was scheduled before it.
            await asyncio.gather(
                refused_or_put(made, firing_of(rule, at)), changed_to(made, rule, cron)
            )
            await handled(made, firing_of(rule, at))
            found = await pending(made, rule.id)
            assert found is not None
            assert found.cron == cron
            changed = await made.store.get(rule.id)
            assert changed is not None
            rule = changed
        assert len(made.receiver.requests) <= 12


async def test_a_clock_that_is_set_back_fires_no_time_before_it_comes(
    nats_server: NatsServer,
) -> None:
    """NATS's clock was an hour ahead when the server published the message."""
    async with automations(nats_server.url) as made:
        rule = await in_force_since(made.store, scheduled(made.receiver.url()), 3600)
        await made.settled()
        ahead = firing_of(rule, float(int(made.bus.clock.time()) + 3600))
        await put(made, ahead, publish_at=made.bus.clock.time() - 1)
        await handled(made, ahead)
        assert made.receiver.requests == []
        after = await pending(made, rule.id)
        assert after is not None, "the rule's own next time is scheduled again"
        assert datetime.fromtimestamp(after.at, UTC).strftime("%m-%d %H:%M") == "01-01 00:00"


async def test_clocks_that_jump_forward_and_back_fire_each_time_once(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url, 2) as made:
        missed = minute_ago(1)
        rule = scheduled(made.receiver.url(), once_today(missed))
        await in_force_since(made.store, rule, 3600)
        await made.settled()
        await made.receiver.count(1)
        services = [each for each in made.penstock.services if isinstance(each, AutomationsService)]
        for step_s in (86_400, -86_400, -600, 600):
            for service in services:
                server_steps(service.bus.clock, step_s)
                await service.apply_rule_changes()
                service._schedules._on_reconnect()  # look at everything again
            await asyncio.sleep(0.5)
            await handled(made)
        ids = [each.id for each in made.receiver.requests]
        today = f"{rule.id}.{id_of_time(missed.timestamp())}"
        assert ids.count(today) == 1
        assert len(ids) == len(set(ids)), "no time twice, also of the days that came too early"


async def test_many_schedules_at_one_time_are_all_fired_once_and_nothing_is_said_to_be_given_up(
    fresh_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with automations(fresh_nats.url, 2) as made:
        missed = minute_ago()
        url = made.receiver.url()
        rules = [scheduled(url, once_today(missed), f"many-{number}") for number in range(60)]
        for rule in rules:
            await in_force_since(made.store, rule, 3600)
        await made.receiver.count(len(rules))
        await handled(made)
        time = id_of_time(missed.timestamp())
        assert Counter(each.id for each in made.receiver.requests) == {
            f"{rule.id}.{time}": 1 for rule in rules
        }

        async def quiet() -> bool:
            return await made.bus.tail(streams.ADVISORIES, ">") is None

        await eventually(quiet, what="that all advisories are handled")
        assert "gave up" not in caplog.text
        advisories = await made.bus.api(f"STREAM.INFO.{streams.ADVISORIES}")
        assert advisories["state"]["last_seq"] == 0, "each message is deleted after its ack"


async def test_a_time_that_passes_while_nats_is_away_is_fired_once_afterwards(
    fresh_nats: NatsServer,
) -> None:
    async with automations(fresh_nats.url, 2) as made:
        rule = await in_force_since(made.store, scheduled(made.receiver.url()), 3600)
        await made.settled()
        firing = firing_of(rule, float(int(made.bus.clock.time()) + 2))
        await put(made, firing)
        fresh_nats.kill()
        await asyncio.sleep(3)
        fresh_nats.start()
        await made.receiver.count(1, timeout_s=30)
        await handled(made)
        assert [each.id for each in made.receiver.requests] == [
            f"{rule.id}.{id_of_time(firing.at)}"
        ]
        assert await pending(made, rule.id) is not None


async def test_scheduled_messages_that_nats_has_lost_are_made_again(fresh_nats: NatsServer) -> None:
    async with automations(fresh_nats.url) as made:
        rule = await in_force_since(made.store, scheduled(made.receiver.url()), 60)
        await made.settled()
        before = await pending(made, rule.id)
        assert before is not None
        await made.bus.api(f"STREAM.PURGE.{streams.SCHEDULES}")
        fresh_nats.kill()
        fresh_nats.start()

        async def again() -> bool:
            try:
                return await pending(made, rule.id) == before
            except BusError:
                return False

        await eventually(again, 30, what="the scheduled message")


# The scheduled message, the job, the next time, the record of the delivery; job and record may be
# written in another order than the next time.
@pytest.mark.parametrize("write", in_short(range(1, 5), [2, 3]))
async def test_a_kill_at_any_write_leaves_one_delivery_for_the_time(
    fresh_nats: NatsServer, write: int
) -> None:
    async with receiver() as received, pipeline(fresh_nats.url, Config(agents=[]), ()) as base:
        made = Automations(base, received, RuleStore(base.bus))
        missed = minute_ago()
        rule = scheduled(received.url(), once_today(missed))
        await in_force_since(made.store, rule, 3600)
        with contextlib.suppress(RuntimeError):  # the process may be killed before it is ready
            async with automations_process(fresh_nats.url, dies_before=write) as victim:
                assert await victim.process.ended() == -signal.SIGKILL
        async with automations_process(fresh_nats.url) as other:
            await received.count(1, timeout_s=30)
            await handled(made)

            async def next_day() -> bool:
                found = await pending(made, rule.id)
                return found is not None and found.at == (missed + timedelta(days=1)).timestamp()

            await eventually(next_day, what="the next day's time")

            async def nothing_left() -> bool:
                return await made.bus.tail(streams.DELIVERIES, "delivery.>") is None

            await eventually(nothing_left, 30, what="that the delivery has its outcome")
            assert await other.stop() == 0
        assert {each.id for each in received.requests} == {
            f"{rule.id}.{id_of_time(missed.timestamp())}"
        }
        # Only after a kill between the answer and its record, the webhook is sent again.
        assert len(received.requests) <= 2
