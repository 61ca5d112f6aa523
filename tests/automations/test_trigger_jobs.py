"""Jobs of triggers belong to no run, so their outcome is in the delivery's record."""

from __future__ import annotations

from penstock.bus import streams
from penstock.bus.admin import replay
from penstock.bus.state import deadletters
from penstock_automations.delivery.records import DeliveryRecord
from penstock_automations.jobs.job import Job, TriggerSource
from penstock_automations.jobs.publish import publish
from support.drive.automations import Automations, automations, rule
from support.drive.waiting import eventually
from support.fakes.receiver import answers
from support.real.nats import NatsServer

BODY = {
    "timestamp": "2026-11-22T10:00:00.000Z",
    "event": {"category": "hook", "action": "received"},
    "data": {"order": 7},
}


async def triggered(made: Automations, id: str) -> Job:
    record = await made.apply(rule("hook", made.receiver.url(), "lifecycle.completed"))
    return Job("hook", 1, record.uid, "hook.received", TriggerSource("hook", id, BODY))


async def ended(made: Automations, job: Job, replays: int = 0) -> DeliveryRecord:
    async def probe() -> DeliveryRecord | None:
        entry = await made.bus.bucket("deliveries").get(job.key)
        if entry is None:
            return None
        record = DeliveryRecord.model_validate_json(entry.value)
        return record if record.ended_at is not None and record.replay == replays else None

    found = await eventually(probe, 30, what="the delivery's outcome")
    assert found is not None
    return found


async def test_a_job_without_a_run_is_delivered_with_its_own_id(nats_server: NatsServer) -> None:
    async with automations(nats_server.url) as made:
        made.receiver.plans["/hook"] = [answers(500)]
        job = await triggered(made, "hook-1")
        await publish(made.bus, job)
        record = await ended(made, job)
        assert (record.status, record.made, record.run_id) == ("delivered", 2, None)
        assert [each.id for each in made.receiver.requests] == ["hook.hook-1"] * 2
        assert made.receiver.requests[0].json == {
            "type": "hook.received",
            "timestamp": BODY["timestamp"],
            "data": BODY,
        }
        assert "penstock-run-id" not in made.receiver.requests[0].headers


async def test_a_job_without_a_run_that_fails_is_a_dead_letter_that_can_be_replayed(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url, retry_delays_s=()) as made:
        made.receiver.plans["/hook"] = [answers(500)]
        job = await triggered(made, "hook-2")
        await publish(made.bus, job)
        assert (await ended(made, job)).status == "failed"

        async def buried() -> deadletters.Letter | None:
            found = deadletters.letters(made.bus, "automations", "hook")
            return next(iter([each async for each in found]), None)

        letter = await eventually(buried, what="the dead letter")
        assert letter is not None
        assert await replay.replay_letter(made.bus, letter)
        assert (await ended(made, job, 1)).status == "delivered"
        assert {each.id for each in made.receiver.requests} == {"hook.hook-2"}

        async def done() -> bool:
            return await made.bus.tail(streams.DELIVERIES, "delivery.>") is None

        await eventually(done, what="that no job is left")
