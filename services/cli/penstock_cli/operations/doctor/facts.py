"""What `gather` learns about a deployment. Plain data: no I/O happens here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamFact:
    """One stream that should exist. `bytes` and `max_bytes` are its size and limit (-1: none)."""

    name: str
    exists: bool = True
    schema: int = 0
    bytes: int = 0
    max_bytes: int = -1
    replicas: int = 1
    max_age_s: float = 0.0  # 0: messages are kept for any time
    differs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ConsumerFact:
    """One durable consumer. `waiting` messages were not delivered yet."""

    stream: str
    name: str
    waiting: int
    unacknowledged: int
    polled: bool  # whether a process asks for messages now


@dataclass(frozen=True, slots=True)
class PartitionFact:
    """One partition of RAW. `behind` is the distance from its checkpoint to its newest frame."""

    stream: str
    number: int
    behind: int
    held: bool  # whether a normalizer has its lease


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the chart's values say about the streams."""

    shards: int
    replicas: int
    raw_max_age_s: float
    events_max_age_s: float


@dataclass(frozen=True, slots=True)
class AnswerFact:
    """Whether the thing with this name is `ok`, and the reasons if it is not."""

    name: str
    ok: bool
    reasons: Sequence[str] = ()
    notices: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts. A fact is None if the command was not told where to look for it."""

    refusal: str = ""  # why NATS cannot be used; then all facts about its content are missing
    stored_bytes: int = 0  # of the account
    max_stored_bytes: int = -1  # of the account; -1 for no limit
    clock_ahead_s: float = 0.0  # how far this machine's clock is ahead of NATS's clock
    schema: int = 0  # the schema of this version of `penstock`
    shards: int = 1
    streams: Sequence[StreamFact] = ()
    consumers: Sequence[ConsumerFact] = ()
    partitions: Sequence[PartitionFact] = ()
    dead_letters: int = 0
    users: Sequence[AnswerFact] | None = None  # the logins of the services' users
    # whether these users' permissions agree with the table
    permissions: Sequence[AnswerFact] | None = None
    files: Sequence[AnswerFact] | None = None  # the files of passwords
    auth: Sequence[AnswerFact] | None = None  # the keys with which tokens are checked
    agents: Sequence[AnswerFact] | None = None
    probes: Sequence[AnswerFact] | None = None
    values: Sequence[str] | None = None  # what is wrong with the chart's values
    wanted: Wanted | None = None  # what these values say
