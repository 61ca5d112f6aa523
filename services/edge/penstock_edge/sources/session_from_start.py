"""Delivers all events of a session from its start.

Dialects whose frames depend on all earlier events need this source.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from penstock.bus import Bus, Stored
from penstock.bus.streams import events_of
from penstock.web.read_scheduler import ReadScheduler
from penstock_edge.sources.history import History
from penstock_edge.sources.many_runs import ManyRunViews
from penstock_edge.sources.run_source import ignore_failure
from penstock_edge.sources.sessions import Session
from penstock_edge.views.view import Deliver, Source


class SessionFromStart(Source):
    """Delivers the session's stored events from its start, then its live events.

    Dialects whose frames depend on all earlier events need this source.
    """

    def __init__(
        self, bus: Bus, many: ManyRunViews, session: Session, turns: ReadScheduler, deliver: Deliver
    ) -> None:
        self.on_failure = ignore_failure
        self._bus = bus
        self._stream = events_of(session.shard)
        self._turn = partial(turns.of, session.owner)
        self._deliver = deliver
        self._live = many.session(session, self._on_live)
        # The live events that wait until all stored events are delivered; None after that.
        self._held: list[Stored] | None = []

    async def start(self) -> int:
        self._live.on_failure = self.on_failure
        live_from = await self._live.start()
        history = History(
            self._bus, self._stream, self._live.patterns, 1, self._live.accepts, self._turn
        )
        while batch := await history.before(live_from):
            self._deliver(batch)
        held, self._held = self._held, None
        if held:
            self._deliver(held)
        return 1

    def patterns(self) -> Collection[str]:
        return self._live.patterns()

    async def accepts(self, stored: Stored) -> bool:
        return await self._live.accepts(stored)

    async def has_cursor(self, stored: Stored) -> bool:
        return await self._live.has_cursor(stored)

    async def prepare(self) -> None:
        """Read the records that `patterns` needs, without beginning to deliver."""
        await self._live.prepare()

    async def stop(self) -> None:
        await self._live.stop()

    def _on_live(self, batch: list[Stored]) -> None:
        if self._held is None:
            self._deliver(batch)
        else:
            self._held += batch
