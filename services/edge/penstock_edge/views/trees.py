"""Makes the views of run trees, in each dialect for clients. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

import orjson

from penstock.bus import Stored, subjects
from penstock.dialects.agui.encode import PROFILES
from penstock.dialects.base import Encoder
from penstock.dialects.encoders import CLIENT_DIALECTS
from penstock.events.catalogue import TERMINAL
from penstock.sse import Frame
from penstock_edge.views.agui import UNNAMED, AguiViews, Audience, RunEncoder, RunEncoders, notices
from penstock_edge.views.dialects import finished, rendering
from penstock_edge.views.dialects import notices as notices_of
from penstock_edge.views.encoded_leg import E, LegForm, ends_leg, no_notice
from penstock_edge.views.framing import Framing, Sse
from penstock_edge.views.items import Encoding, Item, Render, rendered, type_of
from penstock_edge.views.run_tree import Child
from penstock_edge.views.tree_fold import TreeFold
from penstock_edge.views.view import Deliver, Delivery, ReadFrom, RunTree, Source, View


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

    For `interrupted`, see `LegForm`.
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
    return [
        frame for event in tree.feed(run_id, orjson.loads(payload)) for frame in encoder.feed(event)
    ]


# The dialects of agent protocols, whose clients know only one state (see `TreeFold.one_state`).
AGENT_PROTOCOLS: Final = frozenset({"agno", "adk", *PROFILES})
# The dialects that show a workflow's run with the runs of its steps if the request does not have
# the parameter `include`. `canonical` is not in this set, because it shows the stored events of the
# workflow's run. `raw` is not in this set, because it shows an agent server's bytes, and a workflow
# has no agent server.
BY_DEFAULT: Final = frozenset({"executions", "unified", "legacy", *AGENT_PROTOCOLS})

OpenTree = Callable[[int, Deliver], Source]


@dataclass(frozen=True, slots=True)
class TreeViews:
    """Makes the views of one run tree. `open` makes a source of the tree.

    `known` is passed to `TreeFold`, and `answered` to `TreeLeg`.
    """

    agui: AguiViews
    root: str
    open: OpenTree
    known: tuple[Child, ...] = ()
    answered: frozenset[str] = frozenset()

    def whole(self, dialect: str, framing: Framing, types: frozenset[str] | None = None) -> View:
        """Make the view of the whole tree in a dialect of `CLIENT_DIALECTS` or `PROFILES`.

        If `types` is given, the view has only frames of these types.
        """
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
            lambda: TreeEncoding(self.fold(dialect), encoder(), render),
            notice,
            framing,
        )

    def leg(self, form: LegForm[E], after: int) -> View:
        """Make the view of the tree up to the root's next pause, for the response to a POST.

        Frames of events up to the stream sequence `after` are not written.
        """

        def encoding() -> TreeLeg:
            encoder, fold = form.encoder(), self.fold(form.dialect)
            return TreeLeg(
                fold, encoder, form.render, lambda: form.interrupted(encoder), after, self.answered
            )

        key = (form.dialect, "leg", f"{after}", *form.key)
        return self.view(key, form.dialect, encoding, no_notice, form.framing, Delivery.ONCE)

    def agui_leg(self, audience: Audience, after: int) -> View:
        def encoding() -> AguiTreeLeg:
            encoders = self.agui.encoders(audience)
            encoder = RunEncoder(encoders, self.root)
            fold = self.fold(audience.profile.name)
            render, interrupted = UNNAMED.event, encoder.interrupted
            return AguiTreeLeg(fold, encoder, render, interrupted, after, self.answered, encoders)

        key = (*audience.key, "leg", f"{after}")
        name = audience.profile.name
        return self.view(key, name, encoding, notices(UNNAMED), UNNAMED, Delivery.ONCE)

    def fold(self, dialect: str) -> TreeFold:
        return TreeFold(self.root, dialect in AGENT_PROTOCOLS, self.known)

    def _agui(self, audience: Audience, framing: Framing) -> View:
        if isinstance(framing, Sse):
            framing = replace(framing, id_first=audience.profile.id_first)

        def encoding() -> AguiTree:
            encoders = self.agui.encoders(audience)
            encoder = RunEncoder(encoders, self.root)
            return AguiTree(self.fold(audience.profile.name), encoder, framing.event, encoders)

        name = audience.profile.name
        return self.view((name, framing.key), name, encoding, notices(framing), framing)

    def view(
        self,
        key: tuple[str, ...],
        dialect: str,
        encoding: Callable[[], Encoding],
        notice: Callable[[str, str], bytes],
        framing: Framing,
        delivery: Delivery = Delivery.RESUMABLE,
    ) -> View:
        """Make a view of the tree; each view of the tree must have a different `key`."""
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


def _is_ready(tree: TreeFold, encoders: RunEncoders, stored: Stored) -> bool:
    # Two events may begin a leg of the root: the root's `lifecycle.started`, and any event that
    # comes while the tree is paused. The root's encoder needs the AG-UI id of this leg, which
    # `_prepare` looks up.
    return encoders.has(tree.root) and not tree.is_paused and not _begins(tree, stored)


async def _prepare(tree: TreeFold, encoders: RunEncoders, stored: Stored) -> None:
    await encoders.begin(tree.root)
    if tree.is_paused or _begins(tree, stored):
        # All stored events of a workflow's run have the leg 1. So the number of the leg is taken
        # from the fold, which counts the legs.
        await encoders.look_up(tree.root, tree.leg + tree.is_paused)


def _begins(tree: TreeFold, stored: Stored) -> bool:
    return stored.subject == f"lifecycle.started.{tree.root}"


@dataclass(slots=True)
class AguiTree(TreeEncoding):
    """Encodes the events of a whole tree for AG-UI clients."""

    encoders: RunEncoders

    def is_ready(self, stored: Stored) -> bool:
        return _is_ready(self.tree, self.encoders, stored)

    async def prepare(self, stored: Stored) -> None:
        await _prepare(self.tree, self.encoders, stored)


@dataclass(slots=True)
class AguiTreeLeg(TreeLeg):
    """Encodes the events of a tree up to the root's next pause for AG-UI clients."""

    encoders: RunEncoders

    def is_ready(self, stored: Stored) -> bool:
        return _is_ready(self.tree, self.encoders, stored)

    async def prepare(self, stored: Stored) -> None:
        await _prepare(self.tree, self.encoders, stored)
