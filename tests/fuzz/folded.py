"""Fold a hostile run, and check the properties that every input must keep."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from fuzz.hostile import Hostile, cut
from fuzz.recorded import PROTOCOLS, recorded
from penstock.bus.messages import RawFrame
from penstock.dialects.decoders import DECODERS
from penstock.events import TERMINAL, is_epilogue, parse, typed_data
from penstock_normalizer.fold.envelope import CanonicalEvent
from penstock_normalizer.fold.run_fold import RunFold
from support.fakes.raw import RUN_ID

RECEIVED = "2026-11-20T10:00:00.000Z"
MAX_FRAME_BYTES = 256 * 1024
MARK = "penstock-was-here"

# An event type that no version of the protocol has. The fold must not drop it. The mark in its text
# is what the check looks for.
UNHEARD_OF: Mapping[str, str] = {
    "agno": 'event: Unheard\ndata: {"event": "Unheard", "told": "%s"}\n\n',
    "adk": 'data: {"author": "a", "told": "%s"}\n\n',
    "agui": 'data: {"type": "UNHEARD_OF", "told": "%s"}\n\n',
}
# The frame for a protocol that UNHEARD_OF does not have.
ANY_FRAME = "event: unheard\ndata: %s\n\n"

_FRAME_END = re.compile(rb"(?<=\n\n)|(?<=\r\r)|(?<=\r\n\r\n)")


@dataclass
class Leg:
    """One upstream response and its ending: `eof`, `lost`, `cancelled` or `none`."""

    body: bytes
    ending: str


@dataclass
class Story:
    """The responses of one run; `answers` is the generator of the decisions at its pauses."""

    protocol: str
    kind: str
    legs: list[Leg]
    answers: random.Random = field(default_factory=random.Random)


def story(rng: random.Random) -> Story:
    """Make a run of any protocol that has a decoder."""
    protocol = rng.choice(sorted(PROTOCOLS))
    make = Hostile(rng, recorded(protocol))
    endings = ("eof", "eof", "eof", "lost", "cancelled", "none")
    legs = [Leg(make.body(), rng.choice(endings)) for _ in range(rng.choice((1, 1, 2, 3)))]
    if rng.random() < 0.3:
        at = rng.randrange(len(legs))
        mark = UNHEARD_OF.get(protocol, ANY_FRAME) % MARK
        legs[at].body += b"\n\n" + mark.encode()
    return Story(protocol, rng.choice(("agent", "team", "workflow")), legs)


class Broken(AssertionError):
    """A property does not hold."""


def fold(story: Story, rng: random.Random, *, whole: bool) -> list[CanonicalEvent]:
    """Return the story's events.

    If `whole`, each body is one message. Otherwise each body is cut into pieces, and the fold
    restarts at each pause.
    """
    run = _Run(story)
    for number, leg in enumerate(story.legs, 1):
        if number > 1:
            if run.fold.approval_id is None:
                break
            run.decide(random.Random(f"{number}"))
            if not whole:
                run.restart()
        run.open(number)
        for piece in [leg.body] if whole else cut(rng, leg.body):
            run.take("bytes", piece)
        if whole:
            run.mark_was_seen(leg)
        if leg.ending != "none":
            kind = "lost" if leg.ending == "lost" else "end"
            facts = {"outcome": leg.ending, "code": "upstream_lost", "error": "cut"}
            run.take(kind, orjson.dumps(facts))
    return run.events


class _Run:
    def __init__(self, story: Story) -> None:
        self.story = story
        self.fold = RunFold(RUN_ID, DECODERS, MAX_FRAME_BYTES)
        self.events: list[CanonicalEvent] = []
        self.sequence = 0
        self.leg = 1

    def take(self, kind: str, payload: bytes, writer: str = "upstream") -> None:
        self.sequence += 1
        frame = RawFrame(
            *(RUN_ID, writer, self.sequence, kind, self.leg, f"pod/{self.leg}", RECEIVED, payload)
        )
        self.events += self.fold.feed(frame)
        if self.fold.error is not None:
            raise Broken("the decoder raised") from self.fold.error

    def open(self, leg: int) -> None:
        facts: dict[str, Any] = {
            "agent": "assistant",
            "protocol": self.story.protocol,
            "kind": self.story.kind,
            "session_id": "s-1",
            "client_tools": ["frontend_tool"],
        }
        self.leg = leg
        if leg > 1:
            facts["items"] = self.decided
        self.take("open", orjson.dumps(facts))

    def decide(self, rng: random.Random) -> None:
        """Decide each requested item as people may: with any answer."""
        asked = next(e for e in reversed(self.events) if e.type == "approval.requested").data
        self.take(
            "event",
            orjson.dumps(
                {
                    "type": "lifecycle.paused",
                    "data": {"reason": "approval_required", "approval_id": asked["approval_id"]},
                }
            ),
            "approvals",
        )
        self.decided = [
            {
                "item_id": item["item_id"],
                "decision": rng.choice(("approve", "reject")),
                "value": rng.choice((None, "yes", {"a": 1}, [1])),
            }
            for item in asked["items"]
        ]

    def restart(self) -> None:
        """Continue in a new fold from the state that is stored at the pause."""
        kept = orjson.loads(orjson.dumps(self.fold.snapshot()))
        self.fold = RunFold(RUN_ID, DECODERS, MAX_FRAME_BYTES)
        self.fold.restore(kept)

    def mark_was_seen(self, leg: Leg) -> None:
        """Raise if the unknown event was dropped, unless the run or the leg had ended before it."""
        if MARK.encode() not in leg.body[-200:] or self.fold.ended or self.fold._pause:
            return
        if not any(MARK.encode() in event.body for event in self.events):
            raise Broken("an unknown event was lost in silence")


def check(events: list[CanonicalEvent]) -> list[dict[str, Any]]:
    """Check that the events have one order and one end and match the contract.

    Returns the envelopes.
    """
    bodies = []
    for number, placed in enumerate(events, 1):
        body = orjson.loads(placed.body)
        event = parse(body)
        typed_data(event.type, event.data)
        if event.type != placed.type or (event.sequence, placed.sequence) != (number, number):
            raise Broken(f"event {number} is {event.type} with number {event.sequence}")
        if orjson.loads(event.dump()) != body:
            raise Broken(f"{event.type} does not survive a round trip")
        bodies.append(body)
    ends = [at for at, placed in enumerate(events) if placed.type in TERMINAL]
    if len(ends) > 1:
        raise Broken("two ends")
    if ends and not all(is_epilogue(placed.type) for placed in events[ends[0] + 1 :]):
        raise Broken("something after the end")
    return bodies


def frames_of(body: bytes) -> list[bytes]:
    """Return the body in pieces that each end where a frame may end."""
    return [piece for piece in _FRAME_END.split(body) if piece]
