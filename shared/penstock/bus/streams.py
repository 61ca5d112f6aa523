"""Declares the streams and buckets of Penstock as data. Services make or upgrade the streams at the
start.

The README beside this file lists what each stream and bucket holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from nats.js.api import (
    DiscardPolicy,
    RePublish,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    SubjectTransform,
)

from penstock.bus import subjects
from penstock.bus.subjects import CATEGORIES, PARTITIONS, SHARD, shard_of

COMMANDS, RAW, EVENTS, SCHEDULES, DELIVERIES, DEADLETTERS, ADVISORIES, AUDIT, JOURNAL, KEYS = (
    "COMMANDS",
    "RAW",
    "EVENTS",
    "SCHEDULES",
    "DELIVERIES",
    "DEADLETTERS",
    "ADVISORIES",
    "AUDIT",
    "JOURNAL",
    "KEYS",
)

# The most shards that RAW and EVENTS may have. The number is limited, because each process looks
# after the streams of every shard.
MAX_SHARDS = 64
_OF_SHARD = re.compile(rf"({RAW}|{EVENTS})_([1-9][0-9]*)")

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S

# The version of the declarations below. Increase the version by one with every change of the
# declarations. Release 0.1 recorded no schema, so the streams of release 0.1 count as schema 1.
SCHEMA = 8
# The oldest schema whose services can work on streams of the schema `SCHEMA`.
OLDEST = 1
# The oldest schema whose services know shards. Services of an older schema would write the frames
# of a run into shard 0, whatever the run's shard is.
OLDEST_WITH_SHARDS = 3
SCHEMA_KEY, OLDEST_KEY = "penstock-schema", "penstock-oldest-schema"
# The key in the metadata of RAW under which a start finds how many shards were ever made. With only
# one shard, the metadata does not have this key.
SHARDS_KEY = "penstock-shards"

# Fields of a stream's configuration: the fields that identify a stream of Penstock (STRUCTURE), the
# fields that a start upgrades (FORWARD), and the fields of retention and replication, which only
# the operator changes (RETENTION).
STRUCTURE = ("subjects", "retention", "subject_transform", "republish")
FORWARD = (
    *("description", "subjects", "subject_transform", "republish", "duplicate_window"),
    *("allow_direct", "allow_atomic", "allow_rollup_hdrs", "allow_msg_ttl"),
    *("allow_msg_schedules", "subject_delete_marker_ttl"),
)
RETENTION = ("max_age", "max_bytes", "num_replicas")


@dataclass(frozen=True, slots=True)
class Retention:
    """The limits of what streams keep: ages in seconds (0: no limit), sizes in bytes (-1: no
    limit). PENSTOCK_KEEP sets all ages but those of runs and idempotency keys."""

    replicas: int = 1
    raw_max_age_s: float = DAY_S
    events_max_age_s: float = 7 * DAY_S
    deadletters_max_age_s: float = 30 * DAY_S
    deliveries_max_age_s: float = 30 * DAY_S
    decisions_max_age_s: float = 0.0
    runs_max_age_s: float = 30 * DAY_S
    costs_max_age_s: float = 400 * DAY_S  # thirteen months
    idempotency_max_age_s: float = DAY_S
    max_bytes: int = -1
    # the number of shards of a new installation; later, only `penstock streams migrate` adds shards
    shards: int = 1


def raw_of(shard: int) -> str:
    return f"{RAW}_{shard}" if shard else RAW


def events_of(shard: int) -> str:
    return f"{EVENTS}_{shard}" if shard else EVENTS


def raw_for(run_id: str) -> str:
    return raw_of(shard_of(run_id))


def events_for(run_id: str) -> str:
    return events_of(shard_of(run_id))


def kind_and_shard(stream: str) -> tuple[str, int]:
    """Return the kind and the shard of a stream: (RAW, 3) of `RAW_3`, (RAW, 0) of `RAW`."""
    match = _OF_SHARD.fullmatch(stream)
    return (match[1], int(match[2])) if match else (stream, 0)


def streams(retention: Retention) -> list[StreamConfig]:
    """Return every stream with all its limits; of RAW and EVENTS, return only shard 0. A field
    without a value has the server's default."""
    stream = _stream_with(retention)
    return [
        stream(
            name=COMMANDS,
            description="Commands to connectors and workflows: a work queue",
            subjects=["command.*.*.*"],
            retention=RetentionPolicy.WORK_QUEUE,
            discard=DiscardPolicy.NEW,
        ),
        *shard_streams(retention, 0),
        stream(
            name=SCHEDULES,
            description="Deadlines, retries, timers; a schedule must outlive any age limit",
            subjects=["schedule.>", "due.>"],
            allow_msg_schedules=True,
            allow_msg_ttl=True,
        ),
        stream(
            name=DELIVERIES,
            description="Deliveries of automations: a work queue",
            subjects=["delivery.*.*"],
            retention=RetentionPolicy.WORK_QUEUE,
            discard=DiscardPolicy.NEW,
        ),
        stream(
            name=DEADLETTERS,
            description="What a service could not process, with the reason",
            subjects=["deadletter.*.*"],
            max_age=retention.deadletters_max_age_s,
            # The window is as long as the age limit. So the server keeps only one dead letter for
            # each message and service, even when the service gives the message up again much later.
            duplicate_window=retention.deadletters_max_age_s,
        ),
        stream(
            name=ADVISORIES,
            description="Which messages were delivered as often as they may be, or terminated",
            subjects=[f"{subjects.MAX_DELIVERIES}.>", f"{subjects.TERMINATED}.>"],
            retention=RetentionPolicy.WORK_QUEUE,
            max_age=retention.deadletters_max_age_s,
        ),
        stream(
            name=AUDIT,
            description="Who asked, decided and ran what: a chain of hashes for each run",
            subjects=["audit.*"],
            # Records are only appended. The server refuses to delete a message or to purge the
            # stream. A message can neither expire by a message TTL nor roll up a subject.
            deny_delete=True,
            deny_purge=True,
        ),
        stream(
            name=JOURNAL,
            description="What happened in each workflow's run, in order: the truth about the run",
            subjects=["journal.*", "journal.*.*"],
            # A full stream must refuse new records. If the stream dropped old records, the state of
            # runs that are under way would be lost. A workflow may wait for weeks, so there is no
            # age limit. Instead, the workflows service purges the subject of a run that ended long
            # ago.
            discard=DiscardPolicy.NEW,
            allow_atomic=True,
        ),
        stream(
            name=KEYS,
            description="The key of each run's content, wrapped by the operator's key",
            # A key outlives all that it seals, so there is no age limit. A bucket, or a limit of
            # one message for each subject, would drop an earlier message without overwriting its
            # bytes on the disk. Only the deletion of a single message overwrites them.
            subjects=["key.*"],
            discard=DiscardPolicy.NEW,
        ),
    ]


def shard_streams(retention: Retention, shard: int) -> list[StreamConfig]:
    """Return RAW and EVENTS of one shard. A publisher chooses the shard by its subject
    (`subjects.to_shard`). All shards store the same subjects and republish to the same subjects."""
    stream = _stream_with(retention)
    source = subjects.to_shard(shard, "raw.*.*")
    return [
        stream(
            name=raw_of(shard),
            description="Source frames, verbatim, partitioned by run",
            subjects=[source],
            subject_transform=SubjectTransform(
                src=source,
                dest=f"rawp.{{{{partition({PARTITIONS},1)}}}}.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}",
            ),
            republish=RePublish(src="rawp.*.*.*", dest="frames.{{wildcard(2)}}.{{wildcard(3)}}"),
            max_age=retention.raw_max_age_s,
            allow_atomic=True,
        ),
        stream(
            name=events_of(shard),
            description="Canonical events: category.action.run_id",
            subjects=[subjects.to_shard(shard, f"{category}.>") for category in CATEGORIES],
            subject_transform=(
                SubjectTransform(src=f"{SHARD}.{shard}.>", dest=">") if shard else None
            ),
            republish=RePublish(src=">", dest="live.>"),
            max_age=retention.events_max_age_s,
            allow_atomic=True,
        ),
    ]


def _stream_with(retention: Retention) -> Callable[..., StreamConfig]:
    return partial(
        StreamConfig,
        storage=StorageType.FILE,
        num_replicas=retention.replicas,
        max_bytes=retention.max_bytes,
        allow_direct=True,
        # nats-server 2.15 would treat "unlimited" as 1,000 consumers for each stream
        max_consumers=100_000,
    )


def buckets(retention: Retention) -> list[StreamConfig]:
    """Return the stream of every KV bucket, and the stream of the object store."""
    forever = 0.0
    ages_s = {
        "runs": retention.runs_max_age_s,  # the list of runs
        "costs": retention.costs_max_age_s,  # what each run used and cost
        "budgets": retention.costs_max_age_s,  # what is used of budgets
        "sessions": forever,  # the runs of a session, and its queue
        "aliases": retention.runs_max_age_s,  # from foreign ids to run ids
        "idempotency": retention.idempotency_max_age_s,
        "claims": retention.runs_max_age_s,  # which connector holds a leg's upstream connection
        # the sending of each decision, which happens at most once
        "sent": retention.runs_max_age_s,
        "approvals": retention.decisions_max_age_s,  # requests and decisions
        "policies": forever,  # the policy of approvals
        # conversations, which AG-UI servers must get again with each request
        "threads": retention.runs_max_age_s,
        "pauses": forever,  # a paused run's fold, which may outlive its events
        "rules": forever,  # automations
        "workflows": forever,  # definitions of workflows
        "deliveries": retention.deliveries_max_age_s,  # attempts and outcomes of automations
        "endpoints": 3600.0,  # the breakers of automations; each key has its own TTL
        "listens": forever,  # which events the steps of workflows wait for
        "trees": retention.runs_max_age_s,  # the runs below a run, and which workflows stop
        "cursors": retention.runs_max_age_s,  # the positions of clients with a named cursor
        "tokens": forever,  # stream and service tokens, links, by hash; each key has its own TTL
        "checkpoints": forever,  # how far each partition is processed; how far streams reach
        "leases": forever,  # each key has its own TTL
        "letters": retention.deadletters_max_age_s,  # which dead letters were replayed
    }
    # large requests and events, carried by reference
    objects = StreamConfig(
        name="OBJ_payloads",
        subjects=["$O.payloads.C.>", "$O.payloads.M.>"],
        storage=StorageType.FILE,
        num_replicas=retention.replicas,
        discard=DiscardPolicy.NEW,
        # a paused run still needs its objects when the run's events have expired
        max_age=max(retention.events_max_age_s, retention.runs_max_age_s),
        allow_direct=True,
        allow_rollup_hdrs=True,
        max_consumers=100_000,
    )
    return [objects] + [
        StreamConfig(
            name=f"KV_{bucket}",
            subjects=[f"$KV.{bucket}.>"],
            storage=StorageType.FILE,
            num_replicas=retention.replicas,
            discard=DiscardPolicy.NEW,
            max_msgs_per_subject=1,
            max_age=max_age_s,
            max_consumers=100_000,
            allow_direct=True,
            allow_rollup_hdrs=True,
            allow_msg_ttl=True,
            deny_delete=True,
            # An expired lease leaves a marker, so that readers of the bucket notice the expiry.
            subject_delete_marker_ttl=1.0 if bucket == "leases" else None,
        )
        for bucket, max_age_s in ages_s.items()
    ]
