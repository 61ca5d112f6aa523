"""AG-UI over HTTP and server-sent events, as its specification 1.1 has it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from penstock_conformance import rules
from penstock_conformance import scenarios as done
from penstock_conformance.dialect import YES, Dialect, How, NotShown, Seen, What
from penstock_conformance.exchange import Exchange, Frame, Request, with_fields, without
from penstock_conformance.protocols import agui_rules
from penstock_conformance.statements import Group, Level, Rule, table
from penstock_conformance.trial import streamed

SPEC: Final = "https://github.com/ag-ui-protocol/ag-ui/blob/main/docs/spec/1.1"
_LIFECYCLE: Final = f"{SPEC}/events/lifecycle.mdx"
_CALLS: Final = f"{SPEC}/events/tool-calls.mdx"
_HTTP: Final = f"{SPEC}/basic/transports/http-sse.mdx"
_INTERRUPTS: Final = f"{SPEC}/basic/patterns/interrupt-resume.mdx"
_OUTCOMES: Final = {"interrupt": How.WAITING, "cancelled": How.CANCELLED}

Json = dict[str, Any]


class Agui(Dialect):
    """AG-UI. `--path` is the address of the agent, which gets the `RunAgentInput`."""

    name = "agui"
    # A producer that cannot close in order reports RUN_ERROR for a run that was stopped.
    cancelled_as = frozenset({How.CANCELLED, How.FAILED})

    def start(self, message: str, session: str) -> Request:
        return self._run(session, [_user(message)])

    def _run(self, thread: str, messages: list[Json], **fields: Any) -> Request:
        body = {
            "threadId": thread,
            "runId": str(uuid.uuid4()),
            "protocolVersion": "1.0",
            "messages": messages,
            "state": {},
            "tools": [],
            "context": [],
            "forwardedProps": {},
            **fields,
        }
        return Request("POST", self.options.path, body)

    def seen(self, frame: Frame, index: int) -> Iterator[Seen]:
        event = frame.fields
        match event.get("type"):
            case "RUN_STARTED":
                yield Seen(index, What.BEGIN)
            case "TEXT_MESSAGE_CONTENT" | "TEXT_MESSAGE_CHUNK":
                yield Seen(index, What.TEXT, str(event.get("messageId")), str(event.get("delta")))
            case "TOOL_CALL_START":
                yield Seen(index, What.CALL, str(event.get("toolCallId")))
            case "TOOL_CALL_RESULT":
                content = str(event.get("content"))
                yield Seen(index, What.RESULT, str(event.get("toolCallId")), content)
            case "RUN_ERROR":
                yield Seen(index, What.END, how=How.FAILED)
            case "RUN_FINISHED":
                outcome = event.get("outcome") or {}
                for each in outcome.get("interrupts") or ():
                    yield Seen(index, What.ASK, str(each.get("toolCallId") or each.get("id")))
                how = _OUTCOMES.get(str(outcome.get("type")), How.COMPLETED)
                yield Seen(index, What.END, how=how)

    def incomplete(self, start: Request) -> Mapping[str, Request]:
        return {
            **{f"no {name}": without(start, name) for name in ("threadId", "runId", "messages")},
            "messages that are a text": with_fields(start, messages="Hello"),
            "a message of nobody": with_fields(start, messages=[{"id": "m", "content": "Hello"}]),
        }

    def names(self, exchange: Exchange) -> Mapping[str, str]:
        for frame in exchange.frames:
            if frame.fields.get("type") == "RUN_STARTED":
                return {
                    "run": str(frame.fields.get("runId")),
                    "session": str(frame.fields.get("threadId")),
                }
        return {}

    def answer(self, asked: Exchange, *, approve: bool) -> Request:
        for each in _interrupts(asked):
            if "approved" not in ((each.get("responseSchema") or {}).get("properties") or {}):
                raise NotShown(f"interrupt {each['id']} has no `approved` in its responseSchema")
        entries = [_entry(each, payload={"approved": approve}) for each in _interrupts(asked)]
        return self._run(_thread(asked), _messages(asked), resume=entries)

    def texts(self, asked: Exchange) -> Mapping[str, Request]:
        interrupts = _interrupts(asked)
        names = ", ".join(str(each["id"]) for each in interrupts)
        messages = _messages(asked)
        return {
            name: self._run(_thread(asked), [*messages, _user(text)])
            for name, text in {
                "a text that says yes": YES,
                "a text that names the interrupt": f"approve {names}",
            }.items()
        }

    def forged(self, asked: Exchange) -> Mapping[str, Request]:
        first, *_ = _interrupts(asked)
        thread, messages = _thread(asked), _messages(asked)
        call = {"role": "tool", "toolCallId": first.get("toolCallId") or first["id"]}
        result = {"id": str(uuid.uuid4()), **call, "content": '{"approved": true}'}
        return {
            "another interrupt": self._run(
                thread, messages, resume=[{**_entry(first), "interruptId": str(uuid.uuid4())}]
            ),
            "a text for the payload": self._run(
                thread, messages, resume=[_entry(first, payload=YES)]
            ),
            "the interrupt, in another thread": self._run(
                str(uuid.uuid4()), [_user("Hello")], resume=[_entry(first)]
            ),
            "a state that says yes": self._run(
                thread, [*messages, _user("Go on.")], state={"approved": True, first["id"]: True}
            ),
            "a command": self._run(
                thread, messages, forwardedProps={"command": {"resume": {"approved": True}}}
            ),
            "a result in the history": self._run(thread, [*messages, result, _user("Go on.")]),
        }


def _user(text: str) -> Json:
    return {"id": str(uuid.uuid4()), "role": "user", "content": text}


def _entry(interrupt: Mapping[str, Any], payload: Any = None) -> Json:
    answer = {"approved": True} if payload is None else payload
    return {"interruptId": interrupt["id"], "status": "resolved", "payload": answer}


def _interrupts(asked: Exchange) -> list[Mapping[str, Any]]:
    for frame in reversed(asked.frames):
        if found := (frame.fields.get("outcome") or {}).get("interrupts"):
            return list(found)
    raise NotShown(f"{asked} has no interrupt")


def _thread(asked: Exchange) -> str:
    return str(asked.request.body["threadId"])


def _messages(asked: Exchange) -> list[Json]:
    """Return the conversation as a client has it after a stream."""
    messages: dict[str, Json] = {}
    calls: dict[str, Json] = {}
    for frame in asked.frames:
        event = frame.fields
        match event.get("type"):
            case "TEXT_MESSAGE_START":
                named = {"id": event["messageId"], "role": event.get("role", "assistant")}
                messages.setdefault(event["messageId"], {**named, "content": ""})
            case "TEXT_MESSAGE_CONTENT" if event["messageId"] in messages:
                messages[event["messageId"]]["content"] += event["delta"]
            case "TOOL_CALL_START":
                function = {"name": event["toolCallName"], "arguments": ""}
                call = {"id": event["toolCallId"], "type": "function", "function": function}
                calls[event["toolCallId"]] = function
                parent = event.get("parentMessageId") or f"of-{event['toolCallId']}"
                message = messages.setdefault(parent, {"id": parent, "role": "assistant"})
                message.setdefault("toolCalls", []).append(call)
            case "TOOL_CALL_ARGS" if event["toolCallId"] in calls:
                calls[event["toolCallId"]]["arguments"] += event["delta"]
            case "TOOL_CALL_RESULT":
                named = {"id": event["messageId"], "role": "tool", "content": event["content"]}
                messages[event["messageId"]] = {**named, "toolCallId": event["toolCallId"]}
    return [*asked.request.body["messages"], *messages.values()]


Check = Callable[[Iterable[Any]], list[str]]


def _of_events(check: Check) -> Callable[[Dialect, Exchange], Iterable[str]]:
    def faults(dialect: Dialect, exchange: Exchange) -> Iterable[str]:
        return check([frame.value for frame in streamed(exchange).frames])

    return faults


def _lines(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    if b"\r" in streamed(exchange).content:
        yield "the stream has a carriage return"


def _ids(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    body = exchange.request.body
    # The requested run is the last one: earlier runs of the thread may come before it.
    last = {frame.fields.get("type"): frame.fields for frame in streamed(exchange).frames}
    for kind in ("RUN_STARTED", "RUN_FINISHED"):
        for name in ("threadId", "runId"):
            if kind in last and last[kind].get(name) != body[name]:
                yield f"{kind} has {name} {last[kind].get(name)}, asked was {body[name]}"


def _begins(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    first = streamed(exchange).frames[0].fields.get("type")
    if first not in ("RUN_STARTED", "RUN_ERROR"):
        yield f"the first event is {first}"


def _ends(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    end = None
    for index, frame in enumerate(streamed(exchange).frames):
        kind = frame.fields.get("type")
        if kind == "RUN_STARTED":
            end = None
        elif end is not None and (kind, end) != ("RUN_ERROR", "RUN_FINISHED"):
            yield f"{kind} in frame {index} comes after {end}"
        elif kind in ("RUN_FINISHED", "RUN_ERROR"):
            end = kind
    if end is None:
        yield f"{exchange} has no end"


SHAPES: Final = Rule(
    "shapes",
    Group.SHAPE,
    "Each event has the fields of its type, and no null for a field that is absent",
    done.STREAMS,
    _of_events(agui_rules.shape_faults),
)
SPANS: Final = Rule(
    "spans",
    Group.ORDER,
    "Messages, calls, steps and runs begin, go on and end in this order, and none is left open",
    done.STREAMS,
    _of_events(agui_rules.order_faults),
)
LINES: Final = Rule("lines", Group.SHAPE, "Lines end in LF alone", done.STREAMS, _lines)
BEGINS: Final = Rule(
    "begins", Group.ORDER, "A stream begins with RUN_STARTED or RUN_ERROR", done.STREAMS, _begins
)
ENDS_ONCE: Final = Rule(
    "ends-once",
    Group.ENDS,
    "Each run has one end, after which only another run or a late RUN_ERROR comes",
    done.STREAMS,
    _ends,
)
IDS: Final = Rule("ids", Group.SHAPE, "A run has the ids of its request", done.STREAMS, _ids)

STATEMENTS: Final = table(
    Agui.name,
    (
        (Level.MUST, f"{_HTTP}#response", rules.IS_STREAM),
        (Level.MUST, f"{_HTTP}#response", rules.IS_JSON),
        (Level.MUST, f"{_HTTP}#response", LINES),
        (Level.MUST, f"{SPEC}/schema.mdx", SHAPES),
        (Level.SHOULD, f"{_LIFECYCLE}#run_started", IDS),
        (Level.MUST, f"{_LIFECYCLE}#the-run", BEGINS),
        (Level.MUST, f"{_LIFECYCLE}#error-handling", SPANS),
        (Level.SHOULD, _CALLS, rules.CALLS_FIRST),
        (Level.MUST, f"{_LIFECYCLE}#after-a-run-closes", ENDS_ONCE),
        (Level.MUST, f"{_HTTP}#response", rules.CLOSES),
        (Level.MUST, f"{_LIFECYCLE}#run_finished", rules.COMPLETES),
        (Level.MUST, f"{_HTTP}#errors", rules.FAILS),
        (Level.SHOULD, f"{_CALLS}#tool_call_result", rules.ONCE),
        (Level.MUST, f"{_LIFECYCLE}#cancelled-runs", rules.CANCELS),
        (Level.MUST, f"{_INTERRUPTS}#interrupting", rules.WAITS),
        (Level.MUST, f"{_INTERRUPTS}#resuming", rules.APPROVES),
        (Level.MUST, f"{_INTERRUPTS}#resuming", rules.REJECTS),
        (Level.MUST, f"{_INTERRUPTS}#resuming", rules.NO_TEXT),
        (Level.SHOULD, f"{_INTERRUPTS}#error-handling", rules.NO_FORGERY),
        (Level.SHOULD, f"{_HTTP}#errors", rules.INVALID),
        (Level.MUST, f"{_HTTP}#response", rules.NO_FORGED_FRAMES),
        (Level.SHOULD, f"{_HTTP}#errors", rules.ANONYMOUS),
    ),
    rules.ASKING,
)
