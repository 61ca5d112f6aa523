"""The fold of a run: its source frames in RAW's order to its canonical events. Pure.

Deterministic: the same frames give the same events, numbers and times included, so that a run can
be rebuilt by replay at any time and by anybody. Decides what no decoder can: the sequence, the one
terminal event, what may follow it, when a run is paused and resumed, and the approval's identity.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from penstock.bus.messages import RawFrame
from penstock.dialects.base import (
    AgentFacts,
    Decoder,
    Draft,
    JsonObject,
    Pause,
    PauseItem,
    Source,
)
from penstock.events import TERMINAL, is_epilogue
from penstock.sse import MAX_FRAME_BYTES, FrameTooLarge, Parser
from penstock_normalizer.fold.failure_texts import cleaned

log = logging.getLogger(__name__)

DecoderFor = Mapping[str, Callable[[AgentFacts], Decoder]]

_SLICE_BYTES = 64 * 1024  # of a body, parsed at a time

# of ids made from a run's id and leg, so that every fold makes the same
APPROVAL_NAMESPACE = uuid.UUID("6f9d1c1e-5b5b-5d38-9c52-3f3a8c7e1a10")


@dataclass(slots=True)
class Placed:
    """A canonical event in its place. `body` is the whole envelope as JSON."""

    type: str
    sequence: int
    timestamp: str
    data: JsonObject
    body: bytes
    whole: JsonObject | None = None  # `data` before credentials and addresses were taken out


@dataclass(slots=True)
class RunFold:
    """One run. `feed` takes its source frames in order and gives the events that they make."""

    run_id: str
    decoders: DecoderFor
    max_frame_bytes: int = MAX_FRAME_BYTES
    sequence: int = 0
    raw_sequence: int = 0  # of the last frame fed
    raw_first: int = 0  # of the first frame
    timestamp: str = ""
    leg: int = 0
    attempt: int = 1  # at what the leg produces
    facts: JsonObject = field(default_factory=dict)  # the payload of the first `open`
    ended: str | None = None  # the terminal event's type
    decided: bool = False  # approval.decided was said about it
    paused: bool = False  # lifecycle.paused was said, and resumed not yet
    approval_id: str | None = None  # the request that the run waits for
    resume: JsonObject | None = None  # what the upstream needs to go on
    error: Exception | None = None  # what the last frame raised, if it did
    broken_off: bool = False  # frames are missing: the rest says nothing
    _early: list[RawFrame] = field(default_factory=list)  # events before lifecycle.started
    _decoder: Decoder | None = None
    _parser: Parser | None = None
    _connection: str = ""
    _pause: Pause | None = None  # held until the leg has closed
    _parts: list[bytes] = field(default_factory=list)

    def feed(self, frame: RawFrame) -> list[Placed]:
        """The events that this frame makes, most often one; none for one that was fed before."""
        return list(self.events(frame))

    def events(self, frame: RawFrame) -> Iterator[Placed]:
        """The same one by one: a frame of tiny events makes a hundred times its bytes."""
        self.error = None
        if frame.sequence <= self.raw_sequence or self.broken_off:
            return
        self.raw_sequence = frame.sequence
        self.raw_first = self.raw_first or frame.sequence
        self.timestamp = max(self.timestamp, frame.received)
        handler = _KINDS.get(frame.kind)
        if handler is None:
            log.warning("run %s: unknown source frame %s", self.run_id, frame.kind)
            return
        drafts = self._until_end(handler(self, frame))
        while (placed := self._next(drafts)) is not None:
            yield placed
        if self.error is not None:
            text = f"the frame cannot be read: {self.error!r}"
            yield from map(
                self._place, self._until_end([self._failed(code="internal", error=text)])
            )

    def _next(self, drafts: Iterator[Draft]) -> Placed | None:
        try:
            draft = next(drafts, None)
        except Exception as error:  # a decoder must not raise: one that does ends its run only
            self.error = error
            return None
        return self._place(draft) if draft is not None else None

    # kinds of source frames

    def _on_open(self, frame: RawFrame) -> Iterable[Draft]:
        opened: JsonObject = orjson.loads(frame.payload)
        if frame.leg == 1 and not self.leg:
            self.leg = 1
            self.facts = opened
            yield self._started()
            self._begin(frame)
            yield from self._decoded(self._the_decoder().open(1))
            early, self._early = self._early, []
            for event in early:
                yield from self._on_event(event)
        elif frame.leg == self.leg + 1 and self.approval_id:
            self.leg = frame.leg
            approval_id, self.approval_id = self.approval_id, None
            self.resume = None
            self.decided = False
            if self.paused:
                self.paused = False
                yield Draft("lifecycle.resumed", {"approval_id": approval_id})
            self._begin(frame)
            decoder = self._the_decoder()
            yield from self._decoded(decoder.open(frame.leg))
            items = {item["item_id"]: item for item in opened.get("items", ())}
            yield from self._decoded(decoder.decided(items))

    def _on_claim(self, frame: RawFrame) -> Iterable[Draft]:
        """A connector goes on with the leg; what it has produced anew is another attempt."""
        attempt = orjson.loads(frame.payload).get("attempt", 1)
        if frame.leg != self.leg or self._parser is None or attempt <= self.attempt:
            return
        yield from self._decoded(self._the_decoder().abort())
        text = "the upstream was cut off; what it had begun to say is said again"
        yield Draft("system.warning", {"message": text, "code": "produced_again"})
        self.attempt = attempt

    def _on_bytes(self, frame: RawFrame) -> Iterable[Draft]:
        if frame.leg != self.leg or self._parser is None:
            return
        if frame.connection != self._connection:
            self._begin(frame)  # attached again: another response begins
        decoder = self._the_decoder()
        for start in range(0, len(frame.payload), _SLICE_BYTES):
            try:
                frames = self._parser.feed(frame.payload[start : start + _SLICE_BYTES])
                too_large = None
            except FrameTooLarge as error:
                frames, too_large = error.frames, error
            for parsed in frames:
                yield from self._decoded(decoder.feed(parsed))
            if too_large is not None:
                self._parser = None
                yield from self._decoded(decoder.abort())
                yield self._failed(code="limit", error=f"the upstream sent too much: {too_large}")
                return

    def _on_part(self, frame: RawFrame) -> Iterable[Draft]:
        assert frame.part is not None
        number, count = frame.part
        if number == 1:
            self._parts.clear()
        self._parts.append(frame.payload)
        if number == count:
            frame.payload = b"".join(self._parts)
            self._parts.clear()
            yield from _KINDS[frame.whole](self, frame)

    def _on_end(self, frame: RawFrame) -> Iterable[Draft]:
        if frame.leg != self.leg or self._parser is None:
            return
        outcome: JsonObject = orjson.loads(frame.payload or b"{}")
        decoder = self._the_decoder()
        half_a_frame = not self._parser.at_boundary
        self._parser = None
        if outcome.get("outcome") == "cancelled":
            yield from self._decoded(decoder.abort())
            yield Draft(
                "lifecycle.cancelled",
                _present(
                    reason=outcome.get("reason", "user_stop"),
                    by=outcome.get("by"),
                    confirmed=outcome.get("confirmed", True),
                ),
            )
        elif half_a_frame and self._pause is None:
            yield from self._decoded(decoder.abort())
            yield self._failed(
                code="upstream_lost", error="the upstream's stream ended in the middle of a frame"
            )
        elif self._pause is None:
            yield from self._decoded(decoder.end())
        yield from self._request_approval()
        self.attempt = 1

    def _on_lost(self, frame: RawFrame) -> Iterable[Draft]:
        if frame.leg != self.leg:
            return
        self._parser = None
        if self._pause is not None:
            # the upstream had said all that it had to: it waits
            yield from self._request_approval()
            self.attempt = 1
            return
        lost: JsonObject = orjson.loads(frame.payload)
        yield from self._decoded(self._the_decoder().abort())
        yield self._failed(**lost)

    def _on_event(self, frame: RawFrame) -> Iterable[Draft]:
        if not self.leg:
            self._early.append(frame)  # lifecycle.started is always first
            return
        event: JsonObject = orjson.loads(frame.payload)
        type_, data = event["type"], event.get("data", {})
        allowed = _SOURCE_EVENTS.get(type_)
        if allowed is None or not allowed(self, data):
            log.info("run %s: %s by %s has no place", self.run_id, type_, frame.writer)
            return
        if type_ == "lifecycle.paused":
            self.paused = True
        if type_ == "approval.decided":
            self.decided = True
        if type_ in TERMINAL and self._decoder is not None:
            yield from self._decoded(self._decoder.abort())
        yield Draft(type_, data, event.get("source"))

    # the run's own state

    def _begin(self, frame: RawFrame) -> None:
        self._connection = frame.connection
        self._parser = Parser(self.max_frame_bytes)

    def _the_decoder(self) -> Decoder:
        if self._decoder is None:
            facts = AgentFacts(
                id=self.facts["agent"],
                name=self.facts.get("agent_name"),
                kind=self.facts.get("kind", "agent"),
                drop=frozenset(self.facts.get("drop", ())),
                client_tools=frozenset(self.facts.get("client_tools", ())),
            )
            self._decoder = self.decoders[self.facts["protocol"]](facts)
        return self._decoder

    def _decoded(self, drafts: Iterable[Draft | Pause]) -> Iterable[Draft]:
        for draft in drafts:
            if isinstance(draft, Pause):
                self._pause = draft
            elif draft.type == "lifecycle.resumed":
                if self.paused:
                    self.paused = False
                    yield draft
            else:
                yield draft

    def _request_approval(self) -> Iterable[Draft]:
        pause, self._pause = self._pause, None
        if pause is None or self.ended:
            return
        self.approval_id = str(uuid.uuid5(APPROVAL_NAMESPACE, f"{self.run_id}/{self.leg}"))
        self.resume = pause.resume
        items = [_item(item) for item in pause.items]
        yield Draft(
            "approval.requested",
            {
                "approval_id": self.approval_id,
                "digest": _digest([item["digest"] for item in items]),
                "deciders_required": 1,
                "items": items,
            },
            pause.source,
        )

    def _failed(self, **facts: Any) -> Draft:
        source: Source | None = None
        if self.facts:
            source = {
                "agent_id": self.facts["agent"],
                "agent_type": self.facts.get("kind", "agent"),
                "agent_name": self.facts.get("agent_name") or self.facts["agent"],
                "team_name": None,
            }
        return Draft("lifecycle.failed", _present(**facts), source)

    def _until_end(self, drafts: Iterable[Draft]) -> Iterator[Draft]:
        for draft in drafts:
            if not self.ended:
                if draft.type in TERMINAL:
                    self.ended = draft.type
                    self.approval_id = self.resume = None
                yield draft
            elif is_epilogue(draft.type):
                yield draft

    def _place(self, draft: Draft) -> Placed:
        self.sequence += 1
        data = cleaned(draft.type, draft.data, self.facts.get("hosts", ()))
        category, _, action = draft.type.partition(".")
        body: JsonObject = {
            "run_id": self.run_id,
            "timestamp": self.timestamp,
            "sequence": self.sequence,
            "source": draft.source,
            "event": {"category": category, "action": action},
            "data": data,
            "session_id": self.facts.get("session_id", ""),
            "leg": self.leg,
        }
        if self.attempt > 1:
            body["attempt"] = self.attempt
        if "parent_run_id" in self.facts:
            body["parent_run_id"] = self.facts["parent_run_id"]
        if draft.step_id is not None:
            body["step_id"] = draft.step_id
        if draft.subrun is not None:
            body["subrun"] = draft.subrun
        try:
            encoded = orjson.dumps(body)
        except orjson.JSONEncodeError as error:  # nested too deep, or a number out of range
            unwritable = {"message": f"{draft.type} cannot be written: {error}", "code": "internal"}
            return self._place_instead(draft, unwritable)
        if thread_id := self.facts.get("thread_id"):
            # clients know the session by their own id, not by what its server calls it
            encoded = encoded.replace(thread_id.encode(), _inner(self.facts["session_id"]))
        whole = None if data is draft.data else draft.data
        return Placed(draft.type, self.sequence, self.timestamp, data, encoded, whole)

    def _place_instead(self, draft: Draft, data: JsonObject) -> Placed:
        self.sequence -= 1
        if draft.type in TERMINAL:
            self.ended = "lifecycle.failed"
            return self._place(self._failed(error=data["message"], code=data["code"]))
        return self._place(Draft("system.error", data))

    # when frames are missing

    def break_off(self, frame: RawFrame, facts: JsonObject, code: str, error: str) -> list[Placed]:
        """End the run before `frame`, since nobody can go on with it. Facts as of `open`."""
        self.broken_off = True
        self.facts = self.facts or facts
        self.raw_first = self.raw_first or frame.sequence
        self.timestamp = max(self.timestamp, frame.received)
        self.leg = self.leg or frame.leg
        drafts = [self._failed(code=code, error=error)]
        if not self.sequence:
            drafts.insert(0, self._started())
        return [self._place(draft) for draft in self._until_end(drafts)]

    def _started(self) -> Draft:
        return Draft(
            "lifecycle.started",
            _present(
                agent=self.facts["agent"],
                user_id=self.facts.get("user_id", "anonymous"),
                message=self.facts.get("message"),
                idempotency_key=self.facts.get("idempotency_key"),
            ),
        )

    # what outlives the events of a long pause

    def snapshot(self) -> JsonObject:
        """The state between two legs, as JSON."""
        assert self._decoder is not None
        return {
            **{name: getattr(self, name) for name in _KEPT},
            "decoder": self._decoder.snapshot(),
        }

    def restore(self, state: JsonObject) -> None:
        """Go on from a snapshot."""
        for name in _KEPT:
            setattr(self, name, state[name])
        self._the_decoder().restore(state["decoder"])


_KEPT = (
    "sequence",
    "raw_sequence",
    "raw_first",
    "timestamp",
    "leg",
    "facts",
    "ended",
    "paused",
    "decided",
    "approval_id",
    "resume",
)

_KINDS: Mapping[str, Callable[[RunFold, RawFrame], Iterable[Draft]]] = {
    "open": RunFold._on_open,
    "claim": RunFold._on_claim,
    "bytes": RunFold._on_bytes,
    "part": RunFold._on_part,
    "end": RunFold._on_end,
    "lost": RunFold._on_lost,
    "event": RunFold._on_event,
}


def _awaited(fold: RunFold, data: JsonObject) -> bool:
    return fold.approval_id is not None and data.get("approval_id") == fold.approval_id


def _any_time(fold: RunFold, data: JsonObject) -> bool:
    return True


# What services may say about a run, and when: everything else comes from the upstream.
_SOURCE_EVENTS: Mapping[str, Callable[[RunFold, JsonObject], bool]] = {
    "lifecycle.paused": lambda fold, data: _awaited(fold, data) and not fold.paused,
    "lifecycle.cancelled": _any_time,
    "lifecycle.failed": _any_time,
    "approval.decided": lambda fold, data: _awaited(fold, data) and not fold.decided,
    "approval.expired": _awaited,
    "approval.withdrawn": _any_time,
    "automation.triggered": _any_time,
    "automation.completed": _any_time,
    "automation.failed": _any_time,
    "system.warning": _any_time,
}


def _present(**fields: Any) -> JsonObject:
    return {name: value for name, value in fields.items() if value is not None}


def _item(item: PauseItem) -> JsonObject:
    fields = {name: value for name, value in asdict(item).items() if value is not None}
    asked = {name: fields.get(name) for name in ("item_id", "kind", "tool", "args", "description")}
    return {**fields, "digest": _digest(asked)}


def _inner(text: str) -> bytes:
    """A text as it stands within JSON's quotes."""
    return orjson.dumps(text)[1:-1]


def _digest(value: Any) -> str:
    canonical = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    return "sha256:" + hashlib.sha256(canonical).hexdigest()
