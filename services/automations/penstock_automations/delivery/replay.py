"""Replays deliveries that have ended, and retries deliveries that wait."""

from __future__ import annotations

import logging
from dataclasses import replace

import orjson

from penstock.bus import Bus, Stored
from penstock.bus.state import deadletters
from penstock.log_fields import run_of
from penstock_automations.delivery.outcomes import traceback_id
from penstock_automations.delivery.records import DeliveryRecord, Records
from penstock_automations.delivery.waking import bring_forward
from penstock_automations.jobs.job import Job
from penstock_automations.jobs.publish import publish

log = logging.getLogger(__name__)


class CannotReplay(Exception):
    """A delivery cannot be made again, or tried, now. The text has the reason."""


async def replay_delivery(bus: Bus, record: DeliveryRecord) -> Job:
    """Replay a delivery that has its outcome; return the job of the replay.

    The receiver gets the same `webhook-id`. The request is sent also if the receiver's breaker is
    open, because a person asks for it. Two calls at the same time cause only one replay,
    because both publish a job with the same id, and DELIVERIES discards the second job. The next
    replay gets a new id only after an attempt of this replay was recorded. The dead letter of the
    failure is marked as replayed.

    Raises:
        CannotReplay: the delivery has no outcome yet, or there was nothing to deliver.
        BusError: the job was not published, or it is unknown whether it was published.
    """
    try:
        failed = replace(Job.parse(orjson.dumps(record.job)), replay=record.replay)
    except ValueError as error:
        raise CannotReplay("its record has no job") from error
    if record.status == "waiting":
        raise CannotReplay("it still waits: retry-now sends it now")
    if failed.failure is not None:
        raise CannotReplay("the rule's condition failed, so there was nothing to deliver")
    job = replace(failed.replayed(), ordered=False)
    await publish(bus, job)
    if record.status == "failed":
        await deadletters.mark(bus, f"automations.{traceback_id(failed)}", "replayed")
    return job


async def retry_delivery(bus: Bus, record: DeliveryRecord) -> None:
    """Make the next attempt of a waiting delivery now, also if the receiver's breaker is open.

    If the delivery is under way, this changes nothing. A repeated call is harmless.

    Raises:
        CannotReplay: the delivery has its outcome, or waits for another delivery.
        BusError: it is unknown whether the attempt is made now; repeat the call.
    """
    if record.status != "waiting":
        raise CannotReplay(f"it does not wait, it is {record.status}: replay makes it again")
    if record.waits_for == "order":
        raise CannotReplay("an earlier delivery of its run comes first: retry that one")
    key = Job.parse(orjson.dumps(record.job)).key
    await bring_forward(bus, f"{key}.*", lambda job: True, is_asked_for=True)


async def replay_dead_letter(bus: Bus, stored: Stored) -> None:
    """Publish the job of a dead letter again, unless it was replayed before.

    A replay has the same id for its receiver, and begins with the first attempt. A replay of an
    ordered rule is not kept in order, because later deliveries of the run have already been made.

    Raises:
        ValueError: the message is no job.
        BusError: the job was not published, or it is unknown whether it was published.
    """
    job = Job.parse(stored.payload)
    record = await Records(bus).get(job)
    if record is not None and record.replay > job.replay:
        log.info("delivery %s was replayed before", job.delivery_id, extra=run_of(job.key))
        return
    again = replace(job.replayed(), ordered=False, failure=None)
    await publish(bus, again)
