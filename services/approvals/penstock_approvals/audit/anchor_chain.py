"""Defines anchors: the records on the subject `audit.anchor` that cover the chains of all runs.

Pure.

If somebody removes the last records of a run, or all records of the run, the run's own chain cannot
show the removal. For each run that got records since the previous anchor, an anchor has the number
and the hash of the run's last record. The anchors are a chain, too. So the hash of the last anchor
covers every record that was written before this anchor.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from penstock_approvals.audit.chain import Link, chained, keyed

MAX_HEADS: Final = 2_000  # the greatest number of runs in one anchor; such an anchor has 260 KiB

Head = tuple[int, str]  # the number and the hash of a run's last record


def anchor(
    heads: Mapping[str, Head],
    through: int,
    *,
    at: str,
    day: str | None,
    last: Link | None,
    keys: Sequence[bytes],
) -> Link:
    """Return the anchor that follows `last`.

    Args:
        heads: the last record of each run that got records since the previous anchor.
        through: the stream sequence up to which the anchor covers all records.
        at: the time, RFC 3339.
        day: the day whose daily anchor this is; None for any other anchor.
        last: the last record in the chain of anchors; None if the chain is empty.
        keys: the keys of the setting `audit_key`; the first one signs.
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

    `stands` is the last stream sequence after the loss, and `known` is the last stream sequence
    before the loss. `found_at` is the time when a service found the loss, and `at` is the time of
    the record.
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
