"""The unified events: unified-events.md, in the stream of a run."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from penstock_conformance import rules
from penstock_conformance import scenarios as done
from penstock_conformance.dialect import Dialect, How, Seen, What
from penstock_conformance.exchange import Exchange, Frame, Request, with_fields, without
from penstock_conformance.statements import Group, Level, Rule, table
from penstock_conformance.trial import streamed

_CONTRACT: Final = "deploy/contract/conformance.md#unified-eventsmd"
_ROOT: Final = frozenset({"event_id", "session_id", "timestamp", "type", "payload"})
_HOW: Final = {"completed": How.COMPLETED, "failed": How.FAILED, "cancelled": How.CANCELLED}


class Unified(Dialect):
    """Runs whose stream has the unified events."""

    name = "unified"
    stays_open = True
    no_cancel = frozenset()  # the contract has the request

    def start(self, message: str, session: str) -> Request:
        body = {"agent": self.options.agent, "message": message, "session_id": session}
        return Request("POST", "/v1/runs?dialect=unified", body)

    def seen(self, frame: Frame, index: int) -> Iterator[Seen]:
        payload = frame.fields.get("payload") or {}
        call = str(payload.get("tool_call_id"))
        match frame.fields.get("type"):
            case "session_started":
                yield Seen(index, What.BEGIN)
            case "agent_message_delta":
                yield Seen(index, What.TEXT, text=str(payload.get("delta")))
            case "tool_call_started":
                yield Seen(index, What.CALL, call)
            case "tool_call_result":
                yield Seen(index, What.RESULT, call, str(payload.get("result")))
            case "run_interrupted" if payload.get("reason") == "approval_required":
                yield Seen(index, What.ASK)
            case "session_ended":
                how = _HOW.get(str(payload.get("reason")), How.COMPLETED)
                yield Seen(index, What.END, how=how)

    def incomplete(self, start: Request) -> Mapping[str, Request]:
        return {
            "no agent": without(start, "agent"),
            "no message": without(start, "message"),
            "a message that is a number": with_fields(start, message=1),
        }

    def unknown_agent(self) -> Request:
        return with_fields(self.start("Hello", str(uuid.uuid4())), agent=f"no-{uuid.uuid4()}")

    def names(self, exchange: Exchange) -> Mapping[str, str]:
        for frame in exchange.frames:
            run = (frame.fields.get("payload") or {}).get("run_id")
            if run:
                return {"run": str(run), "session": str(frame.fields.get("session_id"))}
        return {}

    def resume(self, exchange: Exchange, after: str | None) -> Request:
        path = f"/v1/runs/{self.names(exchange).get('run')}/events?dialect=unified"
        return Request("GET", path, headers={} if after is None else {"last-event-id": after})

    def cancel(self, exchange: Exchange) -> Request:
        return Request("POST", f"/v1/runs/{self.names(exchange).get('run')}/cancel")

    def cancel_unknown(self) -> Request:
        return Request("POST", f"/v1/runs/{uuid.uuid4()}/cancel")


def _shapes(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    for index, frame in enumerate(streamed(exchange).frames):
        if frame.fields.keys() != _ROOT:
            yield f"frame {index} has the fields {sorted(frame.fields)}"
        elif not isinstance(frame.fields["payload"], dict):
            yield f"frame {index} has a payload that is no object"


def _event_ids(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    found = Counter(frame.fields.get("event_id") for frame in streamed(exchange).frames)
    yield from (f"event_id {id} comes {number} times" for id, number in found.items() if number > 1)


def _messages(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    pieces: dict[str, str] = {}
    for index, frame in enumerate(streamed(exchange).frames):
        payload = frame.fields.get("payload") or {}
        kind, id = str(frame.fields.get("type")), str(payload.get("message_id"))
        if kind == "agent_message_start":
            if id in pieces:
                yield f"frame {index}: {id} starts again"
            pieces[id] = ""
        elif kind.startswith("agent_message_"):
            if id not in pieces:
                yield f"frame {index}: {kind} of {id}, which has not started"
                continue
            if kind == "agent_message_delta":
                pieces[id] += str(payload.get("delta"))
            elif pieces[id] not in ("", payload.get("content")):
                yield f"{id}: the pieces are {pieces[id]!r}, the whole {payload.get('content')!r}"


SHAPES: Final = Rule("shapes", Group.SHAPE, "The root has the five fields", done.STREAMS, _shapes)
EVENT_IDS: Final = Rule(
    "event-ids", Group.DUPLICATES, "No event_id comes twice", done.STREAMS, _event_ids
)
MESSAGES: Final = Rule(
    "messages",
    Group.ORDER,
    "A message starts, goes on and ends, and its pieces are its content",
    done.STREAMS,
    _messages,
)

STATEMENTS: Final = table(
    Unified.name,
    tuple(
        (level, f"{_CONTRACT} ({number})", rule)
        for level, number, rule in (
            (Level.MUST, "UN35", rules.IS_STREAM),
            (Level.MUST, "UN1", rules.IS_JSON),
            (Level.MUST, "UN1, UN6", SHAPES),
            (Level.MUST, "UN2", EVENT_IDS),
            (Level.MUST, "UN7", rules.BEGINS),
            (Level.MUST, "UN13", MESSAGES),
            (Level.MUST, "UN15, UN17", rules.CALLS_FIRST),
            (Level.MUST, "UN15, UN17", rules.ONCE),
            (Level.MUST, "UN8", rules.ENDS_ONCE),
            (Level.SHOULD, "UN8", rules.CLOSES),
            (Level.MUST, "UN8", rules.COMPLETES),
            (Level.MUST, "UN9", rules.FAILS),
            (Level.MUST, "UN26", rules.WAITS),
            (Level.MUST, "UN39", rules.RESUMES),
            (Level.MUST, "UN39", rules.RESUMES_LIVE),
            (Level.MUST, "UN9", rules.CANCELS),
            (Level.SHOULD, "UN1", rules.NOWHERE),
        )
    ),
    rules.COMMON,
)
