"""Encodes the events of a run tree in a dialect: the whole tree, or one leg of its root. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import orjson

from penstock.bus import Stored, subjects
from penstock.dialects.base import Encoder
from penstock.events.catalogue import TERMINAL
from penstock.sse import Frame
from penstock_edge.views.encoded_leg import ends_leg
from penstock_edge.views.items import Encoding, Item, Render, rendered, type_of
from penstock_edge.views.tree_fold import TreeFold


@dataclass(slots=True)
class TreeEncoding(Encoding):
    """Encodes the events of a whole tree, up to the root's terminal event."""

    tree: TreeFold
    encoder: Encoder
    render: Render

    def feed(self, stored: Stored) -> Item:
        run_id = subjects.run_id_of(stored.subject)
        frames = folded(self.tree, self.encoder, run_id, stored.payload)
        written = rendered(frames, stored.sequence, self.render)
        is_last = run_id == self.tree.root and type_of(stored) in TERMINAL
        return Item(stored.sequence, written, is_last)

    def interruption(self) -> list[bytes]:
        return []


@dataclass(slots=True)
class TreeLeg(Encoding):
    """Encodes the events of a tree up to the root's next pause or its terminal event.

    Events up to the stream sequence `after` change only the encoder's state; their frames are not
    written. After these events, a pause that waits only for the approvals in `answered` does not
    end the leg.

    `interrupted` returns the frames for a stream that ends before its leg does. The clients of such
    streams do not reconnect. If these frames were missing, a client would conclude that the run has
    succeeded.
    """

    tree: TreeFold
    encoder: Encoder
    render: Render
    interrupted: Callable[[], list[bytes]]
    after: int
    answered: Collection[str]

    def feed(self, stored: Stored) -> Item:
        run_id = subjects.run_id_of(stored.subject)
        if stored.sequence > self.after:
            self.tree.answered = self.answered
        frames = folded(self.tree, self.encoder, run_id, stored.payload)
        of_root = run_id == self.tree.root
        if stored.sequence <= self.after and not (of_root and type_of(stored) in TERMINAL):
            return Item(stored.sequence, [])
        body = rendered(frames, stored.sequence, self.render)
        last = of_root and ends_leg(stored) and not self.tree.is_pause_hidden
        return Item(stored.sequence, body, last=last)

    def interruption(self) -> list[bytes]:
        return self.interrupted()


def folded(tree: TreeFold, encoder: Encoder, run_id: str, payload: bytes) -> list[Frame]:
    """Fold one event into the tree; return the frames of the events that the tree then shows."""
    return [
        frame for event in tree.feed(run_id, orjson.loads(payload)) for frame in encoder.feed(event)
    ]
