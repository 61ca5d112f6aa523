"""Makes a delivery again that has failed."""

from __future__ import annotations

import logging
from dataclasses import replace

from penstock.bus import Bus, Stored
from penstock_automations.delivery.records import Records
from penstock_automations.jobs.job import Job
from penstock_automations.jobs.publish import publish

log = logging.getLogger(__name__)


async def replay(bus: Bus, stored: Stored) -> None:
    """Publish the job of a dead letter again, unless it was replayed before.

    A replay has the same id for its receiver, and begins with the first attempt. It is not kept in
    order with other deliveries of its run, which have gone on.

    Raises:
        ValueError: the message is no job.
        BusError: the job was not published, or it is unknown whether it was published.
    """
    job = Job.parse(stored.payload)
    record = await Records(bus).get(job)
    if record is not None and record.replay > job.replay:
        log.info("delivery %s was replayed before", job.webhook_id)
        return
    await publish(bus, replace(job.again(), ordered=False, failure=None))
