"""Reads and writes sessions in ADK's shape, for agents that are not ADK agents (decision 0106).

A session is made from its record in KV `sessions` and from the stored events of its runs. The
session has no state. The agent server's own memory of the session is neither read nor deleted.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import orjson

from penstock.bus import Bus
from penstock.bus.records.legs import SessionRecord
from penstock.bus.records.runs import RunRecord
from penstock.bus.subjects import session_key, session_turn
from penstock.dialects.adk.encode import AdkEncoder
from penstock.runs.start import list_run
from penstock.settings import AgentConfig
from penstock.web.auth import Identity
from penstock.web.problems import Problem
from penstock.web.read_scheduler import Turn
from penstock_edge.sources.locate import lifecycle_of
from penstock_edge.sources.read_run import RUNS_READ, Allowance, read_run, request_allowance
from penstock_edge.sources.session_list import SessionList
from penstock_edge.sources.sessions import (
    CREATED_AT,
    Session,
    create_session,
    idle_since,
    run_records,
)
from penstock_edge.surfaces.adk.servers import ServerAnswer
from penstock_edge.views.items import type_of

_NAMESPACE: Final = uuid.UUID("0f1b0f6e-4a1f-5a0d-8f57-3c8f0f9f2c11")


@dataclass(frozen=True, slots=True)
class NamedSession:
    """The session that a request's path names; `agent` is the agent of the app."""

    agent: AgentConfig
    app: str
    user_id: str
    id: str

    @property
    def key(self) -> str:
        return session_key(self.user_id, self.agent.id, self.id)


class SessionStore:
    """Reads and writes the records of sessions in KV."""

    def __init__(self, bus: Bus, sessions: SessionList) -> None:
        self._bus = bus
        self._bucket = bus.bucket("sessions")
        self._sessions = sessions

    async def get(self, named: NamedSession) -> SessionRecord | None:
        return await self._bucket.load(named.key, SessionRecord)

    async def create(self, named: NamedSession) -> dict[str, Any]:
        record = await create_session(self._bus, named.user_id, named.agent.id, named.id)
        if record is None:
            raise Problem(409, f"Session already exists: {named.id}")
        return _shown(named, record, ())

    async def show(self, named: NamedSession, who: Identity, turn: Turn) -> dict[str, Any]:
        """Include the events of its last runs, within the limits."""
        record = await self.get(named)
        if record is None:
            raise Problem(404, "Session not found")
        shown = _shown(named, record, await run_records(self._bus, record.runs[-1:]))
        runs = await run_records(self._bus, record.runs[-RUNS_READ:])
        allowance = request_allowance()
        read: list[list[Any]] = []
        for run in reversed(runs):
            events = await self._events(run, who, allowance, turn)
            if allowance.is_spent and read:
                break  # only a part of this run's events was read, so the run is left out
            read.append(events)
        shown["events"] = [event for events in reversed(read) for event in events]
        return shown

    async def index(self, named: NamedSession, turn: Turn) -> list[dict[str, Any]]:
        async with turn():
            listed, _ = await self._sessions.page(named.user_id, [named.agent.id])
        return [
            _shown(replace(named, id=each.record.session_id), each.record, each.ends[-1:])
            for each in listed
        ]

    async def without_erased(self, named: NamedSession, listed: ServerAnswer) -> ServerAnswer:
        """Return an ADK server's list of sessions, without the states of those of which content was
        erased."""
        try:
            found = [each for each in orjson.loads(listed.content) if isinstance(each, dict)]
        except (orjson.JSONDecodeError, TypeError):
            return listed
        keys = [replace(named, id=str(each.get("id"))).key for each in found]
        records = await self._bucket.many(keys)
        changed = False
        for key, each in zip(keys, found, strict=True):
            entry = records.get(key)
            if entry and SessionRecord.model_validate_json(entry.value).erased_at is not None:
                changed |= bool(each.get("state") or each.get("events"))
                each.update(state={}, events=[])
        return replace(listed, content=orjson.dumps(found)) if changed else listed

    async def add_run(self, named: NamedSession, run_id: str) -> None:
        """Add a new run to the session's record, and publish a notice to waiting clients. The
        notice wakes each `WaitingStream` that waits for a run of this session, on every edge."""
        await list_run(self._bus, run_id, named.user_id, named.agent.id, named.id)
        await self._bus.client.publish(session_turn(named.key))

    async def check_at_rest(self, named: NamedSession) -> None:
        session = Session(named.user_id, named.id, (named.agent.id,), any_agent=False)
        if await idle_since(self._bus, session) is None:
            raise Problem(409, "a run of this session is active; cancel it, or wait for its end")
        record = await self.get(named)
        runs = record.runs[-RUNS_READ:] if record is not None else []
        last = await asyncio.gather(*(lifecycle_of(self._bus, run_id) for run_id in runs))
        if any(stored is not None and type_of(stored) == "lifecycle.paused" for stored in last):
            raise Problem(
                409, "a run of this session waits for a decision; decide it, or cancel it"
            )

    async def forget(self, named: NamedSession) -> None:
        """Delete the record, unless runs are queued in it; the runs themselves are kept."""
        entry = await self._bucket.get(named.key)
        if entry is not None and not SessionRecord.model_validate_json(entry.value).queue:
            await self._bucket.delete(named.key, entry.revision)

    async def _events(
        self, run: RunRecord, who: Identity, allowance: Allowance, turn: Turn
    ) -> list[Any]:
        encoder = AdkEncoder()
        encoded: list[Any] = []

        def take(event_type: str, event: dict[str, Any]) -> None:
            if event_type == "lifecycle.started":
                encoded.extend(_users_event(event))
            encoded.extend(orjson.loads(frame.data) for frame in encoder.feed(event))

        await read_run(self._bus, run, allowance, turn, take, dialect="adk", who=who)
        # Error frames have no author, and ADK does not keep them in a session.
        return [event for event in encoded if "author" in event]


def _shown(named: NamedSession, record: SessionRecord, last: Sequence[RunRecord]) -> dict[str, Any]:
    at = last[0].updated_at if last else getattr(record, CREATED_AT, None)
    return {
        "id": named.id,
        "appName": named.app,
        "userId": named.user_id,
        "state": {},
        "events": [],
        "lastUpdateTime": _epoch_s(at) if at else 0.0,
    }


def _users_event(started: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the event with the user's message, which ADK keeps but does not stream."""
    message = started["data"].get("message")
    if not message:
        return []
    return [
        {
            "content": {"parts": [{"text": message}], "role": "user"},
            "invocationId": started["run_id"],
            "author": "user",
            "actions": {
                "stateDelta": {},
                "artifactDelta": {},
                "requestedAuthConfigs": {},
                "requestedToolConfirmations": {},
            },
            "id": str(uuid.uuid5(_NAMESPACE, started["run_id"])),
            "timestamp": _epoch_s(started["timestamp"]),
        }
    ]


def _epoch_s(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()
