"""Makes the parts of one edge, such as its hubs. The handlers of all surfaces share these parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.bus import Bus
from penstock.bus.subjects import shard_of
from penstock.dialects.agui.encode import PROFILES
from penstock.runs.start import Starter
from penstock.settings import Config
from penstock.web.auth import Identity
from penstock.web.read_scheduler import ReadScheduler
from penstock_edge.runs.agui_leg_ids import AguiLegIds
from penstock_edge.runs.cancel import Canceller
from penstock_edge.runs.when_busy import BusySessions
from penstock_edge.settings import EdgeSettings
from penstock_edge.sources.cost_list import CostList, Costs
from penstock_edge.sources.feed import Feeds
from penstock_edge.sources.locate import StartPosition
from penstock_edge.sources.many_runs import ManyRunViews
from penstock_edge.sources.read_run import Allowance
from penstock_edge.sources.run_list import RunList
from penstock_edge.sources.session_list import SessionList
from penstock_edge.sources.sessions import RunRecords
from penstock_edge.sources.tree import TreeSource
from penstock_edge.stream.hubs import Hubs
from penstock_edge.stream.open_streams import OpenStreams
from penstock_edge.stream.responses.event_stream import EventStream
from penstock_edge.stream.saved_cursors import SavedCursors
from penstock_edge.views.agui import AguiViews
from penstock_edge.views.dialects import run_view
from penstock_edge.views.framing import NAMED_SSE, Framing
from penstock_edge.views.run_tree import Child
from penstock_edge.views.trees import TreeViews
from penstock_edge.views.view import View


@dataclass(frozen=True, slots=True)
class Edge:
    """The parts of one edge, such as its hubs, views and limits."""

    bus: Bus
    config: Config
    settings: EdgeSettings
    hubs: Hubs
    starter: Starter
    canceller: Canceller
    many: ManyRunViews
    agui: AguiViews
    agui_leg_ids: AguiLegIds
    turns: ReadScheduler
    run_list: RunList
    session_list: SessionList
    cost_list: CostList
    cursors: SavedCursors

    @classmethod
    def of(cls, bus: Bus, config: Config, settings: EdgeSettings) -> Edge:
        run_list = RunList(bus)
        withheld, index = run_list.rows.withheld, run_list.index
        records = RunRecords(bus, withheld, lambda: index.is_complete)
        many = ManyRunViews(bus, Feeds(bus), records)
        names = AguiLegIds(bus, many.records)
        turns = ReadScheduler()
        return cls(
            bus,
            config,
            settings,
            hubs=Hubs(bus, settings, turns),
            starter=Starter(bus, config, settings, BusySessions(bus, run_list)),
            canceller=Canceller(bus, settings.cancel_wait_s),
            many=many,
            agui=AguiViews(names),
            agui_leg_ids=names,
            turns=turns,
            run_list=run_list,
            session_list=SessionList(bus, run_list),
            cost_list=CostList(bus),
            cursors=SavedCursors(bus, settings.cursor_settle_s),
        )

    @property
    def streams(self) -> OpenStreams:
        return self.hubs.streams

    def withhold(self, run_id: str, sequence: int) -> None:
        """Drop what this process has in memory of a run whose content is being erased. `sequence`
        is the number of its event `system.erased`."""
        self.run_list.rows.withheld[run_id] = sequence
        self.many.feeds.forget_run(run_id)
        self.hubs.on_erased(run_id)

    def forget_events(self) -> None:
        """Drop all events in memory that replays can read again. This process may have missed an
        erasure while it had no connection."""
        self.many.feeds.forget_all()
        self.hubs.empty_rings()

    def usage_of(self, run_ids: Sequence[str]) -> list[dict[str, Any]]:
        # A run that used nothing has no `usage`. Only a run whose children used something has
        # `usage_with_children`.
        below = {run_id: self.run_list.rows.below(run_id) for run_id in run_ids}
        every = dict.fromkeys((*run_ids, *(child for found in below.values() for child in found)))
        costs = self.cost_list.rows.of_runs([*every])
        return [_usage(run_id, below[run_id], costs) for run_id in run_ids]

    def allowance(self) -> Allowance:
        settings = self.settings
        return Allowance(settings.page_events, settings.page_bytes, settings.page_s)

    def view(
        self,
        run_id: str,
        dialect: str,
        framing: Framing = NAMED_SSE,
        types: frozenset[str] | None = None,
        *,
        children: bool = False,
    ) -> View:
        """Return the view of a whole run. With `types`, it has only frames of these types; with
        `children`, also the events of the runs that a workflow's steps have started."""
        if children:
            return self.tree(run_id).whole(dialect, framing, types)
        if dialect in PROFILES:
            return self.agui.of_run(run_id, dialect, framing)
        return run_view(run_id, dialect, framing, types)

    def tree(
        self, root: str, known: tuple[Child, ...] = (), answered: Iterable[str] = ()
    ) -> TreeViews:
        """`known` are runs below the root whose event `workflow.step_started` may have expired.
        `answered` are the approvals that a client has just decided in order to read the next leg: a
        pause that waits only for these does not end the view of the leg."""
        feed = self.many.feeds.of(shard_of(root))
        source = partial(TreeSource, self.bus, feed, root, known)
        return TreeViews(self.agui, root, source, known, frozenset(answered))

    async def stream(self, view: View, start: StartPosition, who: Identity) -> EventStream:
        return EventStream(await self.hubs.join(view, start, who), ended=start.ended)


def _usage(run_id: str, below: Iterable[str], costs: Mapping[str, Costs]) -> dict[str, Any]:
    fields = {"usage": costs[run_id].shown()} if run_id in costs else {}
    children = [costs[child] for child in below if child in costs]
    if children:
        whole = Costs()
        for each in (costs.get(run_id, Costs()), *children):
            whole.merge(each)
        fields["usage_with_children"] = whole.shown()
    return fields
