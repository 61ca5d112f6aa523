"""Stores conversations with AG-UI servers. Most servers store none, so a request has all messages.

In KV `threads`, `thread.<session key>` is a session's conversation and state, and `run.<run id>` is
the request that continues a run. The legs of one session run one after another, so a write without
a revision is safe.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter

from penstock.bus import Bus, ObjectGone
from penstock.bus.connection.retry import with_retries
from penstock.bus.write import objects
from penstock.dialects.agui.decode.transcript import merged

log = logging.getLogger(__name__)

# the greatest number of messages in a conversation; the oldest turns are dropped first
MAX_MESSAGES = 500

_Request = TypeAdapter(dict[str, Any])


class Thread(BaseModel):
    """The AG-UI messages of a session, and its shared state."""

    messages: list[dict[str, Any]] = []
    state: Any = None


class Threads:
    """Reads and writes conversations; repeats each step while the bus does not answer."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._bucket = bus.bucket("threads")

    async def thread(self, session: str) -> Thread:
        kept = await self._get(f"thread.{session}")
        return Thread.model_validate_json(kept) if kept else Thread()

    async def add(self, session: str, messages: Sequence[dict[str, Any]], state: Any) -> None:
        """Add the messages of a leg, by their ids; if `state` is None, the state stays the same."""
        thread = await self.thread(session)
        thread.messages = newest(merged(thread.messages, messages))
        thread.state = thread.state if state is None else state
        # It is of several runs, so no key of a run can seal it.
        await self._put(f"thread.{session}", thread.model_dump_json().encode(), "")

    async def request(self, run_id: str) -> dict[str, Any]:
        """Return the run's RunAgentInput, with the messages of earlier legs; empty if it is
        lost."""
        kept = await self._get(f"run.{run_id}")
        return _Request.validate_json(kept) if kept else {}

    async def store_request(self, run_id: str, body: dict[str, Any]) -> None:
        """Store the run's request, before the server is called and when a leg has ended."""
        await self._put(f"run.{run_id}", _Request.dump_json(body), run_id)

    async def _get(self, key: str) -> bytes | None:
        async def read() -> bytes | None:
            entry = await self._bucket.get(key)
            return await objects.unwrap(self._bus, entry.value) if entry else None

        try:
            return await with_retries(read)
        except ObjectGone as error:
            log.warning("KV threads, %s: its content is lost: %s", key, error)
            return None

    async def _put(self, key: str, value: bytes, run_id: str) -> None:
        async def write() -> None:
            await self._bucket.put(key, await objects.wrap(self._bus, key, value, run_id))

        await with_retries(write)


def newest(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the newest messages, at most 500, beginning with a message of the user."""
    if len(messages) <= MAX_MESSAGES:
        return messages
    kept = messages[-MAX_MESSAGES:]
    starts = (n for n, message in enumerate(kept) if message.get("role") == "user")
    return kept[next(starts, 0) :]
