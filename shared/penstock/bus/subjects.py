"""Every subject, fence pattern and key of the bus. Pure.

Subjects end in the run id, so that "all tool calls" is `llm.tool_call.*` and "this run" is
`*.*.<run_id>`. Penstock makes the run ids, which are UUIDv7s. Foreign ids are data: they become
part of a key only as SHA-256 hex (`key_of`), and never part of a subject.
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
# where the server reports a message that was delivered as often as its consumer allows
MAX_DELIVERIES = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES"

_RUN_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def is_run_id(text: str) -> bool:
    """True for a run id in the one form that may become a subject token."""
    return _RUN_ID.fullmatch(text) is not None


def raw(run_id: str, writer: str) -> str:
    """Where a writer publishes its source frames of a run."""
    return f"raw.{run_id}.{writer}"


def raw_stored(run_id: str, writer: str) -> str:
    """The source frames of a writer and run as RAW stores them, in any partition."""
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
    """Core request to the connector that holds the run's upstream connection."""
    return f"control.{run_id}"


def handover() -> str:
    """Core request to any other connector: take over a leg that its connector leaves."""
    return "handover.leg"


def turn(session_key: str) -> str:
    """Core notice that a session's queue has advanced."""
    return f"turn.{session_key}"


def decide(approval_id: str) -> str:
    """Core request that carries a decision to the approvals service."""
    return f"decide.{approval_id}"


def alive(pod: str) -> str:
    """Core request to one instance of a service: does its process live?"""
    return f"alive.{pod}"


def deadletter(service: str, run_id: str) -> str:
    """Where a service publishes a message that it cannot process."""
    return f"deadletter.{service}.{run_id}"


def replay_of(service: str, run_id: str) -> str:
    """A command: process a message of a dead letter again."""
    return command(service, "replay", run_id)


def traceback_id(subject: str, sequence: int) -> str:
    """The id in all log lines about a failed message: the same in every process that tried it."""
    return hashlib.sha256(f"{subject} {sequence}".encode()).hexdigest()[:12]


def run_id_of(subject: str) -> str:
    """The run id: the last token, of RAW subjects the one before it."""
    tokens = subject.split(".")
    return tokens[-2] if tokens[0] in ("raw", "rawp", "frames") else tokens[-1]


def partition_of(run_id: str, partitions: int = PARTITIONS) -> int:
    """The partition that the server's `partition(n,1)` chooses: FNV-1a, 32 bit, modulo n."""
    value = 2166136261
    for byte in run_id.encode():
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value % partitions


def key_of(*foreign: str | None) -> str:
    """A KV key from foreign ids: SHA-256 hex over their JSON list, which is unambiguous."""
    return hashlib.sha256(json.dumps(foreign).encode()).hexdigest()


def session_key(user_id: str, agent: str, session_id: str) -> str:
    """The KV key of a session, which belongs to a user and an agent."""
    return key_of("session", user_id, agent, session_id)
