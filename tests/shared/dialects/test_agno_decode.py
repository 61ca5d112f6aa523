"""Agno's frames to drafts: every recorded stream, and each decision by its name."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.goldens import Scenario, check, replay

from penstock.dialects.agno.decode import AgnoDecoder
from penstock.dialects.base import AgentFacts

GOLDEN = Path(__file__).parents[2] / "golden" / "agno"

APPROVE = {"decision": "approve", "note": None, "value": None}
REJECT = {"decision": "reject", "note": "no", "value": None}


def answer(value: object) -> dict[str, object]:
    return {"decision": "approve", "note": None, "value": value}


# The continues of a first leg: what was decided, and the file that answered it.
CONTINUES: dict[str, list[tuple[str, dict[str, dict[str, object]]]]] = {
    "confirm2_one_rejected": [
        (
            "continue",
            {"toolu_02_0_create_document": APPROVE, "toolu_02_1_delete_document": REJECT},
        )
    ],
    "confirm_approve": [("continue", {"toolu_02_0_create_document": APPROVE})],
    "confirm_reject_note": [
        (
            "continue",
            {"toolu_02_0_create_document": {**REJECT, "note": 'not allowed: use "draft" instead'}},
        )
    ],
    "seed_confirm": [("continue", {"toolu_02_0_create_document": APPROVE})],
    "bg_confirm": [("continue_bg", {"toolu_02_0_create_document": APPROVE})],
    "confirm_mix_auto_and_confirm": [("continue", {"toolu_02_1_create_document": APPROVE})],
    "confirm_tool_raises": [("continue", {"toolu_02_0_confirm_bad": APPROVE})],
    "confirm_twice": [
        ("continue1", {"toolu_02_0_create_document": APPROVE}),
        ("continue2", {"toolu_04_0_delete_document": APPROVE}),
    ],
    "get_input": [("continue", {"toolu_02_0_get_user_input": answer({"city": "Ada"})})],
    "feedback": [("continue", {"toolu_02_0_ask_user": answer({"Which city?": ["Paris"]})})],
    "text_then_confirm": [("continue", {"toolu_02_0_create_document": APPROVE})],
    "team_leader_confirm": [("continue", {"toolu_02_0_create_document": APPROVE})],
    "team_member_reject": [("continue", {"toolu_02_0_create_document": REJECT})],
    "wf_agent_confirm": [("continue", {"toolu_01_0_create_document": APPROVE})],
    "wf_agent_reject": [("continue", {"toolu_01_0_create_document": REJECT})],
    "wf_input": [("continue", {"526a0fb4-d3a9-4749-aa5d-5921dd63918b": answer({"who": "Ada"})})],
    "wf_hitl_rejected": [("continue", {"12c778db-e44c-484b-9d72-5ecc80ea6bcc": REJECT})],
    "external_execution": [("continue", {"toolu_02_0_run_shell": answer("file1\nfile2")})],
    "team_member_confirm": [("continue_requirements", {"toolu_02_0_create_document": APPROVE})],
    "user_input": [("continue", {"toolu_02_0_send_email": answer({"to_address": "a@b.c"})})],
    "wf_hitl": [("continue", {"48f12109-2cf5-4228-ad32-08422caa0ce4": APPROVE})],
    "wrong_tool_call_id": [("continue", {"toolu_02_0_create_document": APPROVE})],
}


def kind_of(name: str) -> str:
    return {"team": "team", "wf": "workflow"}.get(name.split("_")[0], "agent")


def scenarios() -> list[Scenario]:
    """Every recorded start with its continues; a continue without its start stands alone."""
    found = []
    for version in sorted(folder for folder in GOLDEN.iterdir() if folder.is_dir()):
        files = {path.stem: path for path in version.glob("*.sse")}
        for name in sorted(files):
            start, _, rest = name.partition("__")
            if rest and start in files and (start in CONTINUES and rest != "double_continue"):
                continue  # a later leg of its start's scenario
            legs = [files[name]]
            decisions = []
            for suffix, decided in CONTINUES.get(name, []):
                legs.append(files[f"{name}__{suffix}"])
                decisions.append(decided)
            found.append(Scenario(f"{version.name}/{name}", legs, decisions))
    return found


SCENARIOS = scenarios()
each_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


def decoder(name: str = "agent") -> AgnoDecoder:
    return AgnoDecoder(AgentFacts(id="assistant", name="Assistant", kind=kind_of(name)))


def replayed(scenario: Scenario, *, chunk_bytes: int = 1 << 16, restart: bool = False) -> list[str]:
    name = scenario.name.split("/")[1]
    return replay(lambda: decoder(name), scenario, chunk_bytes=chunk_bytes, restart=restart)


@each_scenario
def test_a_recorded_stream_gives_its_golden_drafts(scenario: Scenario) -> None:
    check(GOLDEN / f"{scenario.name}.golden.jsonl", replayed(scenario))
