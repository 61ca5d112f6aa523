"""Defines the records of the audit and their chain. Pure.

The records of a run are numbered from 1. Each record contains the hash of the record before it, and
its own hash is `SHA-256(prev || canonical JSON of the record)`. So if a record is changed, removed
or inserted, no later hash is right any more.

The stored form of a record is its canonical JSON with its hash as the additional member `hash`. The
stored form of an anchor may also have the member `mac`, the HMAC-SHA-256 of the hash.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

Event = Literal[
    "requested", "viewed", "voted", "decided", "expired", "withdrawn", "escalated", "sent", "ran"
]
Record = Mapping[str, Any]

GENESIS: Final = "0" * 64  # `prev` of the first record
HASH, MAC = "hash", "mac"


class Malformed(ValueError):
    """The error for a stored message that is not a valid record of the audit. The text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The content of a record, before the record has a number and a hash.

    The approval, the event and `which` together identify an entry. An entry that is already in the
    chain is not written again. `which` distinguishes entries with the same event, such as the votes
    on an approval.
    """

    approval_id: str
    event: Event
    at: str  # RFC 3339
    which: str = "1"
    by: str | None = None
    on_behalf_of: str | None = None
    roles: tuple[str, ...] | None = None
    channel: str | None = None
    token_id: str | None = None
    token_maker: str | None = None
    started_by: tuple[str, ...] | None = None  # who is behind the run, besides its user
    ip_hash: str | None = None
    policy: Mapping[str, Any] | None = None
    digest: str | None = None  # the digest of the items that were requested, sent, or run
    decision: str | None = None
    items: Mapping[str, str] | None = None  # the decision of each item
    note_hash: str | None = None
    # arguments, values and notes, if `audit_details` is set
    details: Mapping[str, Any] | None = None

    @property
    def key(self) -> str:
        return f"{self.approval_id}.{self.event}.{self.which}"


@dataclass(frozen=True, slots=True)
class Link:
    """A record in its chain. `n` is the number of the record in the chain, from 1."""

    n: int
    hash: str
    record: Record  # Without its hash.
    mac: str | None = None  # The signature of an anchor, if a key is set.

    @property
    def key(self) -> str:
        return str(self.record.get("key"))

    @property
    def payload(self) -> bytes:
        return canonical(self.shown())

    def shown(self) -> dict[str, Any]:
        """Return the record with its hash, as clients see it."""
        mac = {} if self.mac is None else {MAC: self.mac}
        return {**self.record, HASH: self.hash, **mac}


def canonical(value: Any) -> bytes:
    """Return the value as canonical JSON, with sorted keys, without blanks, and in ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def hash_of(record: Record) -> str:
    """Return the hash of a record.

    The record's member `prev` is the hash of the record before it.
    """
    return hashlib.sha256(str(record["prev"]).encode() + canonical(record)).hexdigest()


def digest(value: Any) -> str:
    return "sha256:" + hashlib.sha256(canonical(value)).hexdigest()


def keyed(text: str, key: bytes) -> str:
    """Return the HMAC-SHA-256 of a text.

    Without the key, nobody can find the text by hashing guesses.
    """
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def link(run_id: str, entry: Entry, last: Link | None) -> Link:
    """Return the entry as the record that follows `last` in the chain of the run."""
    content = {field.name: getattr(entry, field.name) for field in fields(entry)}
    del content["which"]
    record = {name: value for name, value in content.items() if value is not None}
    return chained({**record, "run_id": run_id, "key": entry.key}, last)


def chained(content: Record, last: Link | None) -> Link:
    n, prev = (last.n + 1, last.hash) if last is not None else (1, GENESIS)
    record = {**content, "n": n, "prev": prev}
    return Link(n, hash_of(record), record)


def parse(payload: bytes) -> Link:
    """Return the record of a stored message.

    Raises:
        Malformed: the payload is no record, or was changed after it was written.
    """
    try:
        record = json.loads(payload)
        found, mac = record.pop(HASH), record.pop(MAC, None)
        n, expected = int(record["n"]), hash_of(record)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Malformed(f"it is no record of an audit ({error!r})") from error
    made = Link(n, expected, record, mac)
    if found != expected:
        raise Malformed("its content does not fit its hash")
    if made.payload != payload:
        raise Malformed("its bytes are not the form in which records are written")
    return made


def missing(chain: Sequence[Link], entries: Sequence[Entry]) -> list[Entry]:
    known = {each.key for each in chain}
    return [entry for entry in entries if entry.key not in known]
