"""Helpers to make dead letters in a test, and to find those that a service made."""

from __future__ import annotations

from penstock.bus import Bus, Message, Stored
from penstock.bus.state import deadletters
from penstock.bus.state.deadletters import DeadLetter, Letter
from support.drive.bus import new_run_id
from support.drive.waiting import eventually

WHY = ValueError("as the test wants")


async def all_letters(bus: Bus, service: str = "*", run_id: str = "*") -> list[Letter]:
    """Return the letters that match, the newest last."""
    return [found async for found in deadletters.letters(bus, service, run_id)]


async def the_letter(bus: Bus, service: str, run_id: str, timeout_s: float = 60) -> Letter:
    """Return the only letter about that run when it exists."""

    async def there() -> list[Letter]:
        return await all_letters(bus, service, run_id)

    [found] = await eventually(there, timeout_s, f"a dead letter of {service} about {run_id}")
    return found


def letter_about(
    subject: str,
    payload: bytes = b"{}",
    *,
    service: str = "connector",
    sequence: int = 1,
    headers: dict[str, str] | None = None,
    error: Exception = WHY,
) -> DeadLetter:
    """Return the letter that a service would write about a message of that subject."""
    stored = Stored(subject, sequence, headers or {}, payload, delivered=5)
    return deadletters.letter_about(service, "pod-1", stored, error)


async def buried(bus: Bus, letter: DeadLetter) -> Letter:
    """Store the letter; return it as stored."""
    await deadletters.store_dead_letter(bus, letter)
    return await the_letter(bus, letter.service, letter.run_id)


def a_cancel(run_id: str | None = None, service: str = "connector") -> str:
    """Return the subject of a cancel command."""
    return f"command.{service}.cancel.{run_id or new_run_id()}"


async def stored_command(bus: Bus, subject: str) -> int:
    """Return how many messages of that subject the stream COMMANDS has."""
    info = await bus.api("STREAM.INFO.COMMANDS", {"subjects_filter": subject})
    return sum((info["state"].get("subjects") or {}).values())


async def publish(bus: Bus, subject: str, payload: bytes = b"{}") -> int:
    """Publish one message; return its stream sequence."""
    return await bus.publisher.publish(Message(subject, payload, {}))
