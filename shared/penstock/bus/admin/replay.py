"""A dead letter goes back where it came from, once; or it is said why it cannot.

Putting back is safe to be repeated: the letter is marked before and after, the publish carries the
letter's own message id, and past the stream's duplicate window what takes the message does it once
(claims of starts, `sent` records of decisions, an approval's record).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from pydantic import ValidationError

from penstock.bus import subjects
from penstock.bus.errors import ObjectGone
from penstock.bus.records import ENDED, ContinueCommand, RunRecord, Sent
from penstock.bus.state import deadletters
from penstock.bus.state.deadletters import DeadLetter, Letter
from penstock.bus.write import objects
from penstock.bus.write.publisher import Message

if TYPE_CHECKING:
    from penstock.bus.bus import Bus

# services that process an event again when they are told to
TAKE_BACK = frozenset({"approvals"})


class CannotBePutBack(Exception):
    """The text says why, and what to do."""


async def put_back(bus: Bus, found: Letter) -> bool:
    """Have it processed again; False when it was put back before, and nothing was done.

    Raises CannotBePutBack, BusError.
    """
    letter = found.letter
    if found.mark is not None and found.mark.state == "replayed":
        return False
    message = await _message(bus, letter)
    await deadletters.mark(bus, letter, "replaying")
    await bus.publisher.publish(message)
    await deadletters.mark(bus, letter, "replayed")
    return True


async def _message(bus: Bus, letter: DeadLetter) -> Message:
    """What is to be published. Raises CannotBePutBack."""
    tokens = letter.subject.split(".")
    if tokens[0] in ("raw", "rawp"):
        raise CannotBePutBack(await _why_no_frame(bus, letter))
    if tokens[0] == "command" and len(tokens) == 4:
        check = _CHECKS.get(tokens[2])
        if check is not None:
            await check(bus, letter)
        return Message(letter.subject, letter.payload, _headers(letter))
    if tokens[0] in subjects.CATEGORIES and letter.service in TAKE_BACK:
        # an event has its place for good; the service is told to look at it again
        body = await objects.wrap(bus, f"replay.{letter.key}", letter.dump())
        return Message(subjects.replay_of(letter.service, letter.run_id), body, _headers(letter))
    raise CannotBePutBack(
        f"it came from {letter.subject or 'somewhere unknown'} and was given up by "
        f"{letter.service}, which takes nothing back; read it with `show`, then drop it"
    )


def _headers(letter: DeadLetter) -> dict[str, str]:
    """Its own, but for what was meant for the server when it was published first."""
    own = {name: value for name, value in letter.headers.items() if not name.startswith("Nats-")}
    return own | {"Nats-Msg-Id": f"replay.{letter.key}"}


async def _run(bus: Bus, run_id: str) -> RunRecord | None:
    entry = await bus.bucket("runs").get(run_id)
    return RunRecord.model_validate_json(entry.value) if entry is not None else None


def _how_it_ended(run: RunRecord) -> str:
    code = f", code {run.code}" if run.code else ""
    return f"the run has ended ({run.status}{code})"


async def _start(bus: Bus, letter: DeadLetter) -> None:
    run = await _run(bus, letter.run_id)
    if run is None or run.status == "queued":
        return
    if run.status in ENDED:
        raise CannotBePutBack(
            f"{_how_it_ended(run)}, and a run that has ended cannot be started again: "
            "start a new one, and drop the letter"
        )
    raise CannotBePutBack("the run has been started meanwhile: drop the letter")


async def _continue(bus: Bus, letter: DeadLetter) -> None:
    run = await _run(bus, letter.run_id)
    if run is not None and run.status in ENDED:
        raise CannotBePutBack(
            f"{_how_it_ended(run)}, and a run that has ended cannot go on: "
            "start a new one, and drop the letter"
        )
    try:
        command = ContinueCommand.model_validate_json(await objects.unwrap(bus, letter.payload))
    except (ValidationError, ObjectGone) as error:
        raise CannotBePutBack(f"it is no command that can be read: {error}") from error
    entry = await bus.bucket("sent").get(command.approval_id)
    sent = Sent.model_validate_json(entry.value) if entry is not None else None
    if sent is not None and sent.state != "claimed":
        raise CannotBePutBack(
            f"its decision was dealt with ({sent.state}), and is never sent twice: drop the letter"
        )


async def _cancel(bus: Bus, letter: DeadLetter) -> None:
    run = await _run(bus, letter.run_id)
    if run is not None and run.status in ENDED:
        raise CannotBePutBack(f"{_how_it_ended(run)}: there is nothing to cancel, drop the letter")


_CHECKS: dict[str, Callable[[Bus, DeadLetter], Awaitable[None]]] = {
    "start": _start,
    "continue": _continue,
    "cancel": _cancel,
}


async def _why_no_frame(bus: Bus, letter: DeadLetter) -> str:
    run = await _run(bus, letter.run_id)
    if run is not None and run.status in ENDED:
        return (
            f"{_how_it_ended(run)}: what was said of a run is never unsaid, so its source frames "
            "are not read anew. Start a new run, and drop the letter"
        )
    return (
        "the run has gone on without this source frame, whose place in the run's order is past: "
        "drop the letter"
    )
