"""Agno's recorded streams as scenarios, and helpers to make frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from penstock.dialects.agno.decode import AgnoDecoder
from penstock.dialects.base import AgentFacts, AgentKind, Draft, Pause
from penstock.sse import Frame
from support.recorded.goldens import Decisions, Scenario

GOLDEN = Path(__file__).parents[2] / "golden" / "agno"

APPROVE: dict[str, Any] = {"decision": "approve", "note": None, "value": None}
REJECT: dict[str, Any] = {"decision": "reject", "note": "no", "value": None}


def answer(value: Any) -> dict[str, Any]:
    """Return an approval with the requested value."""
    return {**APPROVE, "value": value}


# The fields of a tool that waits for a confirmation.
CONFIRM: dict[str, Any] = {"requires_confirmation": True, "confirmed": None}


# The continue streams after a first leg: the file's suffix, and the decisions before it.
CONTINUES: dict[str, list[tuple[str, Decisions]]] = {
    "bg_confirm": [("continue_bg", {"toolu_02_0_create_document": APPROVE})],
    "confirm2_one_rejected": [
        (
            "continue",
            {"toolu_02_0_create_document": APPROVE, "toolu_02_1_delete_document": REJECT},
        )
    ],
    "confirm_approve": [("continue", {"toolu_02_0_create_document": APPROVE})],
    "confirm_mix_auto_and_confirm": [("continue", {"toolu_02_1_create_document": APPROVE})],
    "confirm_reject_note": [
        (
            "continue",
            {"toolu_02_0_create_document": REJECT | {"note": 'not allowed: use "draft" instead'}},
        )
    ],
    "confirm_tool_raises": [("continue", {"toolu_02_0_confirm_bad": APPROVE})],
    "confirm_twice": [
        ("continue1", {"toolu_02_0_create_document": APPROVE}),
        ("continue2", {"toolu_04_0_delete_document": APPROVE}),
    ],
    "external_execution": [("continue", {"toolu_02_0_run_shell": answer("file1\nfile2")})],
    "feedback": [("continue", {"toolu_02_0_ask_user": answer({"Which city?": ["Paris"]})})],
    "get_input": [("continue", {"toolu_02_0_get_user_input": answer({"city": "Ada"})})],
    "seed_confirm": [("continue", {"toolu_02_0_create_document": APPROVE})],
    "team_leader_confirm": [("continue", {"toolu_02_0_create_document": APPROVE})],
    "team_member_confirm": [("continue_requirements", {"toolu_02_0_create_document": APPROVE})],
    "team_member_reject": [("continue", {"toolu_02_0_create_document": REJECT})],
    "text_then_confirm": [("continue", {"toolu_02_0_create_document": APPROVE})],
    "user_input": [("continue", {"toolu_02_0_send_email": answer({"to_address": "a@b.c"})})],
    "wf_agent_confirm": [("continue", {"toolu_01_0_create_document": APPROVE})],
    "wf_agent_reject": [("continue", {"toolu_01_0_create_document": REJECT})],
    "wf_hitl": [("continue", {"48f12109-2cf5-4228-ad32-08422caa0ce4": APPROVE})],
    "wf_hitl_rejected": [("continue", {"7351d787-405d-4253-9ace-165cf8cca9a0": REJECT})],
    "wf_input": [("continue", {"526a0fb4-d3a9-4749-aa5d-5921dd63918b": answer({"who": "Ada"})})],
    "wrong_tool_call_id": [("continue", {"toolu_02_0_create_document": APPROVE})],
}

_KINDS: dict[str, AgentKind] = {"team": "team", "wf": "workflow"}


def scenarios() -> list[Scenario]:
    """Return every recorded start with its continues.

    A continue without a recorded start is a scenario by itself.
    """
    found = []
    for version in sorted(folder for folder in GOLDEN.iterdir() if folder.is_dir()):
        files = {path.stem: path for path in sorted(version.glob("*.sse"))}
        later = {f"{name}__{suffix}" for name, legs in CONTINUES.items() for suffix, _ in legs}
        for name, start in files.items():
            if name in later:
                continue
            continues = CONTINUES.get(name, [])
            legs = [start, *(files[f"{name}__{suffix}"] for suffix, _ in continues)]
            found.append(Scenario(f"{version.name}/{name}", legs, [made for _, made in continues]))
    return found


def decoder_for(scenario: Scenario) -> AgnoDecoder:
    """Return a decoder for the configuration of the recorded agent, team or workflow."""
    first = scenario.name.split("/")[1].split("_", maxsplit=1)[0]
    return decoder(_KINDS.get(first, "agent"))


def decoder(kind: AgentKind = "agent", *, drop: frozenset[str] = frozenset()) -> AgnoDecoder:
    """Return a decoder in its first leg."""
    made = AgnoDecoder(AgentFacts(id="assistant", name="Assistant", kind=kind, drop=drop))
    made.open(1)
    return made


def frame(event: str, run_id: str | None = "r1", **fields: Any) -> Frame:
    """Return an agent's frame. `run_id=None` or `agent_id=None` leaves that field out."""
    body = {"event": event, "run_id": run_id, "agent_id": "a1", "agent_name": "Ann"} | fields
    given = {name: value for name, value in body.items() if value is not None}
    return Frame(orjson.dumps(given), event)


def team(event: str, run_id: str = "t1", **fields: Any) -> Frame:
    """Return a team's frame."""
    about = {"agent_id": None, "agent_name": None, "team_id": "crew", "team_name": "Crew"}
    return frame(f"Team{event}", run_id, **about | fields)


def member(event: str, run_id: str = "m1", **fields: Any) -> Frame:
    """Return a frame of a member of the team's run `t1`."""
    return frame(event, run_id, parent_run_id="t1", **fields)


def workflow(event: str, run_id: str | None = "w1", **fields: Any) -> Frame:
    """Return a workflow's frame."""
    about = {
        "agent_id": None,
        "agent_name": None,
        "workflow_id": "flow",
        "workflow_name": "Flow",
    }
    return frame(event, run_id, **about | fields)


def tool(call_id: str | None = "c1", name: str = "search", **fields: Any) -> dict[str, Any]:
    """Return a tool object as Agno's frames contain it."""
    return {"tool_call_id": call_id, "tool_name": name, "tool_args": {"q": 1}} | fields


def feed(made: AgnoDecoder, *frames: Frame) -> list[Draft | Pause]:
    """Return what the decoder makes of the frames."""
    return [draft for each in frames for draft in made.feed(each)]


def types(drafts: list[Draft | Pause]) -> list[str]:
    """Return the drafts' types, with `pause` for a pause."""
    return [draft.type if isinstance(draft, Draft) else "pause" for draft in drafts]


def only(drafts: list[Draft | Pause], event_type: str) -> list[Draft]:
    """Return the drafts of one type."""
    return [draft for draft in drafts if isinstance(draft, Draft) and draft.type == event_type]


def pause_of(drafts: list[Draft | Pause]) -> Pause:
    """Return the only pause in the list."""
    (found,) = [draft for draft in drafts if isinstance(draft, Pause)]
    return found


def data(draft: Draft | Pause) -> dict[str, Any]:
    """Return the data of an item that must be a draft."""
    assert isinstance(draft, Draft)
    return draft.data


def paused_agent(*tools: dict[str, Any]) -> tuple[AgnoDecoder, Pause]:
    """Return a decoder in its second leg, after a pause for these tools."""
    made = decoder()
    pause = pause_of(feed(made, frame("RunStarted"), frame("RunPaused", tools=list(tools))))
    made.open(2)
    return made, pause
