"""The executions contract: executions-sse.md."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Final

from penstock_conformance import rules
from penstock_conformance import scenarios as done
from penstock_conformance.dialect import Dialect, How, Seen, What
from penstock_conformance.exchange import Exchange, Frame, Request, with_fields, without
from penstock_conformance.statements import Group, Level, Rule, table
from penstock_conformance.trial import streamed

_CONTRACT: Final = "deploy/contract/conformance.md#executions-ssemd"
_API: Final = "/api/service/v1/executions"
_KEYS: Final = frozenset({"run_id", "timestamp", "sequence", "source", "event", "data"})
_HOW: Final = {
    "lifecycle.completed": How.COMPLETED,
    "lifecycle.failed": How.FAILED,
    "lifecycle.cancelled": How.CANCELLED,
}


class Executions(Dialect):
    """Triggers and cancels. `--agent` is the topology's number."""

    name = "executions"
    stays_open = True
    no_cancel = frozenset()  # the contract has the request

    def start(self, message: str, session: str) -> Request:
        topology = int(self.options.agent or 0)
        body = {"topologyId": topology, "userMessage": message}
        return Request("POST", f"{_API}/trigger", body)

    def seen(self, frame: Frame, index: int) -> Iterator[Seen]:
        name, data = named(frame), frame.fields.get("data") or {}
        match name:
            case "lifecycle.started":
                yield Seen(index, What.BEGIN)
            case "llm.stream":
                yield Seen(index, What.TEXT, text=str(data.get("content")))
            case "llm.tool_call":
                yield Seen(index, What.CALL, str(data.get("tool")))
            case "llm.tool_result":
                yield Seen(index, What.RESULT, str(data.get("tool")), str(data.get("result")))
            case "lifecycle.paused":
                yield Seen(index, What.ASK)
            case _ if name in _HOW:
                yield Seen(index, What.END, how=_HOW[name])

    def incomplete(self, start: Request) -> Mapping[str, Request]:
        return {
            "no topologyId": without(start, "topologyId"),
            "a topologyId that is a text": with_fields(start, topologyId="1"),
            "no userMessage": without(start, "userMessage"),
            "an empty userMessage": with_fields(start, userMessage=" "),
        }

    def unknown_agent(self) -> Request:
        return with_fields(self.start("Hello", ""), topologyId=2**31 - 1)

    def names(self, exchange: Exchange) -> Mapping[str, str]:
        for frame in exchange.frames:
            if "run_id" in frame.fields:
                return {"run": str(frame.fields["run_id"])}
        return {}

    def cancel(self, exchange: Exchange) -> Request:
        return _cancel(self.names(exchange).get("run", ""))

    def cancel_unknown(self) -> Request:
        return _cancel(str(uuid.uuid4()))


def _cancel(run_id: str) -> Request:
    accept = {"accept": "application/json"}
    return Request("POST", f"{_API}/cancel", {"runId": run_id}, headers=accept)


def named(frame: Frame) -> str:
    event = frame.fields.get("event")
    return f"{event.get('category')}.{event.get('action')}" if isinstance(event, dict) else ""


def _shapes(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    for index, frame in enumerate(streamed(exchange).frames):
        if frame.fields.keys() != _KEYS:
            yield f"frame {index} has the keys {sorted(frame.fields)}"
        elif frame.event != named(frame):
            yield f"frame {index} is {frame.event}, its event {named(frame)}"


def _same_run(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    runs = {frame.fields.get("run_id") for frame in streamed(exchange).frames}
    if len(runs) != 1:
        yield f"the frames are of the runs {runs}"


def _numbers(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    found = [frame.fields.get("sequence") for frame in streamed(exchange).frames]
    if found != list(range(1, len(found) + 1)):
        yield f"the numbers are {found[:20]}"


def _summary(dialect: Dialect, exchange: Exchange) -> Iterator[str]:
    for frame in streamed(exchange).frames:
        if named(frame) == "lifecycle.completed" and not frame.fields["data"].get("summary"):
            yield "the end has no summary"


SHAPES: Final = Rule(
    "shapes",
    Group.SHAPE,
    "A frame has the six keys, and is named as its event",
    done.STREAMS,
    _shapes,
)
ONE_RUN: Final = Rule("one-run", Group.SHAPE, "All frames have one run_id", done.STREAMS, _same_run)
NUMBERS: Final = Rule(
    "numbers", Group.GAPS, "sequence counts from 1 without gaps", done.STREAMS, _numbers
)
SUMMARY: Final = Rule("summary", Group.ENDS, "The end has the summary", (done.TEXT,), _summary)

STATEMENTS: Final = table(
    Executions.name,
    tuple(
        (level, f"{_CONTRACT} ({number})", rule)
        for level, number, rule in (
            (Level.MUST, "EX1", rules.IS_STREAM),
            (Level.MUST, "EX7", rules.IS_JSON),
            (Level.MUST, "EX8, EX9", SHAPES),
            (Level.MUST, "EX10", ONE_RUN),
            (Level.MUST, "EX12", NUMBERS),
            (Level.MUST, "EX16", rules.BEGINS),
            (Level.MUST, "EX17", SUMMARY),
            (Level.MUST, "EX22, EX23", rules.CALLS_FIRST),
            (Level.MUST, "EX29", rules.ENDS_ONCE),
            (Level.MUST, "EX29", rules.CLOSES),
            (Level.MUST, "EX17", rules.COMPLETES),
            (Level.MUST, "EX18", rules.FAILS),
            (Level.MUST, "EX30", rules.WAITS),
            (Level.MUST, "EX31", rules.GOES_ON),
            (Level.MUST, "EX34", rules.CANCELS),
            (Level.MUST, "EX36", rules.CANCELS_AGAIN),
            (Level.MUST, "EX37", rules.CANCELS_UNKNOWN),
            (Level.MUST, "EX3, EX4, EX6", rules.INVALID),
            (Level.MUST, "EX5", rules.NOWHERE),
        )
    ),
    rules.COMMON,
)
