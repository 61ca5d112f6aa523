"""Finds the user of the run that an event belongs to."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import orjson

from penstock.bus import Bus

MAX_KNOWN: Final = 10_000


class Owners:
    """Reads the users of runs from KV `runs`, and caches them, because a run never changes its
    user."""

    def __init__(self, bus: Bus) -> None:
        self._runs = bus.bucket("runs")
        self._known: OrderedDict[str, str] = OrderedDict()

    async def of(self, run_id: str) -> str | None:
        """Return the user of a run; None if the run is unknown.

        Raises:
            BusError: the bucket cannot be read now.
        """
        known = self._known.get(run_id)
        if known is not None:
            return known
        entry = await self._runs.get(run_id)
        if entry is None:
            return None
        user_id = str(orjson.loads(entry.value).get("user_id", "anonymous"))
        self._known[run_id] = user_id
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return user_id
