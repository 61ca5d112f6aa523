"""Writes the source frames of a leg, and tells whether this connector still holds the leg."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import orjson

from penstock import telemetry
from penstock.bus import FenceConflict, RawWriter
from penstock.settings import ServerAgent
from penstock_connector.legs.outcome import Outcome
from penstock_connector.secrets import without_secrets
from penstock_connector.state.run_state import FrameKind

# The number of seconds after an accepted write in which the leg certainly still belongs to this
# connector. A takeover by another connector takes longer than this time.
FRESH_S: Final = 0.5


class LegWriter:
    """Writes the source frames of one leg; `raw` is the writer of the leg's run.

    All methods raise FenceConflict if another connector holds the leg. The methods that write raise
    HistoryLost if RAW has lost the leg's last frame.
    """

    def __init__(self, raw: RawWriter, run_id: str, number: int, agent: ServerAgent) -> None:
        self.raw = raw
        self._run_id = run_id
        self._number = number
        self._agent = agent
        self._written_at = time.monotonic()
        self._last_write: asyncio.Task[None] | None = None  # writes the leg's last source frame

    async def write(self, kind: FrameKind, payload: bytes, received: str | None = None) -> None:
        await self.raw.write(kind, payload, leg=self._number, received=received)
        self._written_at = time.monotonic()
        telemetry.FRAMES.labels(kind).inc()

    async def claim(self, **facts: Any) -> None:
        """Write a `claim` which states that this connector calls the agent server now."""
        await self.write("claim", orjson.dumps({"calls": True, **facts}))

    async def end(self, outcome: Outcome) -> None:
        """Write the leg's last source frame, unless it is being written or is written.

        If the caller is cancelled, the write goes on: a frame whose acknowledgement nobody waits
        for may be stored, and a second last frame would follow it.
        """
        last = self._last_write
        if last is None or (last.done() and last.exception()):
            payload = orjson.dumps(without_secrets(self._agent, outcome.facts))
            last = asyncio.create_task(self.write(outcome.frame_kind, payload))
            self._last_write = last
        await asyncio.shield(last)

    async def require_ours(self) -> None:
        """Check that this connector still holds the leg, which it loses if it was suspended too
        long."""
        if time.monotonic() - self._written_at > FRESH_S and not await self.raw.holds():
            raise FenceConflict(f"run {self._run_id} was taken over")
