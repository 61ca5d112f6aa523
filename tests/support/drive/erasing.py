"""Erase the content of runs, and look for it in the files of NATS."""

from __future__ import annotations

from pathlib import Path

import uuid_utils

from penstock.bus import Bus, Message, messages, subjects
from penstock.bus.records.erasures import EraseCommand
from penstock.bus.records.runs import RunRecord
from support.drive.waiting import eventually
from support.real.nats import NatsServer


def command_for(*runs: str) -> EraseCommand:
    """Return the command that erases these runs."""
    return EraseCommand(
        erasure_id=str(uuid_utils.uuid7()),
        runs=[*runs],
        by="officer",
        at=messages.now(),
        reason="asked",
    )


async def ask(bus: Bus, *runs: str) -> EraseCommand:
    """Publish the command that erases these runs, as the edge does."""
    command = command_for(*runs)
    subject = subjects.command(subjects.NORMALIZER, "erase", runs[-1])
    await bus.publisher.publish(Message(subject, command.dump(), {}))
    return command


async def record_of(bus: Bus, run_id: str) -> RunRecord:
    """Return the run's record."""
    record = await bus.bucket("runs").load(run_id, RunRecord)
    assert record is not None
    return record


async def erased(bus: Bus, run_id: str, timeout_s: float = 60) -> RunRecord:
    """Wait until all messages of the run are deleted; return its record."""

    async def found() -> RunRecord | None:
        record = await record_of(bus, run_id)
        is_over = record.erasure is not None and record.erasure.erased_at is not None
        return record if is_over else None

    return await eventually(found, timeout_s, f"the erasure of {run_id}")


def streams_with(nats: NatsServer, secret: str) -> set[str]:
    """Return the names of the streams in whose files the text is."""
    return {
        path.parts[path.parts.index("streams") + 1]
        for path in nats.store.rglob("*")
        if path.is_file() and _contains(path, secret.encode())
    }


def _contains(path: Path, text: bytes) -> bool:
    try:
        return text in path.read_bytes()
    except FileNotFoundError:
        return False
