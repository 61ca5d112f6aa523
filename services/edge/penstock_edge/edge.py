"""What the handlers of every surface work with."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.bus import Bus
from penstock.dialects.agui.encode import PROFILES
from penstock.settings import Config
from penstock.web.read_turns import ReadTurns
from penstock_edge.runs.cancel import Canceller
from penstock_edge.runs.open_runs import OpenRuns
from penstock_edge.runs.start import Starter
from penstock_edge.settings import EdgeSettings
from penstock_edge.sources.allowance import Allowance
from penstock_edge.sources.feed import Feed
from penstock_edge.sources.locate import Place
from penstock_edge.sources.many import Many
from penstock_edge.sources.sessions import Records
from penstock_edge.stream.hubs import Hubs
from penstock_edge.stream.open_streams import OpenStreams
from penstock_edge.stream.response import EventStream
from penstock_edge.surfaces.agui.run_ids import AguiRuns
from penstock_edge.surfaces.agui.views import AguiViews
from penstock_edge.views.dialects import NAMED, View, view
from penstock_edge.views.framing import Form


@dataclass(frozen=True, slots=True)
class Edge:
    """The parts of one edge."""

    bus: Bus
    config: Config
    settings: EdgeSettings
    hubs: Hubs
    starter: Starter
    canceller: Canceller
    many: Many
    agui: AguiViews
    turns: ReadTurns
    open_runs: OpenRuns

    @classmethod
    def of(cls, bus: Bus, config: Config, settings: EdgeSettings) -> Edge:
        """An edge over this bus."""
        canceller = Canceller(bus, settings.cancel_wait_s)
        many = Many(bus, Feed(bus), Records(bus))
        agui = AguiViews(AguiRuns(bus, many.records))
        turns = ReadTurns()
        open_runs = OpenRuns(
            bus, settings.max_open_runs_per_user, settings.max_queued_runs_per_user
        )
        hubs = Hubs(bus, settings, turns)
        return cls(
            bus,
            config,
            settings,
            hubs,
            Starter(bus, open_runs, callers_known=settings.auth.asks),
            canceller,
            many,
            agui,
            turns,
            open_runs,
        )

    @property
    def streams(self) -> OpenStreams:
        """Those of every surface; to be asked before another is opened."""
        return self.hubs.streams

    def allowance(self) -> Allowance:
        """What a page may read."""
        settings = self.settings
        return Allowance(settings.page_events, settings.page_bytes, settings.page_s)

    def view(
        self, run_id: str, dialect: str, form: Form = NAMED, types: frozenset[str] | None = None
    ) -> View:
        """A whole run in one of `DIALECTS`. `types`: only these, where the dialect has types."""
        if dialect in PROFILES:
            return self.agui.of_run(run_id, dialect, form)
        return view(run_id, dialect, form, types)

    async def stream(self, view: View, place: Place) -> EventStream:
        """A client's stream of the view, from that place on. Raises BusError."""
        return EventStream(await self.hubs.join(view, place), ended=place.ended)
