"""Finds the shard in which a session's runs are stored.

All runs of a session are in one shard, and this shard never changes. So one stream sequence is
enough as a cursor of the session's stream, and the runs of the session have one order.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Final

from penstock.bus import Bus, BusUnavailable, subjects
from penstock.bus.records.legs import SessionRecord

KNOWN_SESSIONS: Final = 20_000
# The agent of the session record that lists the runs of workflows which are no configured agents.
# These workflows are started by their names, and nobody knows all names when a session is read.
BY_NAME: Final = ""


class SessionShards:
    """Reads and records the shards of sessions, in KV `aliases`.

    While the installation has only one shard, nothing is read or written. A session that is older
    than the second shard has no entry in KV `aliases`. The shard of such a session is read from the
    ids of its runs.
    """

    def __init__(self, bus: Bus, agents: tuple[str, ...]) -> None:
        self._bus = bus
        self.agents: Final = (*agents, BY_NAME)  # the agents that a session may have records of
        self._known: dict[str, int] = {}

    async def of(self, user_id: str, session_id: str) -> int:
        """Return the shard of a session. If the session has no runs, choose a shard."""
        if self._bus.shards.made == 1:
            return 0
        key = subjects.key_of("shard", user_id, session_id)
        shard = self._known.get(key)
        if shard is None:
            shard = await self._look_up(key, user_id, session_id)
            if len(self._known) >= KNOWN_SESSIONS:
                self._known.clear()
            self._known[key] = shard
        return shard

    def of_new_session(self) -> int:
        used = self._bus.shards.used
        return secrets.randbelow(used) if used > 1 else 0

    def record_agent(self, agent: str) -> str:
        return agent if agent in self.agents else BY_NAME

    async def record(self, user_id: str, session_id: str, shard: int) -> None:
        """Record the shard of a new session, before its first run starts."""
        if self._bus.shards.made > 1:
            key = subjects.key_of("shard", user_id, session_id)
            await self._bus.bucket("aliases").create(key, b"%d" % shard)

    async def _look_up(self, key: str, user_id: str, session_id: str) -> int:
        bucket = self._bus.bucket("aliases")
        entry = await bucket.get(key)
        if entry is None:
            shard = await self._of_runs(user_id, session_id)
            if shard is None:
                shard = self.of_new_session()
            if await bucket.create(key, b"%d" % shard) is not None:
                return shard
            # another process was first, so read the shard that it has written
            entry = await bucket.get(key)
        if entry is None:
            raise BusUnavailable("the shard of the session has just expired; try again")
        return int(entry.value)

    async def _of_runs(self, user_id: str, session_id: str) -> int | None:
        keys = [subjects.session_key(user_id, agent, session_id) for agent in self.agents]
        bucket = self._bus.bucket("sessions")
        records = await asyncio.gather(*(bucket.load(key, SessionRecord) for key in keys))
        runs = [run_id for record in records if record is not None for run_id in record.runs]
        return subjects.shard_of(max(runs)) if runs else None
