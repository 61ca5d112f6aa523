"""Defines the facts about a deployment, which `gather` collects. This module does no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamFact:
    """One stream that should exist.

    `bytes` is the stream's size, and `max_bytes` its limit; -1 means no limit.
    """

    name: str
    exists: bool = True
    schema: int = 0
    bytes: int = 0
    max_bytes: int = -1
    replicas: int = 1
    max_age_s: float = 0.0  # 0 means that messages have no age limit
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
    """One partition of RAW.

    `behind` is the number of sequences from the partition's checkpoint to the partition's newest
    frame.
    """

    stream: str
    number: int
    behind: int
    held: bool  # whether a normalizer has the partition's lease


@dataclass(frozen=True, slots=True)
class AccountFact:
    """One account of a budget. `per_run` says that it is of one run alone."""

    budget: str
    subject: str
    share: float  # the greatest share that is used or set aside
    per_run: bool = False
    calls_without_cost: int = 0  # calls of models that a limit of costs does not count


@dataclass(frozen=True, slots=True)
class Wanted:
    """The settings of streams that the chart's values contain."""

    shards: int
    replicas: int
    ages_s: Mapping[str, float]  # by the kinds of PENSTOCK_KEEP; 0: no limit


@dataclass(frozen=True, slots=True)
class AnswerFact:
    """Says whether one checked part of the deployment is `ok`, and if not, why.

    `csrf_secret` is what `/readyz` says about the secret that signs CSRF tokens.
    """

    name: str
    ok: bool
    reasons: Sequence[str] = ()
    notices: Sequence[str] = ()
    csrf_secret: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts. A fact is None if the user did not say where the command can find the fact."""

    refusal: str = ""  # Why NATS cannot be used; all facts from NATS are then missing.
    stored_bytes: int = 0  # The bytes that the account has stored.
    # The greatest number of bytes that the account may store; -1 means no limit.
    max_stored_bytes: int = -1
    clock_ahead_s: float = 0.0  # How far this machine's clock is ahead of NATS's clock.
    content: str = ""  # Why content cannot be opened with the keys of this command.
    schema: int = 0  # The schema of this version of `penstock`.
    shards: int = 1
    streams: Sequence[StreamFact] = ()
    early: Sequence[str] = ()  # the runs that PENSTOCK_KEEP lets be erased before events expire
    consumers: Sequence[ConsumerFact] = ()
    partitions: Sequence[PartitionFact] = ()
    dead_letters: int = 0
    accounts: Sequence[AccountFact] = ()  # of budgets, in their current windows
    budgets_mistake: str = ""  # why no budgets hold, and no run starts
    users: Sequence[AnswerFact] | None = None  # Whether the services' users can log in.
    # Whether the permissions of the services' users agree with the table of permissions.
    permissions: Sequence[AnswerFact] | None = None
    files: Sequence[AnswerFact] | None = None  # Whether the files of passwords are right.
    auth: Sequence[AnswerFact] | None = None  # Whether the keys that check tokens can be used.
    agents: Sequence[AnswerFact] | None = None
    probes: Sequence[AnswerFact] | None = None
    values: Sequence[str] | None = None  # The problems of the chart's values.
    wanted: Wanted | None = None  # What the chart's values say about the streams.
