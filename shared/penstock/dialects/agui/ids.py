"""Ids of messages and tool calls in a thread, and of interrupts.

Canonical ids are unique in their run only (`msg-1-1`), but an AG-UI client keeps all the messages
of a thread by id, and appends to an id that it knows. So the encoder puts the run in front:

    <the last 12 characters of the run's id> "." <canonical id>

An interrupt names the approval and its item: `<approval id> "/" <item id>`. An approval id is a
UUID; an item id is the upstream's and may hold anything, "/" too.
"""

from __future__ import annotations

import re
from typing import Final

SCOPE_LENGTH: Final = 12

_SCOPED = re.compile(rf"[0-9A-Za-z_-]{{{SCOPE_LENGTH}}}\.(.*)", re.DOTALL)


def scope_of(run_id: str) -> str:
    """What the ids of this run begin with."""
    return f"{run_id[-SCOPE_LENGTH:].rjust(SCOPE_LENGTH, '0')}."


def unscoped(id: str) -> str:
    """The canonical id in one that an encoder made; what has no scope comes back as it is."""
    match = _SCOPED.fullmatch(id)
    return match[1] if match else id


def interrupt_id(approval_id: str, item_id: str) -> str:
    """The interrupt of one item of an approval."""
    return f"{approval_id}/{item_id}"


def parse_interrupt_id(interrupt: str) -> tuple[str, str | None]:
    """Approval id and item id; no item for an interrupt that stands for the whole approval."""
    approval_id, slash, item_id = interrupt.partition("/")
    return approval_id, item_id if slash else None
