"""Erasures of content and legal holds: commands, and what a run's record has of them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from penstock.bus.records.base import Record


class EraseCommand(Record):
    """`command.normalizer.erase.<run>`: erase the content of a run, and of the runs of its
    steps."""

    erasure_id: str
    runs: list[str] = Field(description="The runs, that of the subject last")
    by: str
    at: str
    reason: str | None = None


class Hold(Record):
    """A legal hold: the content of the run must not be erased."""

    by: str
    at: str
    reason: str | None = None


class HoldChange(Record):
    """`hold.<run>`: who has set or lifted a legal hold, for the audit. An answer says that it was
    written."""

    change: Literal["hold_set", "hold_lifted"]
    by: str
    at: str
    reason: str | None = None
    hold_at: str = Field(description="When the hold was set: a repeat is written once")


class Receiver(Record):
    """Who has got content of a run by a webhook."""

    automation: str = Field(description="The rule's id")
    url: str = Field(description="The scheme and host of the address")
    at: str = Field(description="When the last attempt was made, RFC 3339")


class Erasure(Record):
    """The erasure of a run's content."""

    id: str = Field(description="Several runs may have the same one")
    by: str
    at: str
    reason: str | None = None
    sequence: int = Field(description="The number of the run's event `system.erased`")
    receivers: list[Receiver] = Field([])
    audit_has_details: bool = Field(
        False, description="Whether the audit, from which nothing is deleted, has arguments"
    )
    erased_at: str | None = Field(None, description="When all messages were deleted")
