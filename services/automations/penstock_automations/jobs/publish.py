"""Stores jobs in DELIVERIES."""

from __future__ import annotations

from penstock.bus import Bus, Message
from penstock_automations.jobs.job import Job


async def publish(bus: Bus, job: Job) -> None:
    """Store a job in DELIVERIES; a repeated call within the server's window stores nothing.

    Raises:
        BusError: the job was not stored, or it is unknown whether it was stored; repeat the call.
    """
    headers = {"Nats-Msg-Id": job.message_id}
    await bus.publisher.publish(Message(job.subject, job.dump(), headers))
