"""Starts runs: writes the record and the command, and finds the first run of a repeated request."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson
import uuid_utils

from penstock.bus import (
    Bus,
    BusError,
    BusUnavailable,
    Message,
    OutcomeUnknown,
    StreamFull,
    subjects,
)
from penstock.bus.records import RunRecord, StartCommand
from penstock.bus.write.objects import wrap
from penstock.settings import AgentConfig
from penstock.web.problems import Problem
from penstock_edge.runs.open_runs import OpenRuns
from penstock_edge.runs.trace import traceparent

SHOWN_CHARACTERS = 200
TRIES = 3
RETRY_S = 0.25


@dataclass(frozen=True, slots=True)
class Start:
    """A request for a run. `key` is the idempotency key, `request` the bytes that belong to it."""

    agent: AgentConfig
    message: str
    session_id: str | None  # None for a new session
    user_id: str
    input: dict[str, Any] | None = None
    body: str | None = None
    key: str | None = None
    request: bytes = b""
    prepare: Callable[[str], Awaitable[object]] | None = None  # is called with the new run's id


@dataclass(frozen=True, slots=True)
class Started:
    """The run; `new`: this request has created it, no earlier one with the same key."""

    record: RunRecord
    new: bool


class Starter:
    """Writes the records and commands of new runs."""

    def __init__(self, bus: Bus, open_runs: OpenRuns, *, callers_known: bool) -> None:
        self._bus = bus
        self._callers_known = callers_known
        self._open_runs = open_runs

    async def start(self, start: Start) -> Started:
        """Start a new run, or return the run of an earlier request with the same key.

        Raises:
            Problem: 409 if the key came with another request before; 422 for a session or user that
                the agent's server has no path for; 429 if the user has too many runs.
            BusError: the run was not started; or, for OutcomeUnknown, may not have been.
        """
        require_reachable(start.agent, start.user_id, start.session_id)
        # Lists sort runs by id, so all edges take the time from the same clock.
        run_id = str(uuid_utils.uuid7(nanoseconds=round(self._bus.clock.time() * 1e9)))
        if not await self._open_runs.has_room(start.user_id) and not await self._is_repeat(start):
            self._open_runs.refuse(start.user_id)
        # No `await` may come before this line, or many concurrent starts would all find room.
        self._open_runs.begin(start.user_id, run_id)
        try:
            started = await self._start(start, run_id)
        except BaseException:
            self._open_runs.forget(run_id)
            raise
        if started.record.run_id != run_id:
            self._open_runs.forget(run_id)  # the request was a repeat
        return started

    async def _start(self, start: Start, run_id: str) -> Started:
        if start.key is not None:
            run_id, new = await self._first_of(start, run_id)
        else:
            new = True
        command = _command(start, run_id, self._bus.clock.stamp()).model_copy(
            update={"callers_known": self._callers_known}
        )
        record, revision = await self._record(command)
        # An earlier attempt may have failed before its command, so a repeat publishes it again. Two
        # commands for one run are harmless: connectors claim a run once.
        if record.status == "queued":
            await self._command(start, command, revision)
        return Started(record, new)

    async def _command(self, start: Start, command: StartCommand, revision: int | None) -> None:
        """Prepare the run, and publish its command.

        `revision` is that of the record, if this request has created it. If the command was
        certainly not published, the record is deleted, so that lists do not show a run that never
        begins. An earlier request may have published the command, so its record stays.
        """
        try:
            if start.prepare is not None:
                await start.prepare(command.run_id)
        except BaseException:
            await self._delete_record(command.run_id, revision)
            raise
        try:
            await self._publish(command)
        except (BusUnavailable, StreamFull):
            await self._delete_record(command.run_id, revision)
            raise

    async def _is_repeat(self, start: Start) -> bool:
        """Whether a run is recorded for the key, so that the request starts no new one."""
        if start.key is None:
            return False
        entry = await self._bus.bucket("idempotency").get(_key_of(start))
        if entry is None:
            return False
        return await self._bus.bucket("runs").get(orjson.loads(entry.value)["run_id"]) is not None

    async def _first_of(self, start: Start, run_id: str) -> tuple[str, bool]:
        """The id of the key's first run, and whether it is this one."""
        bucket = self._bus.bucket("idempotency")
        key = _key_of(start)
        digest = hashlib.sha256(start.request).hexdigest()
        value = orjson.dumps({"run_id": run_id, "sha256": digest})
        if await bucket.create(key, value) is not None:
            return run_id, True
        entry = await bucket.get(key)
        if entry is None or entry.value is None:
            raise Problem(503, "the idempotency key has just expired; try again")
        first = orjson.loads(entry.value)
        if first["sha256"] != digest:
            raise Problem(409, "this idempotency key came with another request before")
        return str(first["run_id"]), False

    async def _record(self, command: StartCommand) -> tuple[RunRecord, int | None]:
        """The run's record, and its revision if this request has created it."""
        record = RunRecord(
            run_id=command.run_id,
            agent=command.agent,
            session_id=command.session_id,
            user_id=command.user_id,
            message=command.message[:SHOWN_CHARACTERS],
            created_at=command.created_at,
            updated_at=command.created_at,
        )
        runs = self._bus.bucket("runs")
        revision = await runs.create(command.run_id, record.dump())
        if revision is not None:
            return record, revision
        entry = await runs.get(command.run_id)
        if entry is None or entry.value is None:
            return record, None
        return RunRecord.model_validate_json(entry.value), None

    async def _publish(self, command: StartCommand) -> None:
        payload = await wrap(self._bus, f"{command.run_id}.start", command.dump())
        message = Message(
            subjects.command("connector", "start", command.run_id),
            payload,
            {"Nats-Msg-Id": command.run_id},
        )
        failure: BusError | None = None
        for _ in range(TRIES):
            try:
                await self._bus.publisher.publish(message)
                return
            except OutcomeUnknown as error:
                failure = error
            except (BusUnavailable, StreamFull) as error:
                if not isinstance(failure, OutcomeUnknown):  # an earlier try may have succeeded
                    failure = error
            await asyncio.sleep(RETRY_S)
        assert failure is not None
        raise failure

    async def _delete_record(self, run_id: str, revision: int | None) -> None:
        """Delete the record of a run that has not begun, if it has not changed and KV answers."""
        if revision is None:
            return
        with suppress(BusError):
            await self._bus.bucket("runs").delete(run_id, revision)


def require_reachable(agent: AgentConfig, user_id: str, session_id: str | None) -> None:
    """Require ids that an ADK server has a path for.

    An ADK server decodes `%2F` before it looks for the route. So it answers 404 to every request
    for an id with a slash.

    Raises:
        Problem: 422 for such an id.
    """
    if agent.protocol != "adk":
        return
    for name, id in (("session", session_id), ("user", user_id)):
        if id is not None and "/" in id:
            raise Problem(
                422,
                f"the {name} id {id[:128]!r} has a slash, which no path of an ADK server can have; "
                "use an id without one",
            )


def _key_of(start: Start) -> str:
    return subjects.key_of(start.user_id, start.key)


def _command(start: Start, run_id: str, created_at: str) -> StartCommand:
    return StartCommand(
        run_id=run_id,
        agent=start.agent.id,
        # Derived from the run's id, so that a repeat has the same session.
        session_id=start.session_id or str(uuid.uuid5(uuid.UUID(run_id), "session")),
        user_id=start.user_id,
        message=start.message,
        input=start.input,
        body=start.body,
        idempotency_key=start.key,
        traceparent=traceparent(),
        created_at=created_at,
    )
