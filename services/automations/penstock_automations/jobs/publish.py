"""Stores jobs in DELIVERIES. Every call may be repeated, and raises BusError."""

from __future__ import annotations

from penstock.bus import Bus, FenceConflict, Message, Stored
from penstock.bus.read.work_queue import GiveUp
from penstock.bus.write import fence
from penstock.bus.write.schedules import schedule
from penstock_automations.jobs.job import DUE_TTL_S, Job


async def publish(bus: Bus, job: Job) -> None:
    """Store a job. A repeated call within the server's duplicate window stores nothing."""
    headers = {"Nats-Msg-Id": job.message_id}
    await bus.publisher.publish(Message(job.subject, job.dump(), headers))


async def postpone(bus: Bus, job: Job, at: float) -> None:
    """Have a job come to DELIVERIES at the time `at`, in Unix seconds. A repeated call stores
    nothing while the first job waits."""
    await schedule(bus, job.schedule_subject, job.due_subject, at, job.dump(), DUE_TTL_S)


async def publish_due(bus: Bus, give_up: GiveUp, stored: Stored) -> None:
    """Move a job that is due from SCHEDULES to DELIVERIES. A repeated call moves it once."""
    try:
        job = Job.parse(stored.payload)
    except ValueError as error:
        await give_up(stored, error)
    else:
        await publish(bus, job)


async def publish_first(bus: Bus, job: Job) -> bool:
    """Store a trigger's job in DELIVERIES unless it is there already; return whether it was stored.

    A trigger may be handled again long after the server's window for repeated messages. While the
    first job waits in DELIVERIES, the fence refuses a second job. After that, a second job ends
    without effect, because the delivery's record has the attempt.
    """
    message = Message(job.subject, job.dump(), {"Nats-Msg-Id": job.message_id})
    try:
        await fence.append(bus, job.subject, [message], 0)
    except FenceConflict:
        return False
    return True
