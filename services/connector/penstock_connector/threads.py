"""Conversations of AG-UI servers: most keep nothing, and must be told everything again.

KV `threads`: `thread.<session key>` is a session's conversation and state, `request.<run>` what a
run began with. Legs of one session run one after another, so that a plain write is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from penstock.bus import Bus, objects
from penstock.dialects.agui.decode_transcript import merged
from penstock_connector.claims import patiently

MAX_MESSAGES = 500  # of a conversation; the oldest turns go first


class Thread(BaseModel):
    """A session as the server would have it: AG-UI messages, and the shared state."""

    messages: list[dict[str, Any]] = []
    state: Any = None


class Request(BaseModel):
    """The RunAgentInput of a run's first leg."""

    body: dict[str, Any] = {}


class Threads:
    """What is kept of conversations. Waits for a bus that is away."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._bucket = bus.bucket("threads")

    async def thread(self, session: str) -> Thread:
        """The conversation so far."""
        kept = await self._get(f"thread.{session}")
        return Thread.model_validate_json(kept) if kept else Thread()

    async def add(self, session: str, messages: Sequence[dict[str, Any]], state: Any) -> None:
        """A leg has ended: its messages, by their ids; a state of None changes nothing."""
        thread = await self.thread(session)
        thread.messages = newest(merged(thread.messages, messages))
        thread.state = thread.state if state is None else state
        await self._put(f"thread.{session}", thread.model_dump_json().encode())

    async def request(self, run_id: str) -> dict[str, Any]:
        """What the run began with; empty when it is not known any more."""
        kept = await self._get(f"request.{run_id}")
        return Request.model_validate_json(kept).body if kept else {}

    async def keep_request(self, run_id: str, body: dict[str, Any]) -> None:
        """Before the upstream is called: its continues need it."""
        await self._put(f"request.{run_id}", Request(body=body).model_dump_json().encode())

    async def _get(self, key: str) -> bytes | None:
        async def read() -> bytes | None:
            entry = await self._bucket.get(key)
            return await objects.unwrap(self._bus, entry.value) if entry else None

        return await patiently(read)

    async def _put(self, key: str, value: bytes) -> None:
        async def write() -> None:
            await self._bucket.put(key, await objects.wrap(self._bus, key, value))

        await patiently(write)


def newest(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The newest messages, from one of the user's on: an answer means nothing without it."""
    if len(messages) <= MAX_MESSAGES:
        return messages
    kept = messages[-MAX_MESSAGES:]
    starts = (n for n, message in enumerate(kept) if message.get("role") == "user")
    return kept[next(starts, 0) :]
