"""Recorded streams of AG-UI servers as scenarios, and events of one's own."""

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

# A run of several requests: the files of its legs, and what was decided before each later one.
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
    """Every recording, alone or as a leg of a run."""
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
    """A decoder in its first leg; the client runs the tools that are named."""
    facts = AgentFacts(
        id="assistant", name="Assistant", drop=drop, client_tools=frozenset(tools.split())
    )
    made = AguiDecoder(facts)
    made.open(1)
    return made


def decoder_for(scenario: Scenario) -> AguiDecoder:
    """As the configuration makes it unless it says otherwise: without RAW."""
    return decoder(drop=frozenset({"RAW"}))


def event(type_: str, **fields: Any) -> Frame:
    """A frame with one event."""
    return Frame(orjson.dumps({"type": type_, **fields}))


def feed(made: AguiDecoder, *frames: Frame) -> list[Draft | Pause]:
    """What the frames come to."""
    return [draft for each in frames for draft in made.feed(each)]


def types(drafts: list[Draft | Pause]) -> list[str]:
    """The drafts' types, `pause` for a pause."""
    return [draft.type if isinstance(draft, Draft) else "pause" for draft in drafts]


def only(drafts: list[Draft | Pause], event_type: str) -> dict[str, Any]:
    """The data of the one draft of that type."""
    (found,) = [each for each in drafts if isinstance(each, Draft) and each.type == event_type]
    return found.data


def pause_of(drafts: list[Draft | Pause]) -> Pause:
    """The one pause among them."""
    (found,) = [draft for draft in drafts if isinstance(draft, Pause)]
    return found
