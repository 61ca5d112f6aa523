"""Makes readers of the stored messages of a view."""

from __future__ import annotations

import sys
from contextlib import nullcontext

from penstock.bus import Bus
from penstock.bus.streams import events_for
from penstock.web.read_scheduler import Turn
from penstock_edge.sources.history import History
from penstock_edge.views.run_tree import Members
from penstock_edge.views.view import RunTree, Source, View


def history_of(
    bus: Bus, view: View, source: Source | None, start: int, turn: Turn = nullcontext
) -> History:
    """Return a reader of the view's stored messages from the stream sequence `start` on.

    `source` selects the messages of a view over many runs, and need not be started. For a run tree,
    `start` must be the sequence of the root's first event: only the events before a position show
    which runs belong to the tree at this position.
    """
    if isinstance(view.reads, RunTree):
        members = Members(view.reads.run_id, view.reads.known)
        return history_of_tree(bus, members, start, turn)
    stream, pattern = view.followed.stream, view.followed.pattern
    if source is None:
        return History(bus, stream, lambda: (pattern,), start, turn=turn)
    return History(bus, stream, source.patterns, start, source.accepts, turn)


async def newest_sequence_of(bus: Bus, view: View, start: int) -> int:
    """Return the sequence of the view's newest stored message; 0 if there is none. Read all of
    them."""
    history, newest = history_of(bus, view, None, start), 0
    while batch := await history.before(sys.maxsize):
        newest = batch[-1].sequence
    return newest


def history_of_tree(bus: Bus, members: Members, start: int, turn: Turn = nullcontext) -> History:
    """Return a reader of the stored events of a tree; the reader updates `members` as it reads."""
    stream = events_for(members.root)
    return History(bus, stream, members.patterns, start, turn=turn, learn=members.learn)
