"""What others ask of a leg that runs: to cancel it, to release it, or to abandon it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from penstock_connector.legs.outcome import RELEASED, Outcome, lost


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Who cancelled the run, and why, as the events say it."""

    by: str
    reason: str

    @property
    def facts(self) -> dict[str, str]:
        """The fields of the source frame."""
        return {"by": self.by, "reason": self.reason}


@dataclass(slots=True)
class StopRequests:
    """Requests may come at any time and more than once.

    A leg may be cancelled and let go of as well: the connector that goes on with it then cancels
    it. Of a release and an abandonment the first one counts.
    """

    cancelled: Cancelled | None = None
    letting_go: Outcome | None = None
    _asked: asyncio.Event = field(default_factory=asyncio.Event)

    def cancel(self, by: str, reason: str) -> None:
        """End the run."""
        self.cancelled = Cancelled(by, reason)
        self._asked.set()

    def release(self) -> None:
        """Close the connection and write nothing: another connector is about to take the leg."""
        self._let_go(RELEASED)

    def abandon(self, error: str) -> None:
        """Close the connection, and write that the upstream is lost."""
        self._let_go(lost("upstream_lost", error))

    async def wait(self) -> None:
        """Return at the first request."""
        await self._asked.wait()

    def _let_go(self, how: Outcome) -> None:
        self.letting_go = self.letting_go or how
        self._asked.set()
