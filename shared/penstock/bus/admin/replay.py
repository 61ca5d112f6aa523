"""Replays a dead letter: publishes the message again once, or explains why a replay is impossible.

A replay may be repeated safely. The dead letter is marked before and after the publish, and the
message id is made from the dead letter, so the server drops a second publish within the stream's
duplicate window. After the window, the receiving service still processes the message only once: it
checks the claim of a start, the `sent` record of a decision, or the record of an approval.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import Literal

from pydantic import ValidationError

from penstock.bus import subjects
from penstock.bus.errors import ObjectGone
from penstock.bus.messages import Message, Unreadable
from penstock.bus.records.approvals import ContinueCommand
from penstock.bus.records.base import Record
from penstock.bus.records.legs import Sent
from penstock.bus.records.runs import ENDED, RunRecord
from penstock.bus.sealing import FIRST_BYTES, SEALED
from penstock.bus.state import deadletters
from penstock.bus.state.deadletters import DeadLetter, Letter
from penstock.bus.state.kv import Buckets
from penstock.bus.write import objects

# The services that have a replay queue. From this queue a service takes the events of its dead
# letters to process the events again.
TAKE_BACK = frozenset({"approvals", "automations", "workflows"})


class ReplayReply(Record):
    """The answer to a request `letter.<number>`. `status` is an HTTP status."""

    status: Literal[200, 404, 409]
    detail: str
    outcome: Literal["replayed", "already"] | None = None


class CannotReplay(Exception):
    """A dead letter cannot be replayed. The text contains the reason and advice."""


async def replay_letter(bus: Buckets, found: Letter) -> bool:
    """Publish the message of a dead letter again; return False if the letter was replayed before.
    Raises CannotReplay if processing the message again would do harm or have no effect."""
    letter = found.letter
    if found.mark is not None and found.mark.state == "replayed":
        return False
    message = await _message(bus, await _opened(bus, letter))
    await deadletters.mark(bus, letter.key, "replaying")
    await bus.publisher.publish(message)
    await deadletters.mark(bus, letter.key, "replayed")
    return True


async def replay_number(bus: Buckets, number: int) -> ReplayReply:
    """Replay the dead letter with this number; the reply says what was done. Raises BusError."""
    found = await deadletters.find(bus, number)
    if found is None:
        return ReplayReply(status=404, detail=f"there is no dead letter {number} (any more)")
    return await replay_found(bus, found)


async def replay_found(bus: Buckets, found: Letter) -> ReplayReply:
    try:
        done = await replay_letter(bus, found)
    except CannotReplay as error:
        return ReplayReply(status=409, detail=f"cannot be replayed: {error}")
    if done:
        detail = f"replayed, as {found.letter.subject}"
        return ReplayReply(status=200, detail=detail, outcome="replayed")
    assert found.mark is not None
    detail = f"was replayed at {found.mark.at}: nothing done"
    return ReplayReply(status=200, detail=detail, outcome="already")


async def _opened(bus: Buckets, letter: DeadLetter) -> DeadLetter:
    """Return the letter with its message opened, whose key may be known again. Published as it is,
    a message that is sealed would be sealed twice."""
    stored = letter.message
    # A letter is sealed itself, so what is in clear in it is what a service has opened.
    stored.is_open = stored.payload[:FIRST_BYTES] not in SEALED
    await bus.jetstream.content.open(stored)
    if isinstance(stored.payload, Unreadable):
        raise CannotReplay(f"{stored.payload.error}; drop the letter, or restore the stream KEYS")
    payload = stored.unmasked or stored.payload
    return letter.model_copy(update={"payload_base64": b64encode(payload).decode()})


async def _message(bus: Buckets, letter: DeadLetter) -> Message:
    tokens = letter.subject.split(".")
    if tokens[0] in ("raw", "rawp"):
        raise CannotReplay(await _why_no_frame(bus, letter))
    if tokens[0] == "command" and len(tokens) == 4:
        if tokens[1] != letter.service:
            # An edge may write dead letters. It must not have commands published by them.
            raise CannotReplay(
                f"{letter.service} wrote it about a command to {tokens[1]}, which it never takes: "
                "find out who wrote it, then drop it"
            )
        check = _CHECKS.get(tokens[2])
        if check is not None:
            await check(bus, letter)
        return Message(letter.subject, letter.payload, _headers(letter))
    is_for_service = tokens[0] in (*subjects.CATEGORIES, "delivery")
    if is_for_service and letter.service in TAKE_BACK:
        # An event cannot be published again, so a command asks the service to process the event
        # again.
        body = await objects.wrap(bus, f"replay.{letter.key}", letter.dump(), letter.run_id)
        return Message(subjects.replay_of(letter.service, letter.run_id), body, _headers(letter))
    raise CannotReplay(
        f"it came from {letter.subject or 'an unknown subject'} and was given up by "
        f"{letter.service}, which takes no replays; read it with `show`, then drop it"
    )


def _headers(letter: DeadLetter) -> dict[str, str]:
    """Return the message's headers without those for the NATS server, and with a message id."""
    own = {name: value for name, value in letter.headers.items() if not name.startswith("Nats-")}
    return own | {"Nats-Msg-Id": f"replay.{letter.key}"}


def _how_it_ended(run: RunRecord) -> str:
    code = f", code {run.code}" if run.code else ""
    return f"the run has ended ({run.status}{code})"


async def _start(bus: Buckets, letter: DeadLetter) -> None:
    run = await bus.bucket("runs").load(letter.run_id, RunRecord)
    if run is None or run.status == "queued":
        return
    if run.status in ENDED:
        raise CannotReplay(
            f"{_how_it_ended(run)}, and a run that has ended cannot be started again: "
            "start a new one, and drop the letter"
        )
    raise CannotReplay("the run has been started meanwhile: drop the letter")


async def _continue(bus: Buckets, letter: DeadLetter) -> None:
    run = await bus.bucket("runs").load(letter.run_id, RunRecord)
    if run is not None and run.status in ENDED:
        raise CannotReplay(
            f"{_how_it_ended(run)}, and a run that has ended cannot go on: "
            "start a new one, and drop the letter"
        )
    try:
        command = ContinueCommand.model_validate_json(await objects.unwrap(bus, letter.payload))
    except (ValidationError, ObjectGone) as error:
        raise CannotReplay(f"its command cannot be read: {error}") from error
    sent = await bus.bucket("sent").load(command.approval_id, Sent)
    if sent is not None and sent.state != "claimed":
        raise CannotReplay(
            f"its decision was dealt with ({sent.state}), and is never sent twice: drop the letter"
        )


async def _cancel(bus: Buckets, letter: DeadLetter) -> None:
    run = await bus.bucket("runs").load(letter.run_id, RunRecord)
    if run is not None and run.status in ENDED:
        raise CannotReplay(f"{_how_it_ended(run)}: there is nothing to cancel, drop the letter")


_CHECKS: dict[str, Callable[[Buckets, DeadLetter], Awaitable[None]]] = {
    "start": _start,
    "continue": _continue,
    "cancel": _cancel,
}


async def _why_no_frame(bus: Buckets, letter: DeadLetter) -> str:
    run = await bus.bucket("runs").load(letter.run_id, RunRecord)
    if run is not None and run.status in ENDED:
        return (
            f"{_how_it_ended(run)}: published events are never taken back, so its source frames "
            "are not read again. Start a new run, and drop the letter"
        )
    return (
        "the run has continued without this source frame, which would now come in the wrong "
        "order: drop the letter"
    )
