"""Folds a run's source frames, in the order of RAW, into the run's canonical events. Pure.

The fold is deterministic: the same frames, and the same findings of a checker, give the same events
with the same numbers and times. So any normalizer can rebuild a run at any time by folding the
run's frames again. Only the `cost` of an `llm.usage` may differ, if prices have changed; an event
that is published keeps its own.

A decoder reads the responses of one agent server. The fold decides everything that depends on the
whole run:
- the numbers of the events;
- the one terminal event, and the events that may follow the terminal event;
- when the run waits for an approval, when the run resumes, and the approval's id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeAlias

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
from penstock.dialects.usage import TOOL_RESULT, USAGE
from penstock.dialects.workflow import PROTOCOL, WRITER
from penstock.events import TERMINAL, is_epilogue
from penstock.sse import MAX_FRAME_BYTES, FrameTooLarge, Parser
from penstock_normalizer.fold.approval_request import (
    PendingApproval,
    approval_requested,
    budget_pause,
    pending_approval,
    review_pause,
)
from penstock_normalizer.fold.checking import UNCHECKED
from penstock_normalizer.fold.envelope import CanonicalEvent, NotEncodable, canonical_event
from penstock_normalizer.fold.redacting import Asked, RunRedactions
from penstock_normalizer.fold.service_events import is_allowed, is_of_workflow

log = logging.getLogger(__name__)

# Returns the `cost` of a call, or None if its price is not known: from the type and the data of its
# `llm.usage` or `llm.tool_result`, the payload of the run's first `open`, the earliest time at
# which it can have begun, and the time of its end.
CostOf = Callable[[str, JsonObject, JsonObject, str, str], JsonObject | None]

# maps a protocol to the function that makes its decoder
DecoderFor = Mapping[str, Callable[[AgentFacts], Decoder]]

# What a handler makes of a frame, before redactions, and the fold after them.
Step: TypeAlias = "Draft | Asked | Released"
Folded: TypeAlias = CanonicalEvent | Asked

BLOCKED = "blocked"  # why a redaction has ended a run
_CALLS = frozenset({USAGE, TOOL_RESULT})
# How much may wait for a decision. A run with more is stopped, since this is in memory, and then in
# the record of the pause.
MAX_UNRELEASED_BYTES = 8 * 1024 * 1024
_SLICE_BYTES = 64 * 1024  # the size in bytes of the slices in which a body is parsed


def no_cost(*_: object) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Released:
    """A draft that was held back; the redactions were applied to it then."""

    draft: Draft


@dataclass(slots=True)
class _Response:
    """The agent server's response that the fold is reading."""

    connection: str
    parser: Parser


@dataclass(slots=True)
class RunFold:
    """The fold of one run; `feed` takes the source frames in order, and returns their events.

    The state of a run:
    - `leg` is 0: the run has not started. Events from services wait in `_early`.
    - `_response` is set: the agent server's response of this leg is being read.
    - `_pause` is set: the agent server has paused, and its response has not ended yet.
    - `pending` is set: the leg is over, and the run waits for a decision about this approval.
    - `_reviewed` is not empty: redactions have found what people decide about. All events from
      there on are in `_unreleased`; when the leg is over, people are asked.
    - `ended` is set: the terminal event was made; only an epilogue may follow.
    - `broken_off` is True: frames are missing, and no further frame makes an event.

    A workflow's run has no responses. A workflow's run may wait for several approvals at once, so
    `pending` is never set.
    """

    run_id: str
    decoders: DecoderFor
    max_frame_bytes: int = MAX_FRAME_BYTES
    cost_of: CostOf = no_cost
    sequence: int = 0  # the sequence number of the last event
    raw_sequence: int = 0  # the position in RAW of the last frame that was fed
    raw_first: int = 0  # the position in RAW of the run's first frame
    timestamp: str = ""
    leg: int = 0
    attempt: int = 1  # the number of times that connectors have begun to produce this leg
    facts: JsonObject = field(default_factory=dict)  # the payload of the first `open`
    pending: PendingApproval | None = None
    ended: str | None = None  # the terminal event's type
    broken_off: bool = False
    # the kind of the match in the last frame for which a redaction has stopped the run
    blocked: str | None = None
    error: Exception | None = None  # the exception that the decoder raised on the last frame
    _early: list[RawFrame] = field(default_factory=list)
    _decoder: Decoder | None = None
    _response: _Response | None = None
    _pause: Pause | None = None
    # the kinds of what people decide about, and the events that wait for the decision
    _reviewed: list[str] = field(default_factory=list)
    _unreleased: list[Draft] = field(default_factory=list)
    _unreleased_bytes: int = 0
    _stop: JsonObject | None = None  # the cancel that stops this leg for a budget
    # the payloads of the parts, while a frame comes in parts
    _parts: list[bytes] = field(default_factory=list)
    # the time of the leg's begin, or of its last call of a model or a tool
    _called_at: str = ""
    _redactions: RunRedactions | None = None  # None for a run without

    @property
    def approval_id(self) -> str | None:
        return self.pending.approval_id if self.pending is not None else None

    @property
    def is_workflow(self) -> bool:
        return self.facts.get("protocol") == PROTOCOL

    @property
    def asks(self) -> bool:
        """Whether the run has a checker, so that `events` may yield questions."""
        return self._redactions is not None and self._redactions.asks

    def feed(self, frame: RawFrame) -> list[CanonicalEvent]:
        """Return this frame's events; an empty list if the frame was fed before. The run must not
        have a checker."""
        return [event for event in self.events(frame) if type(event) is CanonicalEvent]

    def events(self, frame: RawFrame) -> Iterator[Folded]:
        """Yield this frame's events one by one, the questions to which the caller must know the
        findings before it goes on, and where other runs should work first. All events of a frame
        together can be a hundred times as large as the frame, so they are not returned as a list.
        """
        self.error = self.blocked = None
        if frame.sequence <= self.raw_sequence or self.broken_off:
            return
        self.raw_sequence = frame.sequence
        self.raw_first = self.raw_first or frame.sequence
        self.timestamp = max(self.timestamp, frame.received)
        handler = _HANDLERS.get(frame.kind)
        if handler is None:
            log.warning("run %s: the source frame kind %s is unknown", self.run_id, frame.kind)
            return
        drafts = iter(handler(self, frame))
        while True:
            try:
                draft = next(drafts, None)
            except Exception as error:
                # A decoder must not raise an exception. If it does, only this run fails.
                self.error = error
                break
            if draft is None:
                return
            if self._redactions is not None:
                yield from self._redacted(self._redactions, draft)
            elif type(draft) is Draft and self._admits(draft):
                yield self._placed(draft)
        text = f"the frame cannot be read: {self.error!r}"
        failed = self._failed(code="internal", error=text)
        if self._redactions is not None:
            yield from self._redacted(self._redactions, failed)
        elif self._admits(failed):
            yield self._placed(failed)

    def _redacted(self, redactions: RunRedactions, draft: Step) -> Iterator[Folded]:
        """Yield the events of a draft; end the run if something in it blocks the run."""
        if isinstance(draft, Released):
            yield from self._each_placed((draft.draft,))
            return
        if not isinstance(draft, Draft):
            yield draft
            return
        yield from self._each_placed(redactions.apply(draft))
        kind = redactions.take_blocked()
        if kind is None or self.ended:
            return
        redactions.drop_open_texts()
        self._drop_unreleased()
        self.blocked, self._response, self._pause = kind, None, None
        closing = self._decoder.abort() if self._decoder is not None else ()
        for each in self._decoded(closing):
            yield from self._each_placed(redactions.apply(each))
            redactions.take_blocked()
            self._drop_unreleased()
        yield from self._each_placed(_stopped_for(kind))

    def _each_placed(self, steps: Iterable[Draft | Asked]) -> Iterator[Folded]:
        for each in steps:
            if not isinstance(each, Draft):
                yield each
            elif self._holds_back(each):
                self._hold(each)
            elif self._admits(each):
                yield self._placed(each)

    def _holds_back(self, draft: Draft) -> bool:
        """Return whether people must be asked before this event; not about a start and a pause,
        which are only masked, and not about what a call has used, which counts in any case."""
        if self._redactions is None or draft.type == USAGE:
            return False
        reviewed = self._redactions.take_reviewed()
        if draft.type in ("lifecycle.started", "approval.requested") or self.pending is not None:
            return False
        if draft.type == "lifecycle.cancelled":
            self._drop_unreleased()
        elif not self.ended:
            self._reviewed += reviewed
        return bool(self._reviewed)

    def _hold(self, draft: Draft) -> None:
        self._unreleased.append(draft)
        self._unreleased_bytes += len(repr(draft))
        if self._unreleased_bytes > MAX_UNRELEASED_BYTES and self._redactions is not None:
            self._redactions.block(self._reviewed[0])

    def _drop_unreleased(self) -> None:
        self._reviewed, self._unreleased, self._unreleased_bytes = [], [], 0

    # The kinds of source frames

    def _on_open(self, frame: RawFrame) -> Iterable[Step]:
        opened: JsonObject = orjson.loads(frame.payload)
        if frame.leg == 1 and not self.leg:
            self.leg = 1
            self.facts = opened
            if "redactions" in opened:
                self._take_redactions()
            if self._redactions is not None and "message" in opened:
                opened["message"] = self._redactions.start_of(opened["message"])
            started = self._started()
            if self._redactions is not None and "message" in opened:
                # The run's record shows it, too.
                shown = yield from self._redactions.shown(opened["message"])
                self.facts = {**opened, "message": shown}
            yield started
            self._begin_response(frame)
            yield from self._decoded(self._the_decoder().open(1))
            early, self._early = self._early, []
            for event in early:
                yield from self._on_event(event)
        elif frame.leg == self.leg + 1 and self.pending is not None:
            self.leg = frame.leg
            self._stop = None
            approval, self.pending = self.pending, None
            if approval.pause_announced:
                yield Draft("lifecycle.resumed", {"approval_id": approval.approval_id})
            self._begin_response(frame)
            decoder = self._the_decoder()
            yield from self._decoded(decoder.open(frame.leg))
            items = {item["item_id"]: item for item in opened.get("items", ())}
            yield from self._decoded(decoder.decided(items))

    def _on_claim(self, frame: RawFrame) -> Iterable[Draft]:
        """Begin another attempt of the leg, because the agent server produces the leg again; or
        note that the leg is stopped for a budget."""
        claimed: JsonObject = orjson.loads(frame.payload)
        attempt = claimed.get("attempt", 1)
        if frame.leg == self.leg:
            self._stop = claimed.get("cancelled", self._stop)
        if frame.leg != self.leg or self._response is None or attempt <= self.attempt:
            return
        yield from self._decoded(self._the_decoder().abort())
        text = "the upstream was cut off; what it had begun to say is said again"
        yield Draft("system.warning", {"message": text, "code": "produced_again"})
        self.attempt = attempt

    def _on_bytes(self, frame: RawFrame) -> Iterable[Draft]:
        response = self._response
        if frame.leg != self.leg or response is None:
            return
        if frame.connection != response.connection:
            # Another connector reads from the agent server now, so a new response begins.
            response = self._begin_response(frame)
        decoder = self._the_decoder()
        for start in range(0, len(frame.payload), _SLICE_BYTES):
            try:
                frames = response.parser.feed(frame.payload[start : start + _SLICE_BYTES])
                too_large = None
            except FrameTooLarge as error:
                frames, too_large = error.frames, error
            for parsed in frames:
                for draft in decoder.feed(parsed):
                    if type(draft) is Draft and draft.type not in _NOT_THE_DECODERS:
                        # `_decoded` would do the same, but one more generator costs time.
                        yield draft
                    else:
                        yield from self._decoded((draft,))
            if too_large is not None:
                self._response = None
                yield from self._decoded(decoder.abort())
                yield self._failed(code="limit", error=f"the upstream sent too much: {too_large}")
                return

    def _on_part(self, frame: RawFrame) -> Iterable[Step]:
        assert frame.part is not None
        number, count = frame.part
        if number == 1:
            self._parts.clear()
        self._parts.append(frame.payload)
        if number == count:
            frame.payload = b"".join(self._parts)
            self._parts.clear()
            yield from _HANDLERS[frame.whole](self, frame)

    def _on_end(self, frame: RawFrame) -> Iterable[Step]:
        if frame.leg != self.leg:
            return
        if self._response is None:
            if self._reviewed and self.pending is None:
                yield from self._request_review()
            return
        outcome: JsonObject = orjson.loads(frame.payload or b"{}")
        decoder = self._the_decoder()
        ends_within_frame = not self._response.parser.is_at_boundary
        self._response = None
        if outcome.get("outcome") == "cancelled":
            yield from self._decoded(decoder.abort())
            yield from self._stopped(outcome, confirmed=outcome.get("confirmed", True))
        elif ends_within_frame and self._pause is None:
            yield from self._decoded(decoder.abort())
            yield self._failed(
                code="upstream_lost", error="the upstream's stream ended in the middle of a frame"
            )
        elif self._pause is None:
            yield from self._decoded(decoder.end())
        yield from self._request_approval()
        self.attempt = 1

    def _on_lost(self, frame: RawFrame) -> Iterable[Step]:
        if frame.leg != self.leg:
            return
        self._response = None
        if self._pause is not None:
            # The agent server paused before the connection was lost, so the leg is complete.
            yield from self._request_approval()
            self.attempt = 1
            return
        lost: JsonObject = orjson.loads(frame.payload)
        yield from self._decoded(self._the_decoder().abort())
        yield self._failed(**lost)
        if self._reviewed:
            yield from self._request_review()

    def _on_event(self, frame: RawFrame) -> Iterable[Step]:
        if not self.leg:
            # the frame waits, because `lifecycle.started` must be the first event
            self._early.append(frame)
            return
        event: JsonObject = orjson.loads(frame.payload)
        type_, data = event["type"], event.get("data", {})
        if self.is_workflow and frame.writer == WRITER:
            if is_of_workflow(type_):
                yield Draft(type_, data, event.get("source"), step_id=event.get("step_id"))
            else:
                log.error("run %s: %s is no event of a workflow", self.run_id, type_)
            return
        if not is_allowed(type_, data, self.pending):
            log.info("run %s: %s of %s is ignored now", self.run_id, type_, frame.writer)
            return
        if self.pending is not None:
            self.pending.note(type_, data)
        if type_ in TERMINAL:
            if self._decoder is not None:
                yield from self._decoded(self._decoder.abort())
            self._drop_unreleased()
        yield Draft(type_, data, event.get("source"))
        if type_ == "approval.decided" and self._reviewed:
            yield from self._go_on_as_decided(data)

    def _go_on_as_decided(self, decided: JsonObject) -> Iterable[Step]:
        """Release the events that wait for a decision, or end the run. What follows has the number
        of a leg of its own, as after each decision, without a request to the agent server."""
        approval, unreleased, kinds = self.pending, self._unreleased, self._reviewed
        assert approval is not None
        self.pending = None
        self._drop_unreleased()
        self.leg += 1
        if any(item["decision"] != "approve" for item in decided["items"]):
            yield from _stopped_for(kinds[0])
            return
        if approval.pause_announced:
            yield Draft("lifecycle.resumed", {"approval_id": approval.approval_id})
        yield from map(Released, unreleased)
        yield from self._request_approval()

    def _on_checked(self, _: RawFrame) -> Iterable[Draft]:
        return ()  # the caller of `events` has read it

    # The state of the run

    def _take_redactions(self) -> None:
        redactions, is_workflow = self.facts["redactions"], self.is_workflow
        self._redactions = RunRedactions.of(self.run_id, redactions, is_workflow=is_workflow)

    def _begin_response(self, frame: RawFrame) -> _Response:
        self._called_at = self.timestamp
        self._response = _Response(frame.connection, Parser(self.max_frame_bytes))
        return self._response

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
                self._pause = draft  # the approval is requested when the leg has ended
            elif draft.type == "lifecycle.cancelled" and self._stop is not None:
                yield from self._stopped(self._stop, confirmed=draft.data["confirmed"])
            elif draft.type != "lifecycle.resumed":
                yield draft
            elif self.pending is not None and self.pending.pause_announced:
                self.pending.pause_announced = False
                yield draft

    def _stopped(self, cancel: JsonObject, *, confirmed: bool) -> Iterable[Draft]:
        """End the run as cancelled; or let it pause, if a budget asks people and the agent server
        has stopped. Otherwise the server would go on spending while people are asked."""
        if (ask := cancel.get("ask")) is not None and confirmed:
            self._pause = self._pause or budget_pause(ask)
            return
        yield Draft(
            "lifecycle.cancelled",
            _present(
                reason=cancel.get("reason", "user_stop"),
                by=cancel.get("by"),
                confirmed=confirmed,
                budget=cancel.get("budget"),
            ),
        )

    def _request_review(self) -> Iterable[Step]:
        pause = review_pause(self._reviewed, self._unreleased[0])
        approval = pending_approval(self.run_id, self.leg, pause)
        # What is still held back of texts comes first, and may stop the run.
        yield approval_requested(approval.approval_id, pause)
        if not self.ended:
            self.pending = approval

    def _request_approval(self) -> Iterable[Step]:
        if self._reviewed:
            yield from self._request_review()
            return
        pause, self._pause = self._pause, None
        if pause is None or self.ended:
            return
        found: list[JsonObject] = []
        if self._redactions is not None:
            pause, found = yield from self._redactions.pause(pause)
        self.pending = pending_approval(self.run_id, self.leg, pause)
        yield approval_requested(self.pending.approval_id, pause, found)

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

    def _started(self) -> Draft:
        return Draft(
            "lifecycle.started",
            _present(
                agent=self.facts["agent"],
                user_id=self.facts.get("user_id", "anonymous"),
                tenant=self.facts.get("tenant"),
                message=self.facts.get("message"),
                workflow=self.facts.get("workflow"),
                idempotency_key=self.facts.get("idempotency_key"),
                forked_from=self.facts.get("forked_from"),
                tags=self.facts.get("tags"),
                redactions=self._redactions and self._redactions.version,
            ),
        )

    def _admits(self, draft: Draft) -> bool:
        """Return whether the run accepts a draft: after a terminal one, it accepts only an
        epilogue."""
        if self.ended:
            return is_epilogue(draft.type)
        if draft.type in TERMINAL:
            self.ended = draft.type
            self.pending = None
        return True

    def _placed(self, draft: Draft) -> CanonicalEvent:
        """Return the draft as the run's next event; an error event if it cannot be encoded."""
        sequence = self.sequence + 1
        if draft.type in _CALLS:
            self._price(draft)
        try:
            event = canonical_event(
                draft,
                run_id=self.run_id,
                sequence=sequence,
                timestamp=self.timestamp,
                facts=self.facts,
                leg=self.leg,
                attempt=self.attempt,
            )
        except NotEncodable as error:
            return self._placed_instead(draft, str(error))
        self.sequence = sequence
        return event

    def _price(self, draft: Draft) -> None:
        since, self._called_at = self._called_at or self.timestamp, self.timestamp
        cost = self.cost_of(draft.type, draft.data, self.facts, since, self.timestamp)
        if draft.type == USAGE or cost is not None:
            # A cost that an agent's author has put into a custom event does not count.
            draft.data = {**draft.data, "cost": cost}
            if draft.clear is not None:
                draft.clear = {**draft.clear, "cost": cost}

    def _placed_instead(self, draft: Draft, text: str) -> CanonicalEvent:
        if draft.type in TERMINAL:
            self.ended = "lifecycle.failed"
            return self._placed(self._failed(error=text, code="internal"))
        return self._placed(Draft("system.error", {"message": text, "code": "internal"}))

    # The end of a run whose frames are missing

    def break_off(
        self, frame: RawFrame, facts: JsonObject, code: str, error: str
    ) -> list[CanonicalEvent]:
        """End the run at `frame`, because the run cannot be continued; ignore all further frames.
        If the run's first `open` frame is missing, `facts` is used in place of its payload."""
        self.broken_off = True
        self.facts = self.facts or facts
        self.raw_first = self.raw_first or frame.sequence
        self.timestamp = max(self.timestamp, frame.received)
        self.leg = self.leg or frame.leg
        drafts = [self._failed(code=code, error=error)]
        if not self.sequence:
            drafts.insert(0, self._started())
        return [self._placed(draft) for draft in drafts if self._admits(draft)]

    # The state that is stored while a run waits. A run may wait for longer than its frames and
    # events are kept.

    def snapshot(self) -> JsonObject:
        decoder, approval, redactions = self._the_decoder(), self.pending, self._redactions
        return {
            **{name: getattr(self, name) for name in _IN_SNAPSHOT},
            "approval_id": self.approval_id,
            "resume": approval.resume if approval is not None else None,
            "paused": approval is not None and approval.pause_announced,
            "decided": approval is not None and approval.decision_announced,
            "escalated": approval.step if approval is not None else 0,
            "expired": approval is not None and approval.expiry_announced,
            "decoder": decoder.snapshot(),
            **(self._review_snapshot() if self._reviewed else {}),
            "redacted": redactions.redactor.snapshot() if redactions is not None else None,
        }

    def _review_snapshot(self) -> JsonObject:
        return {
            "reviewed": self._reviewed,
            # `asdict` copies all data: a thousand events took 40 ms, for which other runs wait.
            "unreleased": [
                {name: getattr(each, name) for name in _OF_DRAFT} for each in self._unreleased
            ],
            "pause": asdict(self._pause) if self._pause is not None else None,
        }

    def restore(self, state: JsonObject) -> None:
        for name in _IN_SNAPSHOT:
            setattr(self, name, state[name])
        if "redactions" in self.facts:
            self._take_redactions()
        if self._redactions is not None:
            self._redactions.redactor.restore(state["redacted"])
        if state["approval_id"] is not None:
            self.pending = PendingApproval(
                approval_id=state["approval_id"],
                resume=state["resume"] or {},
                pause_announced=state["paused"],
                decision_announced=state["decided"],
                # Snapshots of releases up to 0.1 do not have the following two values.
                step=state.get("escalated", 0),
                expiry_announced=state.get("expired", False),
            )
        self._the_decoder().restore(state["decoder"])
        if "reviewed" in state:
            self._reviewed = state["reviewed"]
            self._unreleased = [Draft(**fields) for fields in state["unreleased"]]
            if (pause := state["pause"]) is not None:
                items = [PauseItem(**fields) for fields in pause["items"]]
                self._pause = Pause(**{**pause, "items": items})


# The events of which the run decides what becomes of them.
_NOT_THE_DECODERS = frozenset({"lifecycle.resumed", "lifecycle.cancelled"})
_OF_DRAFT = tuple(each.name for each in fields(Draft))
_IN_SNAPSHOT = ("sequence", "raw_sequence", "raw_first", "timestamp", "leg", "facts", "ended")

_HANDLERS: Mapping[str, Callable[[RunFold, RawFrame], Iterable[Step]]] = {
    "open": RunFold._on_open,
    "claim": RunFold._on_claim,
    "bytes": RunFold._on_bytes,
    "part": RunFold._on_part,
    "end": RunFold._on_end,
    "lost": RunFold._on_lost,
    "event": RunFold._on_event,
    "checked": RunFold._on_checked,
}


def _stopped_for(kind: str) -> tuple[Draft, ...]:
    text = f"the run was stopped: its content has a match of kind {kind}, which is blocked"
    if kind == UNCHECKED:
        text = "the run was stopped: its content could not be checked"
    return (
        Draft("system.warning", {"message": text, "code": BLOCKED}),
        # The agent server is asked to stop only now, so nobody knows whether it does.
        Draft("lifecycle.cancelled", {"reason": BLOCKED, "by": "policy", "confirmed": False}),
    )


def _present(**fields: Any) -> JsonObject:
    return {name: value for name, value in fields.items() if value is not None}
