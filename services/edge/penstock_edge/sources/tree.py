"""Delivers the events of a run tree: first the stored events, then the live events.

The live events come from the feed, which follows the whole stream without gaps. So when an event is
delivered, all earlier events of the tree have been delivered. Therefore the source delivers an
event of one run at once, and need not wait for events of the tree's other runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from penstock.bus import RETRY_S, Bus, BusError, Stored, subjects
from penstock_edge.sources.feed import Feed, Feeds, Watcher
from penstock_edge.sources.history import history_of_tree
from penstock_edge.sources.run_source import ignore_failure
from penstock_edge.views.run_tree import Child, Members
from penstock_edge.views.view import Deliver, Source

log = logging.getLogger(__name__)


class TreeSource(Source, Watcher):
    """Delivers the events of a tree from the stream sequence `start` on, which must not be after
    the root's first stored event: the source would not know the runs that earlier events have
    added."""

    def __init__(
        self, bus: Bus, feed: Feed, root: str, start: int, deliver: Deliver, known: Sequence[Child]
    ) -> None:
        self.on_failure = ignore_failure
        self._feed: Feed | None = None
        self._opened = feed
        self._start = start
        self._deliver = deliver
        self._members = Members(root, known)
        self._history = history_of_tree(bus, self._members, start)
        self._next = start
        self._catching_up: asyncio.Task[None] | None = None

    async def start(self) -> int:
        await self._opened.acquire()
        self._feed = self._opened
        self._catching_up = asyncio.create_task(self._catch_up())
        self._catching_up.add_done_callback(self._on_caught_up)
        return self._start

    def patterns(self) -> Collection[str]:
        return self._members.patterns()

    async def accepts(self, stored: Stored) -> bool:
        return True

    async def stop(self) -> None:
        feed, self._feed = self._feed, None
        if self._catching_up is not None:
            self._catching_up.cancel()
            # the exception of a failed task refers to this source, and would keep it in memory
            self._catching_up = None
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
        while True:
            try:
                batch = await self._history.before(live_from)
            except BusError as error:
                log.warning(
                    "the events of the tree of run %s cannot be read now; trying again: %s",
                    self._members.root,
                    error,
                )
                await asyncio.sleep(RETRY_S)
                continue
            if not batch:
                return
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

    def _on_caught_up(self, task: asyncio.Task[None]) -> None:
        # If the failure were not reported, clients would wait for ever for further events.
        if not task.cancelled() and (error := task.exception()) is not None:
            self.on_failure(error)


@dataclass(frozen=True, slots=True)
class Trees:
    """Makes the sources of run trees."""

    bus: Bus
    feeds: Feeds

    def source(
        self, root: str, known: Sequence[Child] = ()
    ) -> Callable[[int, Deliver], TreeSource]:
        feed = self.feeds.of(subjects.shard_of(root))
        return partial(self._open, feed, root, known)

    def _open(
        self, feed: Feed, root: str, known: Sequence[Child], start: int, deliver: Deliver
    ) -> TreeSource:
        return TreeSource(self.bus, feed, root, start, deliver, known)
