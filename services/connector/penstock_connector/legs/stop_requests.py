"""Requests to a leg that runs: to cancel it, to release it, or to abandon it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from penstock_connector.legs.outcome import RELEASED, Outcome, lost


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The caller who cancelled the run, and the reason, as the events give them."""

    by: str
    reason: str

    @property
    def facts(self) -> dict[str, str]:
        """The fields of the source frame."""
        return {"by": self.by, "reason": self.reason}


@dataclass(slots=True)
class StopRequests:
    """Requests to stop a leg. They may come at any time and more than once.

    A leg may be both cancelled and released. Then the connector that takes the leg over cancels it.
    If a leg is both released and abandoned, only the first request counts.
    """

    cancelled: Cancelled | None = None
    stop_as: Outcome | None = None  # the outcome of a released or abandoned leg
    _asked: asyncio.Event = field(default_factory=asyncio.Event)

    def cancel(self, by: str, reason: str) -> None:
        """Ask the leg to cancel the run."""
        self.cancelled = Cancelled(by, reason)
        self._asked.set()

    def release(self) -> None:
        """Ask the leg to close the connection and to write nothing.

        Another connector is about to take the leg.
        """
        self._stop(RELEASED)

    def abandon(self, error: str) -> None:
        """Ask the leg to close the connection, and to write that the upstream is lost."""
        self._stop(lost("upstream_lost", error))

    async def wait(self) -> None:
        """Return at the first request."""
        await self._asked.wait()

    def _stop(self, how: Outcome) -> None:
        self.stop_as = self.stop_as or how
        self._asked.set()
