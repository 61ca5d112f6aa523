"""Makes the views of run trees, in each dialect for clients. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import orjson

from penstock.bus import Stored, subjects
from penstock.dialects.agui.encode import PROFILES
from penstock.dialects.base import Encoder
from penstock.dialects.encoders import CLIENT_DIALECTS
from penstock.events.catalogue import TERMINAL
from penstock_edge.views.agui import UNNAMED, AguiViews, Audience, RunEncoder, RunEncoders, notices
from penstock_edge.views.dialects import finished, rendering
from penstock_edge.views.dialects import notices as notices_of
from penstock_edge.views.encoded_leg import PAUSED, E, LegForm, LookUp, ended, no_notice
from penstock_edge.views.framing import Framing, Sse
from penstock_edge.views.items import Encoding, Item, Render, rendered, type_of
from penstock_edge.views.run_tree import Child
from penstock_edge.views.tree_fold import TreeFold
from penstock_edge.views.view import Deliver, Delivery, ReadFrom, RunTree, Source, View


@dataclass(frozen=True, slots=True)
class TreeLeg:
    """The part of a tree's events that answers one POST: from after the stream sequence `after`,
    whose earlier events change only the encoder's state, unless the stream `replays` them, up to
    the root's next pause that does not wait only for the approvals in `answered`. For `interrupted`
    and `last`, see `LegForm`."""

    after: int
    answered: Collection[str]
    interrupted: Callable[[], list[bytes]]
    last: bytes | None = None
    replays: bool = False
    look_up: LookUp | None = None


@dataclass(slots=True)
class TreeEncoding(Encoding):
    """Encodes the events of a tree: of one leg, or of the whole tree if `leg` is None."""

    tree: TreeFold
    encoder: Encoder
    render: Render
    leg: TreeLeg | None

    def is_ready(self, stored: Stored) -> bool:
        return self.leg is None or self.leg.look_up is None or not self._pauses(stored)

    async def prepare(self, stored: Stored) -> None:
        if self.leg and self.leg.look_up and self._pauses(stored):
            await self.leg.look_up(stored)

    def _pauses(self, stored: Stored) -> bool:
        is_later = self.leg is not None and stored.sequence > self.leg.after
        return is_later and stored.subject == f"{PAUSED}.{self.tree.root}"

    def feed(self, stored: Stored) -> Item:
        leg, run_id = self.leg, subjects.run_id_of(stored.subject)
        if leg is not None and stored.sequence > leg.after:
            self.tree.answered = leg.answered
        shown = self.tree.feed(run_id, orjson.loads(stored.payload))
        frames = [frame for event in shown for frame in self.encoder.feed(event)]
        of_root = run_id == self.tree.root
        last = of_root and type_of(stored) in TERMINAL
        if leg is not None and not last:
            is_earlier = stored.sequence <= leg.after
            if is_earlier and not leg.replays:
                return Item(stored.sequence, [])
            paused = of_root and type_of(stored) == PAUSED and not self.tree.is_pause_hidden
            last = paused and not is_earlier
        if leg is not None and last:
            frames = [*ended(frames, leg.last)]
        return Item(stored.sequence, rendered(frames, stored.sequence, self.render), last)

    def interruption(self) -> list[bytes]:
        return self.leg.interrupted() if self.leg is not None else []


# The dialects of agent protocols, whose clients know only one state (see `TreeFold.one_state`).
AGENT_PROTOCOLS: Final = frozenset({"agno", "adk", *PROFILES})
# The dialects that show a workflow's run with the runs of its steps if the request does not have
# the parameter `include`. `canonical` is not in this set, because it shows the stored events of the
# workflow's run. `raw` is not in this set, because it shows an agent server's bytes, and a workflow
# has no agent server.
BY_DEFAULT: Final = frozenset(
    {"executions", "unified", "vercel", "legacy", "a2a", *AGENT_PROTOCOLS}
)

OpenTree = Callable[[int, Deliver], Source]


@dataclass(frozen=True, slots=True)
class TreeViews:
    """Makes the views of one run tree. `known` is passed to `TreeFold`, and `answered` to
    `TreeLeg`."""

    agui: AguiViews
    root: str
    open: OpenTree
    known: tuple[Child, ...] = ()
    answered: frozenset[str] = frozenset()

    def whole(self, dialect: str, framing: Framing, types: frozenset[str] | None = None) -> View:
        """Take a dialect of `CLIENT_DIALECTS` or `PROFILES`; with `types`, only frames of these."""
        if dialect in PROFILES:
            return self._agui(Audience(PROFILES[dialect]), framing)
        known = CLIENT_DIALECTS[dialect]
        notice = notices_of(dialect, framing, self.root)
        encoder = known.for_workflows or known.encoder
        view = self.encoded(dialect, encoder, framing, notice, types)
        encoding = finished(view.encoding, known, framing)
        return replace(view, encoding=encoding, headers=known.headers)

    def encoded(
        self,
        dialect: str,
        encoder: Callable[[], Encoder],
        framing: Framing,
        notice: Callable[[str, str], bytes],
        types: frozenset[str] | None = None,
    ) -> View:
        render = rendering(framing, types)
        return self.view(
            (dialect, framing.key, *sorted(types or ())),
            dialect,
            lambda: TreeEncoding(self.fold(dialect), encoder(), render, None),
            notice,
            framing,
        )

    def leg(self, form: LegForm[E], after: int, *, replays: bool = False) -> View:
        """Make the view up to the root's next pause after the stream sequence `after`. Frames of
        events up to `after` are written only with `replays`."""

        def encoding() -> TreeEncoding:
            encoder = form.encoder()
            interrupted = partial(form.interrupted, encoder)
            look_up = form.look_up and partial(form.look_up, encoder)
            leg = TreeLeg(after, self.answered, interrupted, form.last, replays, look_up)
            return TreeEncoding(self.fold(form.dialect), encoder, form.render, leg)

        key = (form.dialect, "to leg" if replays else "leg", f"{after}", *form.key)
        view = self.view(key, form.dialect, encoding, no_notice, form.framing, form.delivery)
        return replace(view, headers=form.headers)

    def agui_leg(self, audience: Audience, after: int) -> View:
        name, key = audience.profile.name, (*audience.key, "leg", f"{after}")
        encoding = partial(self._agui_encoding, audience, UNNAMED, after)
        return self.view(key, name, encoding, notices(UNNAMED), UNNAMED, Delivery.ONCE)

    def fold(self, dialect: str) -> TreeFold:
        return TreeFold(self.root, dialect in AGENT_PROTOCOLS, self.known)

    def _agui(self, audience: Audience, framing: Framing) -> View:
        if isinstance(framing, Sse):
            framing = replace(framing, id_first=audience.profile.id_first)

        name, encoding = audience.profile.name, partial(self._agui_encoding, audience, framing)
        return self.view((name, framing.key), name, encoding, notices(framing), framing)

    def _agui_encoding(
        self, audience: Audience, framing: Framing, after: int | None = None
    ) -> AguiTree:
        encoders = self.agui.encoders(audience)
        encoder = RunEncoder(encoders, self.root)
        fold = self.fold(audience.profile.name)
        leg = None if after is None else TreeLeg(after, self.answered, encoder.interrupted)
        return AguiTree(fold, encoder, framing.event, leg, encoders)

    def view(
        self,
        key: tuple[str, ...],
        dialect: str,
        encoding: Callable[[], Encoding],
        notice: Callable[[str, str], bytes],
        framing: Framing,
        delivery: Delivery = Delivery.RESUMABLE,
    ) -> View:
        """Each view of the tree must have a different `key`."""
        known = subjects.key_of(*(child.run_id for child in self.known)) if self.known else ""
        return View(
            (self.root, "tree", known, *sorted(self.answered), *key),
            dialect,
            RunTree(self.root, self.open, self.known),
            encoding,
            notice,
            # The number and the source of each shown event depend on all earlier events of the
            # tree, so the tree is read from its start.
            ReadFrom.START,
            framing,
            delivery,
        )


@dataclass(slots=True)
class AguiTree(TreeEncoding):
    """Encodes the events of a tree for AG-UI clients."""

    encoders: RunEncoders

    def is_ready(self, stored: Stored) -> bool:
        # Two events may begin a leg of the root: the root's `lifecycle.started`, and any event that
        # comes while the tree is paused. The root's encoder needs the AG-UI id of this leg, which
        # `prepare` looks up.
        return self.encoders.has(self.tree.root) and not self._begins_leg(stored)

    async def prepare(self, stored: Stored) -> None:
        root = self.tree.root
        await self.encoders.begin(root)
        if self._begins_leg(stored):
            # All stored events of a workflow's run have the leg 1. So the number of the leg is
            # taken from the fold, which counts the legs.
            await self.encoders.look_up(root, self.tree.leg + self.tree.is_paused)

    def _begins_leg(self, stored: Stored) -> bool:
        return self.tree.is_paused or stored.subject == f"lifecycle.started.{self.tree.root}"
