"""Appends records to the journals of runs and reads journals; a fence guards each append."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.bus import Bus, FenceConflict, Message, Stored, subjects
from penstock.bus.messages import PART, Unreadable
from penstock.bus.read import direct
from penstock.bus.streams import JOURNAL
from penstock.bus.write import fence
from penstock.bus.write.fence import MAX_MESSAGE_BYTES
from penstock.bus.write.publisher import MAX_BATCH
from penstock_workflows.engine.records import Record, decode, encode

# The name of a header of JOURNAL's messages. The header has the number of the commit's first
# record. The records of a run are numbered from 1.
RECORD: Final = "Penstock-Record"
MAX_BYTES: Final = MAX_MESSAGE_BYTES * MAX_BATCH


class TooLarge(ValueError):
    """A payload is larger than one atomic batch can be."""


class Incomplete(ValueError):
    """Commits of a journal, or parts of a payload, are missing."""


def messages_of(subject: str, payload: bytes, headers: Mapping[str, str]) -> list[Message]:
    """Return the messages that carry a payload, to be stored as one batch. Raises TooLarge."""
    if len(payload) <= MAX_MESSAGE_BYTES:
        return [Message(subject, payload, headers)]
    if len(payload) > MAX_BYTES:
        raise TooLarge(f"{len(payload)} bytes for {subject}; at most {MAX_BYTES} fit")
    pieces = [
        payload[start : start + MAX_MESSAGE_BYTES]
        for start in range(0, len(payload), MAX_MESSAGE_BYTES)
    ]
    return [
        Message(subject, piece, {**headers, PART: f"{n}/{len(pieces)}"})
        for n, piece in enumerate(pieces, 1)
    ]


def joined_payloads(stored: Sequence[Stored]) -> list[tuple[Mapping[str, str], bytes]]:
    """Return each payload that these messages of one subject carry, with its headers.

    Raises:
        Incomplete: a part is missing, as in the answer of a replica that lags behind.
        ContentErased, ContentRefused: a message is sealed and cannot be opened.
    """
    found: list[tuple[Mapping[str, str], bytes]] = []
    parts: list[bytes] = []
    for message in stored:
        if isinstance(message.payload, Unreadable):
            raise message.payload.error
        part = message.headers.get(PART)
        number, _, count = part.partition("/") if part else ("1", "", "1")
        if int(number) != len(parts) + 1:
            raise Incomplete(f"{message.subject}: part {len(parts) + 1} is missing")
        parts.append(message.payload)
        if number == count:
            found.append((message.headers, parts[0] if len(parts) == 1 else b"".join(parts)))
            parts = []
    if parts:
        raise Incomplete(f"{stored[-1].subject}: part {len(parts) + 1} is missing")
    return found


# The number of reads after which messages that are still missing in the answer count as lost. A
# replica that lags behind usually has the messages after a few pauses.
TRIES: Final = 40


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a journal. `sequence` is the stream sequence of the last message before the
    position, 0 if there is none. `records` is the number of records before the position."""

    sequence: int = 0
    records: int = 0


EMPTY: Final = Position()


class Journals:
    """Reads and writes the journals of all runs, and the large values that records refer to."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def append(self, run_id: str, after: Position, records: Sequence[Record]) -> Position:
        """Store all these records or none; store them only if the journal still ends at `after`.

        Returns the new end.

        Raises:
            FenceConflict: the journal has another end. Read the new records, and decide again.
            OutcomeUnknown: the records may be stored. Read the new records, and decide again.
            BusUnavailable, StreamFull: nothing was stored.
            TooLarge: the records are larger than an atomic batch can be.
        """
        subject = subjects.journal(run_id)
        messages = messages_of(subject, encode(records), {RECORD: str(after.records + 1)})
        sequence = await fence.append(self._bus, subject, messages, after.sequence)
        return Position(sequence, after.records + len(records))

    async def read(self, run_id: str, after: Position = EMPTY) -> tuple[list[Record], Position]:
        """Return the records after the position `after`, and the end of the journal.

        The stream's leader tells the end, because a replica may lag behind.

        Raises:
            Incomplete: the stream lacks messages of the journal.
            UnknownRecord: a newer version of Penstock has written the journal.
        """
        subject = subjects.journal(run_id)
        tail = await self._bus.tail(JOURNAL, subject)
        if tail is None:
            if after.records:
                raise Incomplete(f"{subject} is gone")
            return [], EMPTY
        if tail.sequence == after.sequence:
            return [], after
        if tail.sequence < after.sequence:
            raise Incomplete(f"{subject} has lost its end")
        is_next = tail.headers.get(RECORD) == str(after.records + 1) and PART not in tail.headers
        missing: Incomplete | None = None
        for _ in range(TRIES):
            found = [tail] if is_next else await self._between(subject, after.sequence, tail)
            try:
                records = _records(found, after.records)
                return records, Position(tail.sequence, after.records + len(records))
            except Incomplete as error:
                missing = error
            await asyncio.sleep(direct.LAG_S)
        raise missing or Incomplete(subject)

    async def store_value(self, run_id: str, digest: str, payload: bytes) -> None:
        """Store a large value of a run. A repeated call changes nothing. Raises TooLarge."""
        subject = subjects.journal_value(run_id, digest)
        try:
            await fence.append(self._bus, subject, messages_of(subject, payload, {}), 0)
        except FenceConflict:
            return  # the value is stored already

    async def value(self, run_id: str, digest: str) -> bytes:
        """Return a large value of a run. Raises Incomplete if the stream does not have it."""
        subject = subjects.journal_value(run_id, digest)
        tail = await self._bus.tail(JOURNAL, subject)
        if tail is None:
            raise Incomplete(f"{subject} is gone")
        for _ in range(TRIES):
            found = [tail] if PART not in tail.headers else await self._between(subject, 0, tail)
            try:
                return joined_payloads(found)[0][1]
            except Incomplete:
                await asyncio.sleep(direct.LAG_S)
        raise Incomplete(f"{subject} lacks parts")

    async def purge(self, run_id: str) -> None:
        """Remove the journal of a run, and the run's large values."""
        for subject in (subjects.journal_value(run_id, "*"), subjects.journal(run_id)):
            await self._bus.api(f"STREAM.PURGE.{JOURNAL}", {"filter": subject})

    async def _between(self, subject: str, after: int, tail: Stored) -> list[Stored]:
        """Return the messages after the sequence `after` up to and including `tail`. A replica
        answers, so messages may be missing."""
        found: list[Stored] = []
        while True:
            some, pending = await direct.read(self._bus, JOURNAL, subject, after + 1)
            found += [each for each in some if each.sequence < tail.sequence]
            if not some or not pending or some[-1].sequence >= tail.sequence:
                return [*found, tail]
            after = some[-1].sequence


def _records(stored: Sequence[Stored], before: int) -> list[Record]:
    """Return the records, of which the first has the number `before + 1`. Raises Incomplete."""
    records: list[Record] = []
    for headers, payload in joined_payloads(stored):
        first, expected = int(headers[RECORD]), before + len(records) + 1
        if first != expected:
            raise Incomplete(f"{stored[-1].subject}: record {expected} is missing, before {first}")
        records += decode(payload)
    return records
