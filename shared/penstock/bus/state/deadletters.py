"""Dead letters: the messages that a service could not process, complete, each kept once.

The number of a dead letter is its stream sequence in DEADLETTERS. A mark in KV `letters` says
whether it was replayed; the mark is deleted with the dead letter.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pydantic import ValidationError

from penstock.bus import messages, streams, subjects
from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.errors import ObjectGone
from penstock.bus.messages import Message, Stored
from penstock.bus.read import direct, leader
from penstock.bus.records import Record
from penstock.bus.state.kv import Buckets, Entry
from penstock.bus.write import objects
from penstock.bus.write.fence import Writes

log = logging.getLogger(__name__)

MAX_REASON_CHARACTERS = 1000
REASON, FROM, TRACEBACK = "Penstock-Reason", "Penstock-From", "Penstock-Traceback"


class DeadLetter(Record):
    """Stream DEADLETTERS: the original message, and why the service could not process it."""

    service: str
    pod: str
    run_id: str
    at: str
    reason: str
    traceback_id: str
    delivered: int = 1
    subject: str
    sequence: int
    headers: dict[str, str]
    payload_base64: str

    @property
    def payload(self) -> bytes:
        """The bytes of the message."""
        return base64.b64decode(self.payload_base64)

    @property
    def message(self) -> Stored:
        """The message as it was delivered to the service."""
        return Stored(self.subject, self.sequence, self.headers, self.payload, self.delivered)

    @property
    def key(self) -> str:
        """The same for every process that gives this message up for the same service."""
        return f"{self.service}.{self.traceback_id}"


class Mark(Record):
    """KV `letters`, key `<service>.<traceback id>`: how far the replay of a dead letter is."""

    state: Literal["replaying", "replayed"]
    at: str


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter with its number; `mark` is None as long as nobody has replayed it."""

    number: int
    letter: DeadLetter
    mark: Mark | None = None


def letter_about(service: str, pod: str, stored: Stored, error: Exception) -> DeadLetter:
    """The dead letter for a message that a service gives up."""
    return DeadLetter(
        service=service,
        pod=pod,
        run_id=subjects.run_id_of(stored.subject),
        at=messages.now(),
        reason=repr(error)[:MAX_REASON_CHARACTERS],
        traceback_id=subjects.traceback_id(stored.subject, stored.sequence),
        delivered=stored.delivered,
        subject=stored.subject,
        sequence=stored.sequence,
        headers=stored.headers,
        payload_base64=base64.b64encode(stored.payload).decode(),
    )


async def bury(bus: Writes, letter: DeadLetter) -> None:
    """Store a dead letter. A second one with the same key is discarded.

    Raises:
        BusError: the dead letter was not stored, or its fate is unknown; retry.
    """
    kept = await objects.wrap(bus, f"deadletter.{letter.key}", letter.dump())
    headers = {
        "Nats-Msg-Id": letter.key,
        REASON: letter.reason.encode("ascii", "backslashreplace").decode()[:MAX_REASON_CHARACTERS],
        FROM: f"{letter.subject} {letter.sequence}",
        TRACEBACK: letter.traceback_id,
    }
    subject = subjects.deadletter(letter.service, letter.run_id)
    await bus.publisher.publish(Message(subject, kept, headers))


async def letters(
    bus: Buckets, service: str = "*", run_id: str = "*", since: datetime | None = None
) -> AsyncIterator[Letter]:
    """Every dead letter that matches, the newest last.

    Raises:
        BusError: the stream or the bucket cannot be read.
    """
    start = 1
    if since is not None:
        first = await leader.since(bus, streams.DEADLETTERS, since)
        if first is None:
            return
        start = first.sequence
    marks = {entry.key: entry for entry in await bus.bucket("letters").entries()}
    pattern = subjects.deadletter(service, run_id)
    async for stored in direct.replay(bus, streams.DEADLETTERS, pattern, start):
        letter = await _letter(bus, stored)
        yield Letter(stored.sequence, letter, _mark(marks.get(letter.key)))


async def find(bus: Buckets, number: int) -> Letter | None:
    """The dead letter of this number; None when there is none (any more).

    Raises:
        BusError: the stream or the bucket cannot be read.
    """
    stored = await leader.at(bus, streams.DEADLETTERS, number)
    if stored is None:
        return None
    letter = await _letter(bus, stored)
    entry = await bus.bucket("letters").get(letter.key)
    return Letter(number, letter, _mark(entry))


async def mark(bus: Buckets, letter: DeadLetter, state: Literal["replaying", "replayed"]) -> None:
    """Record how far the replay of a dead letter is.

    Raises:
        BusError: the mark was not written, or its fate is unknown.
    """
    await bus.bucket("letters").put(letter.key, Mark(state=state, at=bus.clock.stamp()).dump())


async def drop(bus: Buckets, found: Letter) -> bool:
    """Delete a dead letter and its mark; False when it was already gone.

    Raises:
        BusError: the dead letter or its mark could not be deleted.
    """
    was_there = await leader.delete(bus, streams.DEADLETTERS, found.number)
    await bus.bucket("letters").delete(found.letter.key)
    return was_there


async def kept(bus: HasJetStream) -> int:
    """The number of dead letters, replayed ones included.

    Raises:
        BusError: the server cannot be asked.
    """
    info = await bus.jetstream.api(f"STREAM.INFO.{streams.DEADLETTERS}")
    return int(info["state"]["messages"])


def _mark(entry: Entry | None) -> Mark | None:
    """The mark in an entry; None also for one that cannot be read: a replay may be repeated."""
    if entry is None:
        return None
    try:
        return Mark.model_validate_json(entry.value)
    except ValidationError as error:
        log.warning("the mark %s cannot be read, ignored: %s", entry.key, error)
        return None


async def _letter(bus: HasJetStream, stored: Stored) -> DeadLetter:
    try:
        return DeadLetter.model_validate_json(await objects.unwrap(bus, stored.payload))
    except (ValidationError, ObjectGone):
        return _plain(stored)


def _plain(stored: Stored) -> DeadLetter:
    """A dead letter from headers alone: its JSON is not ours, or its stored payload is gone."""
    _, service, run_id = stored.subject.split(".")
    subject, _, sequence = stored.headers.get(FROM, "").rpartition(" ")
    return DeadLetter(
        service=service,
        pod="",
        run_id=run_id,
        at=stored.headers.get("Nats-Time-Stamp", ""),
        reason=stored.headers.get(REASON, ""),
        traceback_id=subjects.traceback_id(subject, int(sequence or 0)),
        subject=subject,
        sequence=int(sequence or 0),
        headers={},
        payload_base64=base64.b64encode(stored.payload).decode(),
    )
