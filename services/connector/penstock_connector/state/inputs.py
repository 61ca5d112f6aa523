"""Keeps what starts pass to agent servers besides the message, for legs that ask an agent again.

A budget stops a leg, and the next leg repeats the request in the same session. The start's command
is no longer there then. (Requests to AG-UI servers are kept whole, with the conversation.)
"""

from __future__ import annotations

import logging
from typing import Any, Final

import orjson

from penstock.bus import Bus, ObjectGone
from penstock.bus.connection.retry import with_retries
from penstock.bus.records.runs import StartCommand
from penstock.bus.write import objects
from penstock.start_fields import folded_name

log = logging.getLogger(__name__)

# The folded names of fields that the server applies to its session. Sent again, they would undo
# what the agent has changed there.
_APPLIED: Final = frozenset({"sessionstate", "statedelta"})


class Inputs:
    """Reads and writes KV `threads`, `input.<run id>`; repeats each step while the bus does not
    answer."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._bucket = bus.bucket("threads")

    async def store(self, start: StartCommand) -> None:
        """Store the fields of a start that later legs must pass again; nothing if it has none."""
        given = start.input or {}
        again = {name: given[name] for name in given if folded_name(name) not in _APPLIED}
        if not again:
            return
        key, value = _key(start.run_id), orjson.dumps(again)

        async def write() -> None:
            await self._bucket.put(key, await objects.wrap(self._bus, key, value, start.run_id))

        await with_retries(write)

    async def of_run(self, run_id: str) -> dict[str, Any]:
        """Return these fields; empty if the start had none, or if they are lost."""

        async def read() -> dict[str, Any]:
            entry = await self._bucket.get(_key(run_id))
            if entry is None:
                return {}
            found: dict[str, Any] = orjson.loads(await objects.unwrap(self._bus, entry.value))
            return found

        try:
            return await with_retries(read)
        except ObjectGone as error:
            log.warning("run %s: what its start has passed is lost: %s", run_id, error)
            return {}


def _key(run_id: str) -> str:
    return f"input.{run_id}"
