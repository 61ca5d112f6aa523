"""Conversations of AG-UI servers: most keep nothing, and must be told everything again.

KV `threads`: `thread.<session key>` is a session's conversation and state, `run.<run id>` the
request by which a run goes on. Legs of one session run one after another, so that a plain write is
enough.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter

from penstock.bus import Bus, ObjectGone
from penstock.bus.write import objects
from penstock.dialects.agui.decode.transcript import merged
from penstock_connector.state.retries import with_retries

log = logging.getLogger(__name__)

MAX_MESSAGES = 500  # of a conversation; the oldest turns go first

_Request = TypeAdapter(dict[str, Any])


class Thread(BaseModel):
    """A session as the server would have it: AG-UI messages, and the shared state."""

    messages: list[dict[str, Any]] = []
    state: Any = None


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
        """The RunAgentInput of the run with what was said since; empty when it is not known."""
        kept = await self._get(f"run.{run_id}")
        return _Request.validate_json(kept) if kept else {}

    async def keep_request(self, run_id: str, body: dict[str, Any]) -> None:
        """Before the upstream is called, and when a leg of it is over."""
        await self._put(f"run.{run_id}", _Request.dump_json(body))

    async def _get(self, key: str) -> bytes | None:
        async def read() -> bytes | None:
            entry = await self._bucket.get(key)
            return await objects.unwrap(self._bus, entry.value) if entry else None

        try:
            return await with_retries(read)
        except ObjectGone as error:
            log.warning("%s is forgotten: %s", key, error)
            return None

    async def _put(self, key: str, value: bytes) -> None:
        async def write() -> None:
            await self._bucket.put(key, await objects.wrap(self._bus, key, value))

        await with_retries(write)


def newest(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The newest messages, from one of the user's on: an answer means nothing without it."""
    if len(messages) <= MAX_MESSAGES:
        return messages
    kept = messages[-MAX_MESSAGES:]
    starts = (n for n, message in enumerate(kept) if message.get("role") == "user")
    return kept[next(starts, 0) :]
