"""Recorded streams of AG-UI servers as scenarios, and helpers to make events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from penstock.dialects.agui.decode import AguiDecoder
from penstock.dialects.base import AgentFacts, Draft, Pause
from penstock.sse import Frame
from support.recorded.goldens import Decisions, Scenario

GOLDEN = Path(__file__).parents[2] / "golden" / "agui"

APPROVE: dict[str, Any] = {"decision": "approve", "note": None, "value": None}
REJECT: dict[str, Any] = {"decision": "reject", "note": "no", "value": None}
RED: dict[str, Any] = {"decision": "approve", "note": None, "value": "red"}

# Runs of several requests: the files of the legs, and the decisions before each later leg.
CONTINUED: dict[str, tuple[list[str], list[Decisions]]] = {
    "pydantic_ai/approval_approved": (
        ["approval_interrupt", "approval_resume_approved"],
        [{"int-call_d1": APPROVE}],
    ),
    "pydantic_ai/approval_bad_payload": (
        ["approval_interrupt", "approval_resume_bad_payload"],
        [{"int-call_d1": APPROVE}],
    ),
    "pydantic_ai/approval_cancelled": (
        ["approval_interrupt", "approval_resume_cancelled"],
        [{"int-call_d1": REJECT}],
    ),
    "pydantic_ai/approval_denied": (
        ["approval_interrupt", "approval_resume_denied"],
        [{"int-call_d1": REJECT}],
    ),
    "pydantic_ai/frontend_tool": (
        ["frontend_tool_pending", "frontend_tool_answered"],
        [{"call_f1": RED}],
    ),
    "agno/approval": (["approval_pause", "approval_accept"], [{"call_approval": APPROVE}]),
    "agno/frontend": (["frontend_tool", "frontend_tool_answered"], [{"call_frontend": RED}]),
}
_CUT = frozenset({"pydantic_ai/abort"})


def scenarios() -> list[Scenario]:
    """Return every recording, either as a scenario by itself or as a leg of a run."""
    found, legs = [], set()
    for name, (files, decisions) in CONTINUED.items():
        folder = GOLDEN / name.split("/", maxsplit=1)[0]
        paths = [folder / f"{file}.sse" for file in files]
        legs.update(paths)
        found.append(Scenario(name, paths, decisions))
    for path in sorted(GOLDEN.glob("*/*.sse")):
        name = f"{path.parent.name}/{path.stem}"
        if path not in legs:
            cut = frozenset({1}) if name in _CUT else frozenset()
            found.append(Scenario(name, [path], cut=cut))
    return found


def decoder(*, drop: frozenset[str] = frozenset(), tools: str = "pick_color") -> AguiDecoder:
    """Return a decoder in its first leg; the client runs the tools that `tools` names."""
    facts = AgentFacts(
        id="assistant", name="Assistant", drop=drop, client_tools=frozenset(tools.split())
    )
    made = AguiDecoder(facts)
    made.open(1)
    return made


def decoder_for(scenario: Scenario) -> AguiDecoder:
    """Return a decoder with the default configuration, which drops RAW events."""
    return decoder(drop=frozenset({"RAW"}))


def event(type_: str, **fields: Any) -> Frame:
    """Return a frame with one event."""
    return Frame(orjson.dumps({"type": type_, **fields}))


def feed(made: AguiDecoder, *frames: Frame) -> list[Draft | Pause]:
    """Return what the decoder makes of the frames."""
    return [draft for each in frames for draft in made.feed(each)]


def types(drafts: list[Draft | Pause]) -> list[str]:
    """Return the drafts' types, with `pause` for a pause."""
    return [draft.type if isinstance(draft, Draft) else "pause" for draft in drafts]


def only(drafts: list[Draft | Pause], event_type: str) -> dict[str, Any]:
    """Return the data of the only draft of that type."""
    (found,) = [each for each in drafts if isinstance(each, Draft) and each.type == event_type]
    return found.data


def pause_of(drafts: list[Draft | Pause]) -> Pause:
    """Return the only pause in the list."""
    (found,) = [draft for draft in drafts if isinstance(draft, Pause)]
    return found
