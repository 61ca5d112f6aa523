"""Stores conversations with AG-UI servers. Most servers store none, so a request has all messages.

In KV `threads`, `thread.<session key>` is a session's conversation and state, and `run.<run id>` is
the request that continues a run. The legs of one session run one after another. Only the erasure of
an earlier run may come between: it empties the conversation, and what has begun before is never
added to it again, since its request had the erased messages.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

from pydantic import BaseModel, TypeAdapter

from penstock.bus import Bus, ObjectGone
from penstock.bus.connection.retry import with_retries
from penstock.bus.errors import ContentErased
from penstock.bus.sealing import conversation_of
from penstock.bus.shards import made_at_ms
from penstock.bus.write import objects
from penstock.dialects.agui.decode.transcript import merged

log = logging.getLogger(__name__)

# the greatest number of messages in a conversation; the oldest turns are dropped first
MAX_MESSAGES = 500

_Request = TypeAdapter(dict[str, Any])


class Thread(BaseModel):
    """The AG-UI messages of a session, and its shared state; `erased_at` is when content of one of
    its runs was erased."""

    messages: list[dict[str, Any]] = []
    state: Any = None
    erased_at: str = ""

    def may_have(self, run_id: str) -> bool:
        """Return whether the run began after the erasure."""
        if not self.erased_at:
            return True
        return made_at_ms(run_id) > datetime.fromisoformat(self.erased_at).timestamp() * 1000

    def add(self, messages: Sequence[dict[str, Any]], state: Any) -> None:
        """Add messages by their ids; if `state` is None, the state stays the same."""
        self.messages = newest(merged(self.messages, messages))
        self.state = self.state if state is None else state


class Threads:
    """Reads and writes conversations; repeats each step while the bus does not answer."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._bucket = bus.bucket("threads")

    async def thread(self, session: str) -> Thread:
        kept = await self._get(f"thread.{session}")
        return Thread.model_validate_json(kept) if kept else Thread()

    async def add(
        self, session: str, run_id: str, messages: Sequence[dict[str, Any]], state: Any
    ) -> None:
        """Add the messages of a leg, as `Thread.add`, unless the run began before an erasure."""
        while not await with_retries(partial(self._add, session, run_id, messages, state)):
            pass  # an erasure was first

    async def _add(
        self, session: str, run_id: str, messages: Sequence[dict[str, Any]], state: Any
    ) -> bool:
        """Return False if the conversation was changed meanwhile."""
        key, thread = f"thread.{session}", Thread()
        entry = await self._bucket.get(key)
        try:
            if entry is not None:
                value = await objects.unwrap(self._bus, entry.value)
                thread = Thread.model_validate_json(value)
        except ContentErased:
            return True  # an erasure is under way
        except ObjectGone as error:
            log.warning("KV threads, %s: its content is lost: %s", key, error)
        if not thread.may_have(run_id):
            log.info("run %s: content of its session was erased meanwhile, so it adds none", run_id)
            return True
        thread.add(messages, state)
        value = thread.model_dump_json().encode()
        value = await objects.wrap(self._bus, key, value, conversation_of(session))
        revision = entry.revision if entry is not None else 0
        return await self._bucket.update(key, value, revision) is not None

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
