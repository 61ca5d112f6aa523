"""A session's events from the first one on, for dialects whose frames depend on all of them."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from penstock.bus import Bus, Stored
from penstock.bus.streams import EVENTS
from penstock.web.read_scheduler import ReadScheduler
from penstock_edge.sources.history import History
from penstock_edge.sources.many_runs import ManyRunViews
from penstock_edge.sources.run_source import ignore_failure
from penstock_edge.sources.sessions import Session
from penstock_edge.views.view import Deliver, Source


class SessionFromStart(Source):
    """Delivers the session's stored events, then its live ones."""

    def __init__(
        self, bus: Bus, many: ManyRunViews, session: Session, turns: ReadScheduler, deliver: Deliver
    ) -> None:
        self.on_failure = ignore_failure
        self._bus = bus
        self._turn = partial(turns.of, session.owner)
        self._deliver = deliver
        self._live = many.session(session, self._on_live)
        # Live events that wait until the stored ones are delivered; None after that.
        self._held: list[Stored] | None = []

    async def start(self) -> int:
        """Deliver the stored events, and begin to deliver the live ones.

        Raises:
            BusError: the events cannot be read now. The source must be stopped.
        """
        self._live.on_failure = self.on_failure
        floor = await self._live.start()
        history = History(self._bus, EVENTS, self._live.patterns, 1, self._live.keep, self._turn)
        while batch := await history.below(floor):
            self._deliver(batch)
        held, self._held = self._held, None
        if held:
            self._deliver(held)
        return 1

    def patterns(self) -> Collection[str]:
        """The session's runs that are known by now."""
        return self._live.patterns()

    async def keep(self, stored: Stored) -> bool:
        """Whether the message's run is one of the session's."""
        return await self._live.keep(stored)

    async def prepare(self) -> None:
        """Read what `patterns` must know, without beginning to deliver.

        Raises:
            BusError: KV cannot be read now.
        """
        await self._live.prepare()

    async def stop(self) -> None:
        """Deliver nothing more."""
        await self._live.stop()

    def _on_live(self, batch: list[Stored]) -> None:
        if self._held is None:
            self._deliver(batch)
        else:
            self._held += batch
