"""A session's events from its first on, for those whose frames depend on all that came before."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from penstock.bus import Bus, Stored
from penstock.bus.streams import EVENTS
from penstock.web.read_turns import ReadTurns
from penstock_edge.sources.history import Past
from penstock_edge.sources.many import Many
from penstock_edge.sources.sessions import Session
from penstock_edge.views.run_source import Deliver, Source


class WholeSession(Source):
    """Delivers the past, then what follows."""

    def __init__(
        self, bus: Bus, many: Many, session: Session, turns: ReadTurns, deliver: Deliver
    ) -> None:
        self._bus = bus
        self._turn = partial(turns.of, session.owner)
        self._deliver = deliver
        self._live = many.session(session, self._on_live)
        self._held: list[Stored] | None = []  # until the past is delivered

    async def start(self) -> int:
        """Begin to deliver. Raises BusError when it cannot."""
        floor = await self._live.start()
        past = Past(self._bus, EVENTS, self._live.patterns, 1, self._live.keep, self._turn)
        while batch := await past.below(floor):
            self._deliver(batch)
        held, self._held = self._held, None
        if held:
            self._deliver(held)
        return 1

    def patterns(self) -> Collection[str]:
        """The runs that are known by now."""
        return self._live.patterns()

    async def keep(self, stored: Stored) -> bool:
        """Whether the message's run is one of the session's."""
        return await self._live.keep(stored)

    async def prepare(self) -> None:
        """Find out what the patterns are, without beginning. Raises BusError."""
        await self._live.prepare()

    async def stop(self) -> None:
        """Deliver nothing more."""
        await self._live.stop()

    def _on_live(self, batch: list[Stored]) -> None:
        if self._held is None:
            self._deliver(batch)
        else:
            self._held += batch
