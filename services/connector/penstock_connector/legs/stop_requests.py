"""Requests to cancel, release or abandon a running leg."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The caller who cancelled the run, and the reason, as the events contain them."""

    by: str
    reason: str

    @property
    def facts(self) -> dict[str, str]:
        """The fields for the source frame."""
        return {"by": self.by, "reason": self.reason}


@dataclass(slots=True)
class StopRequests:
    """Requests to stop a leg; they may come at any time and more than once.

    If a leg is both cancelled and released, the connector that takes the leg over cancels the run.
    If a leg is both released and abandoned, only the first request counts.
    """

    cancelled: Cancelled | None = None
    is_released: bool = False
    abandoned: str | None = None  # the error for the last frame
    _asked: asyncio.Event = field(default_factory=asyncio.Event)

    def cancel(self, by: str, reason: str) -> None:
        """Ask the leg to cancel the run."""
        self.cancelled = Cancelled(by, reason)
        self._asked.set()

    def release(self) -> None:
        """Ask the leg to close its connection without writing a last frame.

        The caller does this before another connector takes the leg.
        """
        self.is_released = self.abandoned is None
        self._asked.set()

    def abandon(self, error: str) -> None:
        """Ask the leg to close its connection, and to write a `lost` frame with this error."""
        if not self.is_released:
            self.abandoned = self.abandoned or error
        self._asked.set()

    async def wait(self) -> None:
        """Wait for the first request."""
        await self._asked.wait()
