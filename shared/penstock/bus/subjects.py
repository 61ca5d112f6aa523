"""Every subject, fence pattern and key of the bus. Pure.

Subjects end in the run id, so that "all tool calls" is `llm.tool_call.*` and "this run" is
`*.*.<run_id>`. Run ids are UUIDv7s of our own making; foreign ids are data, and enter a key only
as SHA-256 hex (`key_of`).
"""

from __future__ import annotations

import hashlib
import json
import re

PARTITIONS = 16
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
# where the server says that a message was delivered as often as its consumer allows
MAX_DELIVERIES = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES"

_RUN_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def is_run_id(text: str) -> bool:
    """True for a run id in the one form that may become a subject token."""
    return _RUN_ID.fullmatch(text) is not None


def raw(run_id: str, writer: str) -> str:
    """Where a writer publishes its source frames of a run."""
    return f"raw.{run_id}.{writer}"


def raw_stored(run_id: str, writer: str) -> str:
    """The same as RAW stores it: whatever the partition count was, or will be."""
    return f"rawp.*.{run_id}.{writer}"


def raw_of_run(run_id: str) -> str:
    """All source frames of a run, as stored."""
    return f"rawp.*.{run_id}.*"


def raw_of_partition(partition: int) -> str:
    """All source frames of one partition, as stored."""
    return f"rawp.{partition}.>"


def frames(run_id: str, writer: str) -> str:
    """Where the server republishes a stored source frame."""
    return f"frames.{run_id}.{writer}"


def event(type: str, run_id: str) -> str:
    """Where the normalizer publishes a canonical event; `type` is `category.action`."""
    return f"{type}.{run_id}"


def events_of_run(run_id: str) -> str:
    """All canonical events of a run; also the fence over them."""
    return f"*.*.{run_id}"


def live_of_run(run_id: str) -> str:
    """Where the server republishes the canonical events of a run."""
    return f"live.*.*.{run_id}"


def command(target: str, kind: str, run_id: str) -> str:
    """A command: kind is start, continue or cancel."""
    return f"command.{target}.{kind}.{run_id}"


def control(run_id: str) -> str:
    """Core request to whoever holds the run's upstream connection."""
    return f"control.{run_id}"


def handover() -> str:
    """Core request to any other connector: go on with a leg that is held no longer."""
    return "handover.leg"


def turn(session_key: str) -> str:
    """Core notice that a session's queue has moved on."""
    return f"turn.{session_key}"


def decide(approval_id: str) -> str:
    """Core request that carries a decision to the approvals service."""
    return f"decide.{approval_id}"


def alive(pod: str) -> str:
    """Core request to one instance of a service: whether its process is there."""
    return f"alive.{pod}"


def deadletter(service: str, run_id: str) -> str:
    """Where a message goes that a service cannot process."""
    return f"deadletter.{service}.{run_id}"


def replay_of(service: str, run_id: str) -> str:
    """A command: process again what is among the dead letters."""
    return command(service, "replay", run_id)


def traceback_id(subject: str, sequence: int) -> str:
    """What finds the log lines about a message that failed: the same for whoever tried it."""
    return hashlib.sha256(f"{subject} {sequence}".encode()).hexdigest()[:12]


def run_id_of(subject: str) -> str:
    """The run id: the last token, of RAW subjects the one before it."""
    tokens = subject.split(".")
    return tokens[-2] if tokens[0] in ("raw", "rawp", "frames") else tokens[-1]


def partition_of(run_id: str, partitions: int = PARTITIONS) -> int:
    """What the server's `partition(n,1)` gives: FNV-1a, 32 bit, modulo n."""
    value = 2166136261
    for byte in run_id.encode():
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value % partitions


def key_of(*foreign: str | None) -> str:
    """A KV key from ids that are not ours: SHA-256 hex over the unambiguous JSON list."""
    return hashlib.sha256(json.dumps(foreign).encode()).hexdigest()


def session_key(user_id: str, agent: str, session_id: str) -> str:
    """The KV key of a session: it is its owner's, and an agent's."""
    return key_of("session", user_id, agent, session_id)
