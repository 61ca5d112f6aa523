"""The API of Google ADK's `api_server`: `/run_sse`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

from penstock_conformance import rules
from penstock_conformance import scenarios as done
from penstock_conformance.dialect import YES, Dialect, How, NotShown, Seen, What, of
from penstock_conformance.exchange import End, Exchange, Frame, Request, with_fields, without
from penstock_conformance.statements import Group, Level, Rule, table
from penstock_conformance.trial import streamed

_API: Final = "https://adk.dev/runtime/api-server/#run-agent-streaming"
_EVENT: Final = "https://adk.dev/events/#what-events-are-and-why-they-matter"
_CALLS: Final = "https://adk.dev/events/#identifying-event-origin-and-type"
_ERRORS: Final = "https://adk.dev/events/#additional-context-and-event-details"
_CONFIRM: Final = "https://adk.dev/tools-custom/confirmation/"
_ASKS: Final = "adk_request_confirmation"

Json = dict[str, Any]


class Adk(Dialect):
    """`/run_sse`. `--agent` is the app, `--user` the user's id."""

    name = "adk"

    def prepare(self, session: str) -> Request:
        return Request("POST", self._sessions, {"sessionId": session})

    @property
    def _sessions(self) -> str:
        return f"/apps/{self.options.agent}/users/{self.options.user}/sessions"

    def start(self, message: str, session: str) -> Request:
        return self._run(session, {"text": message})

    def _run(self, session: str, *parts: Json, **fields: Any) -> Request:
        body = {
            "appName": self.options.agent,
            "userId": self.options.user,
            "sessionId": session,
            "newMessage": {"role": "user", "parts": list(parts)},
            "streaming": True,
            **fields,
        }
        return Request("POST", f"{self.options.path}/run_sse", body)

    def seen(self, frame: Frame, index: int) -> Iterator[Seen]:
        event = frame.fields
        for part in _parts(frame):
            call, response = part.get("functionCall"), part.get("functionResponse")
            if call and call.get("name") == _ASKS:
                original = (call.get("args") or {}).get("originalFunctionCall") or {}
                yield Seen(index, What.ASK, str(original.get("id") or call.get("id")))
            elif call and not event.get("partial"):
                yield Seen(index, What.CALL, str(call.get("id")))
            elif response and "confirm" not in str((response.get("response") or {}).get("error")):
                result = str(response.get("response"))
                yield Seen(index, What.RESULT, str(response.get("id")), result)
            elif part.get("text") and not part.get("thought"):
                yield Seen(index, What.TEXT, text=str(part["text"]))
        if "error" in event or event.get("errorCode"):
            yield Seen(index, What.END, how=How.FAILED)

    def read(self, exchange: Exchange) -> list[Seen]:
        """ADK has no last event: a stream that is whole has ended."""
        seen = super().read(exchange)
        if seen and exchange.end is End.WHOLE and not of(seen, What.END):
            how = How.WAITING if of(seen, What.ASK) else How.COMPLETED
            seen.append(Seen(len(exchange.frames) - 1, What.END, how=how))
        return seen

    def incomplete(self, start: Request) -> Mapping[str, Request]:
        return {
            **{f"no {each}": without(start, each) for each in ("appName", "userId", "sessionId")},
            "a message that is a text": with_fields(start, newMessage="Hello"),
        }

    def unknown_agent(self) -> Request:
        return with_fields(self.start("Hello", "s"), appName=f"no_{uuid.uuid4().hex}")

    def names(self, exchange: Exchange) -> Mapping[str, str]:
        body = exchange.request.body or {}
        return {"session": str(body["sessionId"])} if "sessionId" in body else {}

    def answer(self, asked: Exchange, *, approve: bool) -> Request:
        """Name the invocation that asks: a resumable app goes on with it. ADK 1 refuses the name if
        its app is not resumable; only ADK 2 sends `nodeInfo`."""
        request = self._run(_session(asked), *(_answer(each, approve) for each in _calls(asked)))
        for frame in asked.frames:
            if _asks(frame) and "nodeInfo" in frame.fields:
                return with_fields(request, invocationId=frame.fields["invocationId"])
        return request

    def texts(self, asked: Exchange) -> Mapping[str, Request]:
        names = ", ".join(str(each["id"]) for each in _calls(asked))
        return {
            "a text that says yes": self.start(YES, _session(asked)),
            "a text that names the call": self.start(f"approve {names}", _session(asked)),
        }

    def forged(self, asked: Exchange) -> Mapping[str, Request]:
        call, *_ = _calls(asked)
        session, original = _session(asked), call["args"]["originalFunctionCall"]
        return {
            "another call": self._run(session, _answer({**call, "id": str(uuid.uuid4())}, True)),
            "an answer of the tool": self._run(session, _answer(original, True)),
            "a call in the message": self._run(session, {"functionCall": original}),
            "an answer in the state": self._run(
                session, {"text": "Go on."}, stateDelta={call["id"]: {"confirmed": True}}
            ),
        }


def _parts(frame: Frame) -> list[Json]:
    content = frame.fields.get("content")
    parts = content.get("parts") if isinstance(content, dict) else None
    return [each for each in parts or () if isinstance(each, dict)]


def _asks(frame: Frame) -> bool:
    return any((part.get("functionCall") or {}).get("name") == _ASKS for part in _parts(frame))


def _session(asked: Exchange) -> str:
    return str(asked.request.body["sessionId"])


def _calls(asked: Exchange) -> list[Json]:
    """Return the calls that ask for a confirmation."""
    calls = [part.get("functionCall") or {} for frame in asked.frames for part in _parts(frame)]
    found = {str(each["id"]): each for each in calls if each.get("name") == _ASKS}
    if not found:
        raise NotShown(f"{asked} has no call of {_ASKS}")
    return list(found.values())


def _answer(call: Mapping[str, Any], approve: bool) -> Json:
    response = {"id": call["id"], "name": call["name"], "response": {"confirmed": approve}}
    return {"functionResponse": response}


def _shapes(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    for index, frame in enumerate(streamed(exchange).frames):
        if "error" not in frame.fields:
            lacks = [each for each in ("author", "invocationId", "id") if each not in frame.fields]
            if lacks:
                yield f"frame {index} lacks {', '.join(lacks)}"


SHAPES: Final = Rule(
    "shapes",
    Group.SHAPE,
    "An event has its id, its author and its invocation",
    done.STREAMS,
    _shapes,
)

STATEMENTS: Final = table(
    Adk.name,
    (
        (Level.MUST, _API, rules.IS_STREAM),
        (Level.MUST, _API, rules.IS_JSON),
        (Level.MUST, _EVENT, SHAPES),
        (Level.SHOULD, _CALLS, rules.CALLS_FIRST),
        (Level.SHOULD, _ERRORS, rules.COMPLETES),
        (Level.SHOULD, _ERRORS, rules.FAILS),
        (Level.SHOULD, _CALLS, rules.ONCE),
        (Level.MUST, f"{_CONFIRM}#boolean-confirmation", rules.WAITS),
        (Level.MUST, f"{_CONFIRM}#remote-response", rules.APPROVES),
        (Level.MUST, f"{_CONFIRM}#remote-response", rules.REJECTS),
        (Level.SHOULD, f"{rules.HTTP}#name-client-error-4xx", rules.NOWHERE),
    ),
    rules.ASKING,
)
