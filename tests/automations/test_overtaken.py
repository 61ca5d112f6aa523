"""A process that has lost its job by slowness does not undo the next process's work."""

from __future__ import annotations

from penstock_automations.delivery.records import DeliveryRecord, Records
from penstock_automations.jobs.job import EventSource, Job
from support.drive.automations import automations, rule
from support.drive.bus import connected, new_run_id
from support.fakes.receiver import OK, Received, answers
from support.real.nats import NatsServer


def record(job: Job) -> DeliveryRecord:
    return DeliveryRecord(
        id=job.delivery_id,
        rule=job.rule,
        name="Rule",
        type=job.type,
        status="waiting",
        began_at=1.0,
    )


async def test_a_record_that_another_process_has_written_meanwhile_is_not_overwritten(
    nats_server: NatsServer,
) -> None:
    async with connected(nats_server.url) as bus:
        job = Job("rule", 1, "u", "llm.tool_call", EventSource(new_run_id(), 1, event=1, raw=1))
        slow, fast = Records(bus), Records(bus)
        late, made = record(job), record(job)
        made.made, made.status = 1, "delivered"
        assert await fast.put(job, made)
        assert not await slow.put(job, late)
        found = await slow.get(job)
        assert found is not None
        assert (found.status, found.has_done(job)) == ("delivered", True)
        late.replace(found)
        assert await slow.put(job, late)
        assert await slow.put(job, late), "the revision is that of the last write"
        await bus.bucket("deliveries").put(job.key, b"not a record")
        assert await slow.put(job, late), "what cannot be read is replaced"


async def test_an_attempt_that_fails_after_another_process_has_delivered_changes_nothing(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url) as made:

        async def overtaken(writer: object, received: Received) -> None:
            """Another process delivers while this attempt is under way; then this attempt fails."""
            source = EventSource(run.run_id, 1, event=1, raw=1)
            job = Job("hook", 1, "u", "lifecycle.started", source)
            done = record(job)
            done.made, done.status, done.ended_at = 1, "delivered", 2.0
            await made.bus.bucket("deliveries").put(job.key, done.dump())
            await answers(500)(writer, received)  # type: ignore[arg-type]

        made.receiver.plans["/hook"] = [overtaken, OK]
        await made.apply(rule("hook", made.receiver.url(), "lifecycle.started"))
        run = await made.run()
        await run.open()
        [outcome] = await made.outcomes(run.run_id, 1)
        assert outcome.type == "automation.completed"
        assert len(made.receiver.requests) == 1, "no second attempt follows"
