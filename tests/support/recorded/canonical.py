"""The recorded runs as canonical events, as input of encoders.

Each recording passes the normalizer's fold with all its legs. The decisions between the legs are
those of the recording's continue requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from penstock.dialects.base import AgentKind
from penstock.dialects.decoders import DECODERS
from penstock.events import CATALOGUE, InvalidEvent, typed_data
from penstock_normalizer.fold.envelope import CanonicalEvent
from penstock_normalizer.fold.run_fold import RunFold
from support.fakes.raw import RUN_ID, Frames
from support.recorded.agno import scenarios as agno_scenarios
from support.recorded.agui import scenarios as agui_scenarios
from support.recorded.goldens import Decisions, Scenario

GOLDEN = Path(__file__).parents[2] / "golden"
_KINDS: dict[str, AgentKind] = {"team": "team", "wf": "workflow"}


@dataclass(frozen=True)
class Recorded:
    """One recorded run. `kind` is the kind of its agent; `decisions` has the decisions by leg."""

    name: str
    protocol: str
    kind: AgentKind
    events: list[dict[str, Any]]
    decisions: dict[int, dict[str, Any]]

    @property
    def types(self) -> list[str]:
        """The events' types."""
        return [type_of(event) for event in self.events]

    def data(self, type: str) -> list[dict[str, Any]]:
        """Return the data of all events of a type."""
        return [event["data"] for event in self.events if type_of(event) == type]


def type_of(event: dict[str, Any]) -> str:
    """Return `category.action` of an envelope."""
    return f"{event['event']['category']}.{event['event']['action']}"


def event(type: str, data: dict[str, Any], sequence: int = 7, **fields: Any) -> dict[str, Any]:
    """Return an envelope with this data."""
    category, _, action = type.partition(".")
    return {
        "run_id": RUN_ID,
        "timestamp": f"2026-01-02T03:04:{sequence % 60:02d}.500Z",
        "sequence": sequence,
        "source": {
            "agent_id": "writer",
            "agent_type": "agent",
            "agent_name": "Writer",
            "team_name": None,
        },
        "event": {"category": category, "action": action},
        "data": data,
        "session_id": "s-1",
        "leg": 1,
        **fields,
    }


def samples() -> Iterator[dict[str, Any]]:
    """Yield the example of every event type, whole and with its required fields only."""
    for name, row in CATALOGUE.items():
        whole = dict(row.note.example)
        required = {
            field.alias or key
            for key, field in row.model.model_fields.items()
            if field.is_required()
        }
        yield event(name, whole)
        least = {key: value for key, value in whole.items() if key in required}
        with suppress(InvalidEvent):  # a model may need one of several fields
            typed_data(name, least)
            yield event(name, least)


def run(*said: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a run: its start, followed by these events."""
    started = event("lifecycle.started", {"agent": "writer", "user_id": "u-1"}, 1, source=None)
    return [started, *(event(type, data, at) for at, (type, data) in enumerate(said, 2))]


@cache
def recorded_runs() -> list[Recorded]:
    """Return every golden recording of Agno and ADK."""
    return [
        *(folded(scenario, "agno", kind_of(scenario)) for scenario in agno_scenarios()),
        *(folded(scenario, "adk", "agent") for scenario in adk_scenarios()),
    ]


@cache
def every_recorded_run() -> list[Recorded]:
    """Return every golden recording, also of AG-UI servers, where a client has a tool."""
    agui = (folded(each, "agui", client_tools=["pick_color"]) for each in agui_scenarios())
    return [*recorded_runs(), *agui]


def recorded(name: str) -> Recorded:
    """Return one recording by protocol, version and name: `agno/3.1.10/simple_text`."""
    return next(each for each in recorded_runs() if each.name == name)


def kind_of(scenario: Scenario) -> AgentKind:
    return _KINDS.get(scenario.name.split("/")[1].split("_", maxsplit=1)[0], "agent")


def folded(scenario: Scenario, protocol: str, kind: AgentKind = "agent", **facts: Any) -> Recorded:
    """Return a recording as a run of canonical events, of a leg that was opened with `facts`."""
    frames = Frames(protocol, kind=kind, **facts)
    fold = RunFold(RUN_ID, DECODERS)
    events: list[CanonicalEvent] = []
    decisions: dict[int, dict[str, Any]] = {}
    for leg, path in enumerate(scenario.legs, 1):
        if leg == 1:
            events += fold.feed(frames.open())
        elif fold.approval_id is None:
            break  # the recording continues a run that has ended
        else:
            decisions[leg] = dict(scenario.decided(leg))
            for each in _continued(frames, fold.approval_id, decisions[leg]):
                events += fold.feed(each)
        events += fold.feed(frames.bytes(path.read_bytes()))
        events += fold.feed(frames.end())
        if fold.approval_id is not None:
            paused = {"reason": "approval_required", "approval_id": fold.approval_id}
            events += fold.feed(frames.event("lifecycle.paused", **paused))
    bodies = [orjson.loads(placed.body) for placed in events]
    return Recorded(f"{protocol}/{scenario.name}", protocol, kind, bodies, decisions)


def _continued(frames: Frames, approval_id: str, decided: Decisions) -> Iterator[Any]:
    items = [{"item_id": item_id, **decision} for item_id, decision in decided.items()]
    facts: dict[str, Any] = {
        "approval_id": approval_id,
        "outcome": "mixed",
        "by": "u-1",
        "automatic": False,
    }
    yield frames.event("approval.decided", **facts, items=items)
    frames.leg += 1
    opened = {"agent": "assistant", "approval_id": approval_id, "items": items}
    yield frames.frame("open", json.dumps(opened).encode())


def adk_scenarios() -> Iterator[Scenario]:
    for first in sorted((GOLDEN / "adk").glob("*/*.sse")):
        name = first.stem
        if "_2_answer" in name or "_3_" in name:
            continue
        start = name.removesuffix("_1_request")
        legs = [first, *sorted(first.parent.glob(f"{start}_2_answer*.sse"))]
        asked = [_adk_decisions(leg.with_suffix(".req.json")) for leg in legs[1:]]
        yield Scenario(f"{first.parent.name}/{start}", legs, asked)


def _adk_decisions(request: Path) -> Decisions:
    message = json.loads(request.read_text("utf-8"))["newMessage"]
    answers = [part["functionResponse"] for part in message["parts"]]
    return {answer["id"]: _adk_decision(answer["response"]) for answer in answers}


def _adk_decision(response: dict[str, Any]) -> dict[str, Any]:
    confirmed = response.get("confirmed", True)
    value = response.get("payload") if "confirmed" in response else response
    return {"decision": "approve" if confirmed else "reject", "note": None, "value": value}
