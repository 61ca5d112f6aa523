"""Holds the clients of a hub that are in sync: they have all items of the ring and wait for more
(decision 0112).

All these clients get the same bytes next. So a write to a thousand clients is a loop over a
thousand bound methods `transport.write`. Each client costs two function calls and the system call.
A fan-out is one such loop. The loop is divided into slices, between which other work can run.

All clients of the group have the same position in the ring. A client leaves the group in three
cases: its connection is paused, its stream is about to end, or it is about to get a notice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from penstock.log_fields import run_of
from penstock_edge.views.cursor import RingPosition, StreamSequence

log = logging.getLogger(__name__)

Write = Callable[[bytes], object]


class Member(Protocol):
    """The part of a client that its hub uses."""

    def wake(self) -> None:
        """Check the ring; a client in sync first leaves the group."""
        ...

    def fail(self) -> None: ...


class InSyncGroup:
    """The group of clients in sync; a fan-out writes the same bytes to each member, in slices.

    During a fan-out, `unwritten` has the members that have not got the bytes yet. A client that
    joins already has the bytes, so `add` puts it into `written`. One that leaves continues at the
    position that `remove` returns. So each client gets the bytes exactly once, as long as only
    methods of this class change the two sets.

    The members in `written` have the ring position `at`. `next` is one more than the sequence of
    the newest item that they have.
    """

    __slots__ = (
        "_at_before",
        "_bytes",
        "_next_before",
        "at",
        "events",
        "next",
        "run_id",
        "unwritten",
        "written",
        "wrote_at",
    )

    def __init__(self, run_id: str = "") -> None:
        self.run_id = run_id  # for log lines; empty if the hub shows many runs
        self.at = self._at_before = RingPosition(0)
        self.next = self._next_before = StreamSequence(0)
        self.events = 0  # the number of items of the last fan-out
        self.wrote_at = 0.0  # when the last fan-out began, by the clock of the loop
        self._bytes = b""
        self.written: dict[Member, Write] = {}
        self.unwritten: dict[Member, Write] = {}

    @property
    def members(self) -> list[Member]:
        return [*self.written, *self.unwritten]

    def add(self, member: Member, write: Write) -> None:
        self.written[member] = write

    def remove(self, member: Member) -> tuple[RingPosition, StreamSequence]:
        if self.unwritten.pop(member, None) is not None:
            return self._at_before, self._next_before
        del self.written[member]
        return self.at, self.next

    def next_of(self, member: Member) -> StreamSequence:
        return self._next_before if member in self.unwritten else self.next

    def move(self, at: RingPosition, next: StreamSequence) -> None:
        """Set the position of a group that has no members, or whose next items have no bytes."""
        self.at, self.next = at, next

    def begin(
        self,
        body: bytes,
        at: RingPosition,
        next: StreamSequence,
        events: int,
        now: float,
        most: int,
    ) -> int:
        """Write `body` to at most `most` members, and return the number of writes. No fan-out may
        be in progress; `write` continues this one."""
        if len(self.written) == 1:
            # Most runs have one client. A dictionary that gets and loses an entry for each event is
            # reallocated every few events, which takes 0.4 µs an event.
            self.at, self.next = at, next
            self.events, self.wrote_at = events, now
            ((member, write),) = self.written.items()
            try:
                write(body)
            except Exception:  # as in `write`
                self._fail(member)
            return 1
        self._at_before, self._next_before = self.at, self.next
        self.at, self.next = at, next
        self.events, self.wrote_at = events, now
        self._bytes = body
        self.unwritten, self.written = self.written, self.unwritten
        return self.write(most)

    def write(self, most: int) -> int:
        """Write to at most `most` members; return the number of writes. An exception of one `write`
        ends only its stream. A `write` may pause its connection, whose member leaves this group."""
        unwritten, written, body = self.unwritten, self.written, self._bytes
        writes = 0
        while unwritten and writes < most:
            member, write = unwritten.popitem()
            written[member] = write
            writes += 1
            try:
                write(body)
            except Exception:
                self._fail(member)
        if not unwritten:
            self._bytes = b""
        return writes

    def _fail(self, member: Member) -> None:
        extra = run_of(self.run_id)
        log.exception("a client's stream ends, because a write has failed", extra=extra)
        member.fail()
