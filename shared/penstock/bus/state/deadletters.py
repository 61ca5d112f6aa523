"""Dead letters: what a service could not process, kept whole, each once.

A letter is known by its number, its stream sequence in DEADLETTERS. What became of it since (put
back, or about to be) is a mark in KV `letters`, which goes when the letter is dropped.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from pydantic import ValidationError

from penstock.bus import messages, streams, subjects
from penstock.bus.errors import ObjectGone
from penstock.bus.read import direct
from penstock.bus.read.direct import Stored
from penstock.bus.records import Record
from penstock.bus.write import objects
from penstock.bus.write.publisher import Message

if TYPE_CHECKING:
    from penstock.bus.bus import Bus

MAX_REASON_CHARACTERS = 1000
REASON, FROM, TRACEBACK = "Penstock-Reason", "Penstock-From", "Penstock-Traceback"


class DeadLetter(Record):
    """Stream DEADLETTERS: the message as it was, and why nobody could process it."""

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
        """The message as the service was given it."""
        return Stored(self.subject, self.sequence, self.headers, self.payload, self.delivered)

    @property
    def key(self) -> str:
        """The same for whoever gives the same message up for the same service."""
        return f"{self.service}.{self.traceback_id}"


class Mark(Record):
    """KV `letters`, key `<service>.<traceback id>`: what became of a letter."""

    state: Literal["replaying", "replayed"]
    at: str


@dataclass(frozen=True, slots=True)
class Letter:
    """A letter as it is found; `mark` is None while nobody has done anything about it."""

    number: int
    letter: DeadLetter
    mark: Mark | None = None


def letter_about(service: str, pod: str, stored: Stored, error: Exception) -> DeadLetter:
    """The letter for a message that a service gives up."""
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


async def bury(bus: Bus, letter: DeadLetter) -> None:
    """Keep it, once: another one of the same key changes nothing. Raises BusError."""
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
    bus: Bus, service: str = "*", run_id: str = "*", since: datetime | None = None
) -> AsyncIterator[Letter]:
    """Every letter that matches, the newest last. Raises BusError."""
    start = 1
    if since is not None:
        first = await bus.since(streams.DEADLETTERS, since)
        if first is None:
            return
        start = first.sequence
    marks = {entry.key: entry.value for entry in await bus.bucket("letters").entries()}
    pattern = subjects.deadletter(service, run_id)
    async for stored in direct.replay(bus, streams.DEADLETTERS, pattern, start):
        letter = await _letter(bus, stored)
        mark = marks.get(letter.key)
        yield Letter(stored.sequence, letter, Mark.model_validate_json(mark) if mark else None)


async def find(bus: Bus, number: int) -> Letter | None:
    """The letter of that number; None when there is none (any more). Raises BusError."""
    stored = await bus.at(streams.DEADLETTERS, number)
    if stored is None:
        return None
    letter = await _letter(bus, stored)
    entry = await bus.bucket("letters").get(letter.key)
    return Letter(number, letter, Mark.model_validate_json(entry.value) if entry else None)


async def mark(bus: Bus, letter: DeadLetter, state: Literal["replaying", "replayed"]) -> None:
    """Write down what becomes of it. Raises BusError."""
    await bus.bucket("letters").put(letter.key, Mark(state=state, at=bus.clock.stamp()).dump())


async def drop(bus: Bus, found: Letter) -> bool:
    """Delete it and its mark; False when it was gone already. Raises BusError."""
    was_there = await bus.delete(streams.DEADLETTERS, found.number)
    await bus.bucket("letters").delete(found.letter.key)
    return was_there


async def kept(bus: Bus) -> int:
    """How many there are, those that were put back included. Raises BusError."""
    info = await bus.api(f"STREAM.INFO.{streams.DEADLETTERS}")
    return int(info["state"]["messages"])


async def _letter(bus: Bus, stored: Stored) -> DeadLetter:
    try:
        return DeadLetter.model_validate_json(await objects.unwrap(bus, stored.payload))
    except (ValidationError, ObjectGone):
        return _plain(stored)


def _plain(stored: Stored) -> DeadLetter:
    """What stands here and is no letter of ours, or no more than the reference to a large one."""
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
