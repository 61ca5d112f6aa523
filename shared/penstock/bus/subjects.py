"""Makes and parses every subject, fence pattern and key of the bus. Pure.

Subjects end in the run id, so that "all tool calls" is `llm.tool_call.*` and "this run" is
`*.*.<run_id>`. Penstock makes the run ids, which begin with the time. Foreign ids are data: they
become part of a key only as SHA-256 hex (`key_of`), and never part of a subject.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable

PARTITIONS = 16  # the number of partitions of RAW in each shard
# The version digit of a run id that contains a shard, the place of the version digit, and the place
# of the shard's three digits. Runs of shard 1 and later have such ids, which are UUIDv8s. Runs of
# shard 0 have UUIDv7s. Both kinds of ids begin with the time in milliseconds, so ids sort by the
# time of creation.
_SHARDED, _VERSION_AT, _SHARD_DIGITS = "8", 14, slice(15, 18)
SHARD = "shard"  # the first token of the subjects to which messages for shard 1 and later are sent
CATEGORIES = (
    "lifecycle",
    "llm",
    "dispatch",
    "workflow",
    "retrieval",
    "approval",
    "automation",
    "state",
    "artifact",
    "custom",
    "system",
)
NORMALIZER = "normalizer"  # the service that erases, as a target of commands
WORKFLOWS = "workflows"  # the service that runs workflows, as a target of commands and in schedules
# The prefix of the subjects on which the server reports that a message was delivered as often as
# its consumer allows.
MAX_DELIVERIES = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES"
# The prefix of the subjects on which the server reports that a client terminated a message, with
# the client's reason.
TERMINATED = "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED"

_RUN_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def is_run_id(text: str) -> bool:
    """Return whether the text is a run id in the only form that may become a subject token."""
    return _RUN_ID.fullmatch(text) is not None


def shard_of(run_id: str) -> int:
    """Return the shard of RAW and EVENTS that stores a run: 0 if the run's id has no shard."""
    if run_id[_VERSION_AT : _VERSION_AT + 1] != _SHARDED:
        return 0
    return int(run_id[_SHARD_DIGITS], 16)


def to_shard(shard: int, subject: str) -> str:
    """Return the subject to which a message is published so that the shard stores it under
    `subject`.

    The transform of the shard's stream removes the first two tokens. Shard 0 has none.
    """
    return f"{SHARD}.{shard}.{subject}" if shard else subject


def raw(run_id: str, writer: str) -> str:
    return to_shard(shard_of(run_id), f"raw.{run_id}.{writer}")


def raw_stored(run_id: str, writer: str) -> str:
    return f"rawp.*.{run_id}.{writer}"


def raw_of_run(run_id: str) -> str:
    return f"rawp.*.{run_id}.*"


def raw_of_partition(partition: int) -> str:
    return f"rawp.{partition}.>"


def frames(run_id: str, writer: str) -> str:
    return f"frames.{run_id}.{writer}"


def event(event_type: str, run_id: str) -> str:
    """Return the stored subject of a canonical event; `event_type` is `category.action`."""
    return f"{event_type}.{run_id}"


def event_input(event_type: str, run_id: str) -> str:
    """Return the subject to which the normalizer publishes a canonical event of a run."""
    return to_shard(shard_of(run_id), f"{event_type}.{run_id}")


def events_of_run(run_id: str) -> str:
    """Return the pattern of all canonical events of a run, which is also their fence pattern."""
    return f"*.*.{run_id}"


def live_of_run(run_id: str) -> str:
    return f"live.*.*.{run_id}"


def command(target: str, kind: str, run_id: str) -> str:
    """Return the subject of a command; `kind` is start, continue, cancel, replay or erase."""
    return f"command.{target}.{kind}.{run_id}"


def control(run_id: str) -> str:
    return f"control.{run_id}"


def handover() -> str:
    """Return the subject of core requests that ask any other connector to take over a leg."""
    return "handover.leg"


def session_turn(session_key: str) -> str:
    return f"turn.{session_key}"


def decide(approval_id: str) -> str:
    return f"decide.{approval_id}"


def link(approval_id: str) -> str:
    return f"link.{approval_id}"


def hold(run_id: str) -> str:
    """Return the subject of a request to write into the audit who has set or lifted a legal
    hold."""
    return f"hold.{run_id}"


def push(run_id: str) -> str:
    return f"push.{run_id}"


def check(run_id: str) -> str:
    """Return the subject of a request to check texts, which the automations service answers."""
    return f"check.{run_id}"


def replay_letter(number: int | str) -> str:
    """Return the subject of a request to replay a dead letter, which the normalizer answers."""
    return f"letter.{number}"


def audit(chain: str) -> str:
    return f"audit.{chain}"


def journal(run_id: str) -> str:
    return f"journal.{run_id}"


def journal_value(run_id: str, digest: str) -> str:
    """Return the subject of a large value that records of a workflow's run refer to."""
    return f"journal.{run_id}.{digest}"


def content_key(run_id: str) -> str:
    """Return the subject of the key that seals the content of a run."""
    return f"key.{run_id}"


def key_notice(run_id: str) -> str:
    """Return the subject of the notice that the key of a run is withheld, or was destroyed."""
    return f"keygone.{run_id}"


def key_request(durable: str, run_id: str) -> str:
    """Return the subject of a subscriber's core request for the key of a run. NATS lets a user ask
    only under the names of its durables."""
    return f"runkey.{durable}.{run_id}"


def alive(pod: str) -> str:
    return f"alive.{pod}"


def deadletter(service: str, run_id: str) -> str:
    return f"deadletter.{service}.{run_id}"


def replay_of(service: str, run_id: str) -> str:
    return command(service, "replay", run_id)


def event_patterns(types: Iterable[str]) -> list[str]:
    """Return the patterns of the subjects of events; leave out patterns that others cover.

    A type is `category.action`, in which each part may be `*`; a type without an action means all
    events of the category. A pattern with a run id, such as `*.*.<run_id>`, is taken as it is.
    """
    patterns = list(dict.fromkeys(map(_of_events, types)))
    return [
        each
        for each in patterns
        if not any(other != each and covers(other, each) for other in patterns)
    ]


def _of_events(event_type: str) -> str:
    tokens = event_type.split(".")
    if tokens[-1] == ">":
        return event_type
    return ".".join([*tokens, *["*"] * (3 - len(tokens))])


def covers(pattern: str, other: str) -> bool:
    """Return whether `pattern` matches every subject that the pattern `other` matches."""
    own, asked = pattern.split("."), other.split(".")
    if own[-1] == ">":
        own, asked = own[:-1], asked[: len(own) - 1]
    elif asked[-1] == ">":
        return False
    return len(own) == len(asked) and all(
        mine in ("*", theirs) for mine, theirs in zip(own, asked, strict=True)
    )


def can_overlap(pattern: str, other: str) -> bool:
    for mine, theirs in zip(pattern.split("."), other.split("."), strict=False):
        if ">" in (mine, theirs):
            return True
        if mine != theirs and "*" not in (mine, theirs):
            return False
    return pattern.count(".") == other.count(".")


def large_event(run_id: str, sequence: int | str, part: int | str) -> str:
    """Return the subject of core requests for a part of an event that is in the object store."""
    return f"large.{run_id}.{sequence}.{part}"


def delivery(rule: str, run_id: str, sequence: int) -> str:
    """Return the subject of the job that delivers, for a rule, this event of the run."""
    return delivery_of(f"{rule}.{run_id}-{sequence}")


def delivery_of(key: str) -> str:
    """Return the subject of a job of automations. `key` has two tokens: rule and trigger."""
    return f"delivery.{key}"


def schedule(service: str, key: str) -> str:
    """Return the subject of a scheduled message of a service. `key` has tokens joined by dots."""
    return f"schedule.{service}.{key}"


def due(service: str, key: str) -> str:
    """Return the subject to which the server publishes a scheduled message at its time."""
    return f"due.{service}.{key}"


def traceback_id(subject: str, sequence: int) -> str:
    """Return the id that all log lines about a failed message have, in every process."""
    return hashlib.sha256(f"{subject} {sequence}".encode()).hexdigest()[:12]


def run_id_of(subject: str) -> str:
    """Return the run id in a subject: mostly the last token, in RAW the token before the last."""
    tokens = subject.split(".")
    if tokens[0] in ("raw", "rawp", "frames"):
        return tokens[-2]
    if tokens[0] == "journal":
        return tokens[1]  # journal.<run>, or journal.<run>.<digest>
    if tokens[:2] == ["due", WORKFLOWS]:
        return tokens[2]  # due.workflows.<run>.<timer>
    if tokens[0] in ("delivery", "due"):
        return tokens[-1].rpartition("-")[0]  # the last token is <run>-<sequence>
    return tokens[-1]


def partition_of(run_id: str, partitions: int = PARTITIONS) -> int:
    """Return the partition that the server's `partition(n,1)` chooses: 32-bit FNV-1a modulo n."""
    value = 2166136261
    for byte in run_id.encode():
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value % partitions


def is_in_partition(run_id: str, shard: int, partition: int, partitions: int) -> bool:
    return shard_of(run_id) == shard and partition_of(run_id, partitions) == partition


def key_of(*foreign: str | None) -> str:
    """Return a KV key for foreign ids: the SHA-256 hex of their JSON list."""
    return hashlib.sha256(json.dumps(foreign).encode()).hexdigest()


def session_key(user_id: str, agent: str, session_id: str) -> str:
    return key_of("session", user_id, agent, session_id)
