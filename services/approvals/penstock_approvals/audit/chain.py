"""Defines the records of the audit, their chains, and the anchors. Pure.

The records of a run are numbered from 1. Each record contains the hash of the record before it, and
its own hash is `SHA-256(prev || canonical JSON of the record)`. So if a record is changed, removed
or inserted, no later hash is right any more.

The stored form of a record is its canonical JSON with its hash as the additional member `hash`. The
stored form of an anchor may also have the member `mac`, the HMAC-SHA-256 of the hash.

Anchors are the records on the subject `audit.anchor`. If somebody removes the last records of a
run, or all records of the run, the run's own chain cannot show the removal. For each run that got
records since the previous anchor, an anchor has the number and the hash of the run's last record.
The anchors are a chain, too. So the hash of the last anchor covers every record that was written
before this anchor.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

Event = Literal[
    "requested",
    "linked",
    "viewed",
    "voted",
    "taken_back",
    "decided",
    "expired",
    "withdrawn",
    "escalated",
    "reminded",
    "remarked",
    "sent",
    "ran",
    "erased",
    "hold_set",
    "hold_lifted",
]
Record = Mapping[str, Any]

GENESIS: Final = "0" * 64  # `prev` of the first record
HASH, MAC = "hash", "mac"
MAX_HEADS: Final = 2_000  # the greatest number of runs in one anchor; such an anchor has 260 KiB

Head = tuple[int, str]  # the number and the hash of a run's last record


class Malformed(ValueError):
    """The error for a stored message that is no valid record of the audit. The text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The content of a record, before the record has a number and a hash.

    The approval, the event and `which`, such as the number of a vote, identify an entry. An entry
    that is already in the chain is not written again.
    """

    approval_id: str  # empty for what concerns the whole run
    event: Event
    at: str  # RFC 3339
    which: str = "1"
    by: str | None = None
    on_behalf_of: str | None = None
    to: str | None = None  # to whom it was handed over, or who decides with a link
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
    """Return the value as JSON with sorted keys, without blanks, and in ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def hash_of(record: Record) -> str:
    return hashlib.sha256(str(record["prev"]).encode() + canonical(record)).hexdigest()


def digest(value: Any) -> str:
    return "sha256:" + hashlib.sha256(canonical(value)).hexdigest()


def keyed(text: str, key: bytes) -> str:
    """Return the HMAC-SHA-256 of a text. Without the key, nobody finds the text by guessing."""
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
    """Return the record of a stored message. Raises Malformed, also for one that was changed."""
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


def anchor(
    heads: Mapping[str, Head],
    through: int,
    *,
    at: str,
    day: str | None,
    last: Link | None,
    keys: Sequence[bytes],
) -> Link:
    """Return the anchor that follows `last`, signed with the first key.

    `heads` has the last record of each run that got records since the previous anchor. The anchor
    covers all records up to the stream sequence `through`. `day` is the day whose daily anchor this
    is; None for any other anchor.
    """
    content = {
        "event": "anchor",
        "at": at,
        "through": through,
        "day": day or day_of(last),
        "heads": {run_id: list(head) for run_id, head in heads.items()},
    }
    return _signed(content, last, keys)


def loss_record(
    stands: int,
    known: int,
    found_at: str,
    *,
    at: str,
    last: Link | None,
    keys: Sequence[bytes],
) -> Link:
    """Return the record that follows `last`, and says that NATS has lost the end of AUDIT.

    `stands` and `known` are the last stream sequences after and before the loss. A service found
    the loss at `found_at`.
    """
    content = {
        "event": "lost",
        "at": at,
        "through": last_anchored_sequence(last),
        "day": day_of(last),
        "stands": stands,
        "known": known,
        "found_at": found_at,
    }
    return _signed(content, last, keys)


def _signed(content: Mapping[str, Any], last: Link | None, keys: Sequence[bytes]) -> Link:
    made = chained({name: value for name, value in content.items() if value is not None}, last)
    return replace(made, mac=keyed(made.hash, keys[0])) if keys else made


def is_signed(link: Link, keys: Sequence[bytes]) -> bool:
    mac = link.mac
    return isinstance(mac, str) and any(
        hmac.compare_digest(mac.encode(), keyed(link.hash, key).encode()) for key in keys
    )


def last_anchored_sequence(last: Link | None) -> int:
    """Return the stream sequence up to which the anchors cover all records; 0 without anchors."""
    return int(last.record.get("through", 0)) if last is not None else 0


def day_of(last: Link | None) -> str | None:
    return last.record.get("day") if last is not None else None
