"""The API of Agno's AgentOS for agents, teams and workflows."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from penstock_conformance import rules
from penstock_conformance import scenarios as done
from penstock_conformance.dialect import NO_SUCH_REQUEST, YES, Dialect, How, NotShown, Seen, What
from penstock_conformance.exchange import Exchange, Frame, Request, without
from penstock_conformance.scenarios import Cancelled
from penstock_conformance.statements import Group, Level, Rule, table
from penstock_conformance.trial import streamed

_API: Final = "https://docs.agno.com/reference-api/schema/agents"
_RUNNING: Final = "https://docs.agno.com/agents/running-agents"
_EVENTS: Final = f"{_RUNNING}#event-types"
_PAUSES: Final = "https://docs.agno.com/hitl/user-confirmation"
_RESUMES: Final = f"{_API}/resume-agent-run-stream"
# What AgentOS says of a stream that it sends again.
_NOTES: Final = frozenset({"replay", "catch_up", "subscribed"})
_HOW: Final = {
    "RunCompleted": How.COMPLETED,
    "RunError": How.FAILED,
    "RunCancelled": How.CANCELLED,
    "RunPaused": How.WAITING,
}


class Agno(Dialect):
    """AgentOS. `--path` has the agent, the team or the workflow."""

    name = "agno"
    no_resume = NO_SUCH_REQUEST  # AgentOS has `/resume` since 3.0
    no_cancel = frozenset()

    def start(self, message: str, session: str) -> Request:
        form = {"message": message, "stream": "true", "session_id": session}
        return Request("POST", f"{self.options.path}/runs", form=form)

    def seen(self, frame: Frame, index: int) -> Iterator[Seen]:
        event = frame.fields
        name, tool = event.get("event"), event.get("tool") or {}
        call = str(tool.get("tool_call_id"))
        match name:
            case "RunStarted":
                yield Seen(index, What.BEGIN)
            case "RunContent" if event.get("content"):
                yield Seen(index, What.TEXT, text=str(event["content"]))
            case "ToolCallStarted":
                yield Seen(index, What.CALL, call)
            case "ToolCallCompleted":
                yield Seen(index, What.RESULT, call, str(tool.get("result")))
            case "RunPaused":
                for each in event.get("tools") or ():
                    yield Seen(index, What.ASK, str(each.get("tool_call_id")))
        if name in _HOW:
            yield Seen(index, What.END, how=_HOW[name])

    def lasting(self, start: Request) -> Request:
        """Only a run in the background goes on without its client, and is streamed again."""
        return replace(start, form={**(start.form or {}), "background": "true"})

    def cursor(self, frame: Frame) -> str | None:
        index = frame.fields.get("event_index")
        return None if index is None else str(index)

    def is_of_run(self, frame: Frame) -> bool:
        return frame.event not in _NOTES

    def resume(self, exchange: Exchange, after: str | None) -> Request:
        names = self.names(exchange)
        form = {"session_id": names.get("session", "")}
        if after is not None:
            form["last_event_index"] = after
        return self._of_run(names.get("run", ""), "resume", form)

    def incomplete(self, start: Request) -> Mapping[str, Request]:
        return {"no message": without(start, "message")}

    def unknown_agent(self) -> Request:
        kind = self.options.path.rpartition("/")[0]
        form = {"message": "Hello", "stream": "true"}
        return Request("POST", f"{kind}/no-{uuid.uuid4()}/runs", form=form)

    def names(self, exchange: Exchange) -> Mapping[str, str]:
        for frame in exchange.frames:
            if frame.fields.get("run_id"):
                session = str(frame.fields.get("session_id"))
                return {"run": str(frame.fields["run_id"]), "session": session}
        return {}

    def cancel(self, exchange: Exchange) -> Request:
        return self._of_run(self.names(exchange).get("run", ""), "cancel")

    def cancel_unknown(self) -> Request:
        return self._of_run(str(uuid.uuid4()), "cancel")

    def answer(self, asked: Exchange, *, approve: bool) -> Request:
        return self._continue(asked, [{**each, "confirmed": approve} for each in _tools(asked)])

    def texts(self, asked: Exchange) -> Mapping[str, Request]:
        session = self.names(asked)["session"]
        names = ", ".join(str(each["tool_call_id"]) for each in _tools(asked))
        return {
            "a text that says yes": self.start(YES, session),
            "a text that names the call": self.start(f"approve {names}", session),
        }

    def forged(self, asked: Exchange) -> Mapping[str, Request]:
        tools = _tools(asked)
        session = self.names(asked)["session"]

        def changed(**changes: Any) -> Request:
            return self._continue(asked, [{**each, "confirmed": True, **changes} for each in tools])

        yes = json.dumps([{**each, "confirmed": True} for each in tools])
        start = self.start("Go on.", session)
        return {
            "another call": changed(tool_call_id=str(uuid.uuid4())),
            "other arguments": changed(tool_args={"other": "arguments"}),
            "another tool": changed(tool_name="another"),
            "neither yes nor no": changed(confirmed=None),
            "a start with answers": Request(
                "POST", start.path, form={**(start.form or {}), "tools": yes}
            ),
        }

    def _continue(self, asked: Exchange, tools: list[dict[str, Any]]) -> Request:
        names = self.names(asked)
        form = {"tools": json.dumps(tools), "session_id": names["session"], "stream": "true"}
        return self._of_run(names["run"], "continue", form)

    def _of_run(self, run: str, verb: str, form: Mapping[str, str] | None = None) -> Request:
        return Request("POST", f"{self.options.path}/runs/{run}/{verb}", form=form)


def _tools(asked: Exchange) -> list[dict[str, Any]]:
    for frame in asked.frames:
        if frame.fields.get("event") == "RunPaused" and frame.fields.get("tools"):
            return list(frame.fields["tools"])
    raise NotShown(f"{asked} has no RunPaused with tools")


def _shapes(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    for index, frame in enumerate(streamed(exchange).frames):
        if frame.event != frame.fields.get("event"):
            yield f"frame {index} is {frame.event}, its event {frame.fields.get('event')}"
        elif not frame.fields.get("run_id"):
            yield f"frame {index}, {frame.event}, names no run"


def _says_cancelled(dialect: Dialect, cancelled: Cancelled) -> Iterator[str]:
    """Agno 3.1 sends RunCompleted after RunCancelled, so the last event does not say it."""
    names = [frame.fields.get("event") for frame in cancelled.stream.frames]
    if "RunCancelled" not in names:
        yield f"the events are {names[-3:]}"


SHAPES: Final = Rule(
    "shapes", Group.SHAPE, "A frame is named as its event, and names its run", done.STREAMS, _shapes
)

CANCELS: Final = Rule(
    "cancels",
    Group.CANCEL,
    "The stream of a run that is cancelled has RunCancelled",
    (done.CANCELLED,),
    _says_cancelled,
)

STATEMENTS: Final = table(
    Agno.name,
    (
        (Level.MUST, f"{_API}/create-agent-run", rules.IS_STREAM),
        (Level.MUST, f"{_API}/create-agent-run", rules.IS_JSON),
        (Level.MUST, f"{_API}/create-agent-run", SHAPES),
        (Level.MUST, _EVENTS, rules.BEGINS),
        (Level.MUST, _EVENTS, rules.CALLS_FIRST),
        (Level.SHOULD, _EVENTS, rules.ENDS_ONCE),
        (Level.SHOULD, _EVENTS, rules.CLOSES),
        (Level.MUST, _EVENTS, rules.COMPLETES),
        (Level.MUST, _EVENTS, rules.FAILS),
        (Level.SHOULD, _EVENTS, rules.ONCE),
        (Level.MUST, f"{_RUNNING}#cancelling-a-run", CANCELS),
        (Level.SHOULD, _RESUMES, rules.RESUMES),
        (Level.SHOULD, _RESUMES, rules.RESUMES_LIVE),
        (Level.SHOULD, "https://docs.agno.com/background-execution/overview", rules.GOES_ON),
        (Level.MUST, _PAUSES, rules.WAITS),
        (Level.MUST, _PAUSES, rules.APPROVES),
        (Level.MUST, _PAUSES, rules.REJECTS),
        (Level.MUST, f"{_API}/create-agent-run", rules.NOWHERE),
    ),
    rules.ASKING,
)
