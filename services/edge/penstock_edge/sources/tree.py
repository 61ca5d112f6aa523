"""Delivers the events of a run tree: first the stored events, then the live events.

The live events come from the feed, which follows the whole stream without gaps. So an event of one
run is delivered at once, and need not wait for events of the tree's other runs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.bus import Bus, Stored, subjects
from penstock.bus.connection.retry import with_retries
from penstock_edge.sources.feed import Feed, Watcher
from penstock_edge.sources.history import history_of_tree
from penstock_edge.sources.run_source import TaskSource
from penstock_edge.views.run_tree import Child, Members
from penstock_edge.views.view import Deliver


class TreeSource(TaskSource, Watcher):
    """Delivers the events of a tree from the stream sequence `start` on, at most the root's first
    stored event: the source would not know the runs that earlier events have added."""

    def __init__(
        self, bus: Bus, feed: Feed, root: str, known: Sequence[Child], start: int, deliver: Deliver
    ) -> None:
        super().__init__()
        self._feed: Feed | None = None
        self._opened = feed
        self._start = start
        self._deliver = deliver
        self._members = Members(root, known)
        self._history = history_of_tree(bus, self._members, start)
        self._next = start

    async def start(self) -> int:
        await self._opened.acquire()
        self._feed = self._opened
        self.begin(self._catch_up())
        return self._start

    def patterns(self) -> Collection[str]:
        return self._members.patterns()

    async def stop(self) -> None:
        feed, self._feed = self._feed, None
        self.cancel()
        if feed is not None:
            for run_id in self._members.runs():
                feed.unwatch(run_id, self)
            feed.release()

    def take(self, stored: Stored) -> None:
        feed = self._feed
        if feed is None or stored.sequence < self._next:
            return
        self._next = stored.sequence + 1
        for run_id in self._members.learn(stored):
            change = feed.watch if run_id in self._members else feed.unwatch
            change(run_id, self)
        self._deliver([stored])

    async def _catch_up(self) -> None:
        feed = self._feed
        assert feed is not None
        await self._read(feed.oldest)
        while True:
            with feed.remember_more():
                live_from = feed.oldest
                await self._read(live_from)
                if feed.oldest <= live_from:
                    self._go_live(feed, live_from)
                    return

    async def _read(self, live_from: int) -> None:
        late = f"the events of the tree of run {self._members.root} cannot be read now"
        while batch := await with_retries(lambda: self._history.before(live_from), late):
            self._next = batch[-1].sequence + 1
            self._deliver(batch)

    def _go_live(self, feed: Feed, live_from: int) -> None:
        """Deliver the events that the feed remembers, and from then on each event of the feed. If
        there were an `await` between these lines, an event could be missed."""
        self._next = max(self._next, live_from)
        for run_id in self._members.runs():
            feed.watch(run_id, self)
        for stored in feed.recent_messages():
            if subjects.run_id_of(stored.subject) in self._members:
                self.take(stored)
