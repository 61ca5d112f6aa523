"""Opens what a subscriber reads, with the keys that edges give to it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.bus.connection.content import KEPT_S, MAX_KEYS, Asks, Content
from penstock.bus.connection.health import Health
from penstock.bus.sealing import MasterKeys, RunKey, RunKeys

# The refusals that hold for all events of a run.
_OF_THE_RUN: Final = frozenset({"other_tenant", "erased"})


class KeyRefused(Exception):
    """A subscriber does not get the key of a run, for the reason `no_grant`, `other_tenant` or
    `erased`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class GrantedContent(Content):
    """Content whose keys come from edges, in place of the stream KEYS. It seals nothing."""

    def __init__(self, ask: Asks, key_of: Callable[[str], Awaitable[bytes]]) -> None:
        """`key_of` asks for the key of a run: the key, or nothing if the run has none. It raises
        KeyRefused and BusError."""
        super().__init__(ask, MasterKeys(), Health())
        self._key_of = key_of
        # by run: why its key was refused, and when
        self._refusals: dict[str, tuple[str, float]] = {}

    def forget(self, run_id: str | None = None) -> None:
        super().forget(run_id)
        if run_id is None:
            self._refusals.clear()

    async def stored_keys(self, run_id: str) -> tuple[RunKeys, int]:
        """Return the key of a run. Raises KeyRefused, BusError."""
        reason, refused_at = self._refusals.get(run_id, ("", 0.0))
        if reason and time.monotonic() - refused_at < KEPT_S:
            raise KeyRefused(reason)
        try:
            secret = await self._key_of(run_id)
        except KeyRefused as error:
            if error.reason in _OF_THE_RUN:
                self._refusals.pop(run_id, None)
                self._refusals[run_id] = error.reason, time.monotonic()
                if len(self._refusals) > MAX_KEYS:
                    del self._refusals[next(iter(self._refusals))]
            raise
        return RunKeys(RunKey(secret) if secret else None), 0
