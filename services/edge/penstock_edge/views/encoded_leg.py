"""Encodes one leg of a run in a dialect, for the response to a POST (decision 0318). Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

import orjson

from penstock.bus import Stored
from penstock.dialects.base import Encoder, JsonObject
from penstock.dialects.base import type_of as name_of
from penstock.events.catalogue import TERMINAL
from penstock.sse import Frame
from penstock_edge.views.framing import VERBATIM_SSE, Framing, PageItems
from penstock_edge.views.items import Encoding, Item, Render, rendered, type_of
from penstock_edge.views.view import Delivery, ReadFrom, RunEvents, View

PAUSED = "lifecycle.paused"

E = TypeVar("E", bound=Encoder)
F = TypeVar("F", bound=Encoder)
LookUp = Callable[[Stored], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class LegForm(Generic[E]):
    """How the clients of a dialect read a leg; `key` differs if the frames do. `interrupted`
    returns the frames for a stream that ends before its leg does: its client does not reconnect,
    and without these frames would conclude that the run has succeeded. `last` is the data of a
    frame that follows those of the leg, for example `[DONE]`, and `headers` are further headers of
    the response, with lower-case names. A `delivery` that is RESUMABLE is for a client that knows
    an interrupted stream by its end, and can continue it. `look_up` reads what the frames of the
    leg's pause need and events do not have; it must not raise, because the pause ends the leg."""

    key: tuple[str, ...]
    dialect: str
    encoder: Callable[[], E]
    render: Render
    interrupted: Callable[[E], list[bytes]]
    framing: Framing = VERBATIM_SSE
    last: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delivery: Delivery = Delivery.ONCE
    look_up: Callable[[E, Stored], Awaitable[None]] | None = None

    @staticmethod
    def of_object(
        key: tuple[str, ...],
        dialect: str,
        encoder: Callable[[], F],
        write: Callable[[F], bytes],
        look_up: Callable[[F, Stored], Awaitable[None]] | None = None,
    ) -> LegForm[WholeLeg[F]]:
        """Write one object, made of an encoder that has read the leg, or the leg so far."""
        return LegForm(
            key,
            dialect,
            lambda: WholeLeg(encoder(), write),
            lambda frame, cursor: frame.data,
            lambda whole: [whole.write(whole.encoder)],
            PageItems(),
            look_up=look_up and (lambda whole, paused: look_up(whole.encoder, paused)),
        )

    def of_leg(self, leg: int, *, replays: bool = False) -> EncodedLeg:
        encoder = self.encoder()
        return EncodedLeg(
            encoder,
            leg,
            self.render,
            partial(self.interrupted, encoder),
            last=self.last,
            replays=replays,
            look_up=self.look_up and partial(self.look_up, encoder),
        )

    def view(self, run_id: str, leg: int, *, replays: bool = False) -> View:
        """With `replays`, the legs before this one are written, too."""
        return View(
            (run_id, self.dialect, f"{'to ' if replays else ''}leg {leg}", *self.key),
            self.dialect,
            RunEvents(run_id),
            lambda: self.of_leg(leg, replays=replays),
            no_notice,
            ReadFrom.START,  # the frames of a leg depend on the events before it
            self.framing,
            self.delivery,
            self.headers,
        )


@dataclass(slots=True)
class WholeLeg(Encoder, Generic[F]):
    """Writes one frame when the run pauses or ends; the frames of its encoder are left out."""

    encoder: F
    write: Callable[[F], bytes]

    def feed(self, event: JsonObject) -> Sequence[Frame]:
        self.encoder.feed(event)
        name = name_of(event)
        ends = name in TERMINAL or name == PAUSED
        return [Frame(self.write(self.encoder))] if ends else ()


@dataclass(slots=True)
class EncodedLeg(Encoding):
    """Encodes the canonical events of one leg, up to the leg's pause or the run's end; events of
    earlier legs change only the encoder's state, unless the stream `replays` them. If a policy
    decides an approval at once, the run does not pause, and the stream continues with the next
    leg."""

    encoder: Encoder
    leg: int
    render: Render
    interrupted: Callable[[], list[bytes]]
    last: bytes | None = field(default=None, kw_only=True)
    replays: bool = field(default=False, kw_only=True)
    look_up: LookUp | None = field(default=None, kw_only=True)

    def is_ready(self, stored: Stored) -> bool:
        return self.look_up is None or type_of(stored) != PAUSED

    async def prepare(self, stored: Stored) -> None:
        if not self.is_ready(stored) and self.look_up and _leg_of(stored) >= self.leg:
            await self.look_up(stored)

    def feed(self, stored: Stored) -> Item:
        event = orjson.loads(stored.payload)
        frames, event_type = self.encoder.feed(event), type_of(stored)
        ends_run = event_type in TERMINAL
        # A run may end before this leg begins, so its terminal event is never left out.
        is_earlier = not ends_run and event["leg"] < self.leg
        if is_earlier and not self.replays:
            return Item(stored.sequence, [])
        last = ends_run or (event_type == PAUSED and not is_earlier)
        if last:
            frames = ended(frames, self.last)
        return Item(stored.sequence, rendered(frames, stored.sequence, self.render), last)

    def interruption(self) -> list[bytes]:
        return self.interrupted()


def ended(frames: Sequence[Frame], last: bytes | None) -> Sequence[Frame]:
    return frames if last is None else (*frames, Frame(last))


def _leg_of(stored: Stored) -> int:
    leg: int = orjson.loads(stored.payload)["leg"]
    return leg


def no_notice(code: str, message: str) -> bytes:
    return b""
