"""Stores and reads dead letters: complete copies of messages that a service could not process.

Each service stores at most one dead letter for a message. The number of a dead letter is its stream
sequence in DEADLETTERS. A mark in KV `letters` records whether the dead letter was replayed; the
mark is deleted with the dead letter.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pydantic import ValidationError

from penstock.bus import masking, messages, streams, subjects
from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.errors import ObjectGone
from penstock.bus.messages import Message, Stored, Unreadable
from penstock.bus.read import direct, leader
from penstock.bus.records.base import Record
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
        return base64.b64decode(self.payload_base64)

    @property
    def run(self) -> str | None:
        """The run; None for a message about no run, such as a delivery that a hook triggered."""
        return self.run_id if subjects.is_run_id(self.run_id) else None

    @property
    def message(self) -> Stored:
        stored = Stored(self.subject, self.sequence, self.headers, self.payload, self.delivered)
        masking.split(stored)
        return stored

    @property
    def key(self) -> str:
        """The dead letter's key, equal in all processes that give this message up for a service."""
        return f"{self.service}.{self.traceback_id}"


class Mark(Record):
    """KV `letters`, key `<service>.<traceback id>`: how far the replay of a dead letter is."""

    state: Literal["replaying", "replayed"]
    at: str


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter with its number and its mark; `mark` is None until the first replay begins."""

    number: int
    letter: DeadLetter
    mark: Mark | None = None

    @property
    def state(self) -> Literal["waiting", "replaying", "replayed"]:
        return self.mark.state if self.mark is not None else "waiting"

    def summary(self) -> dict[str, Any]:
        """Return what is shown of the dead letter: not its payload and headers, which may contain
        secrets."""
        letter = self.letter
        summary: dict[str, Any] = {
            "number": self.number,
            "state": self.state,
            **letter.model_dump(include={"at", "service", "pod"}),
            "run_id": letter.run,
            **letter.model_dump(include={"subject", "sequence"}),
            **letter.model_dump(include={"delivered", "reason", "traceback_id"}),
            "bytes": len(letter.payload),
        }
        return summary if self.mark is None else {**summary, "state_at": self.mark.at}


def letter_about(service: str, pod: str, stored: Stored, error: Exception) -> DeadLetter:
    payload = stored.unmasked or stored.payload
    if isinstance(payload, Unreadable):
        payload = payload.sealed
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
        payload_base64=base64.b64encode(payload).decode(),
    )


async def store_dead_letter(bus: Writes, letter: DeadLetter) -> None:
    """Store a dead letter. The server discards a second dead letter with the same key."""
    kept = await objects.wrap(bus, f"deadletter.{letter.key}", letter.dump(), letter.run_id)
    headers = {
        "Nats-Msg-Id": letter.key,
        REASON: _reason(bus, letter).encode("ascii", "backslashreplace").decode(),
        FROM: f"{letter.subject} {letter.sequence}",
        TRACEBACK: letter.traceback_id,
    }
    subject = subjects.deadletter(letter.service, letter.run_id)
    await bus.publisher.publish(Message(subject, kept, headers))


def _reason(bus: Writes, letter: DeadLetter) -> str:
    """Return the reason for the header. Where content is sealed, it is the name of the error only:
    an error's text may quote the message."""
    name = letter.reason.partition("(")[0]
    return (name if bus.jetstream.content.seals else letter.reason)[:MAX_REASON_CHARACTERS]


async def letters(
    bus: Buckets,
    service: str = "*",
    run_id: str = "*",
    since: datetime | None = None,
    *,
    after: int = 0,
) -> AsyncIterator[Letter]:
    """Yield every dead letter that matches and has a number greater than `after`, the newest
    last."""
    start = after + 1
    if since is not None:
        first = await leader.since(bus, streams.DEADLETTERS, since)
        if first is None:
            return
        start = max(start, first.sequence)
    marks = {entry.key: entry for entry in await bus.bucket("letters").entries()}
    pattern = subjects.deadletter(service, run_id)
    async for stored in direct.replay(bus, streams.DEADLETTERS, pattern, start):
        letter = await _letter(bus, stored)
        yield Letter(stored.sequence, letter, _mark(marks.get(letter.key)))


async def find(bus: Buckets, number: int) -> Letter | None:
    # The server calls a request for the message 0 a bad one.
    stored = await leader.at(bus, streams.DEADLETTERS, number) if number > 0 else None
    if stored is None:
        return None
    letter = await _letter(bus, stored)
    entry = await bus.bucket("letters").get(letter.key)
    return Letter(number, letter, _mark(entry))


async def mark(bus: Buckets, key: str, state: Literal["replaying", "replayed"]) -> None:
    """Record whether the replay of the dead letter with this key has begun or is done."""
    await bus.bucket("letters").put(key, Mark(state=state, at=bus.clock.stamp()).dump())


async def drop(bus: Buckets, found: Letter) -> bool:
    """Delete a dead letter and its mark; return False when the dead letter was deleted before."""
    was_there = await leader.delete(bus, streams.DEADLETTERS, found.number)
    await bus.bucket("letters").delete(found.letter.key)
    return was_there


async def count(bus: HasJetStream) -> int:
    info = await bus.jetstream.api(f"STREAM.INFO.{streams.DEADLETTERS}")
    return int(info["state"]["messages"])


def _mark(entry: Entry | None) -> Mark | None:
    """Return the mark in an entry; None without an entry, or when the mark cannot be read. An
    unreadable mark may be ignored, since a replay may be repeated safely."""
    if entry is None:
        return None
    try:
        return Mark.model_validate_json(entry.value)
    except ValidationError as error:
        log.warning("the mark %s cannot be read, ignored: %s", entry.key, error)
        return None


async def _letter(bus: HasJetStream, stored: Stored) -> DeadLetter:
    try:
        letter = DeadLetter.model_validate_json(await objects.unwrap(bus, stored.payload))
    except (ValidationError, ObjectGone):
        return _plain(stored)
    # A service may only write to its own subject. What the letter says may be made up.
    return letter.model_copy(update={"service": stored.subject.split(".")[1]})


def _plain(stored: Stored) -> DeadLetter:
    """Make a dead letter from a message's headers, as its JSON is none, or is in a lost object."""
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
