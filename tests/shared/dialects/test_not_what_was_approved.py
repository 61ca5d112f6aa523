"""An agent server that runs another call than the approved one, in altered recordings."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.dialects.adk.decode import AdkDecoder
from penstock.dialects.agno.decode.calls import Calls
from penstock.dialects.approvals import MAX_SHOWN_BYTES, difference, have_same_args
from penstock.dialects.base import AgentFacts, Decoder, Draft
from penstock.events import typed_data
from support.drive.for_each import for_each
from support.recorded import agno, agui
from support.recorded.goldens import Scenario, replay

ADK = Path(__file__).parents[2] / "golden" / "adk"
ADK_CALL = "adk-0577edc3-91c5-42ea-ac80-cf16391696d6"
EDITED = {"doc_id": "d2"}

Alter = Callable[[bytes], bytes]


def adk() -> AdkDecoder:
    return AdkDecoder(AgentFacts(id="assistant"))


def recorded(name: str) -> tuple[Callable[[], Decoder], Scenario]:
    """Return a recorded run, and a function that makes its decoder."""
    protocol, _, run = name.partition("/")
    if protocol == "adk":
        legs = [ADK / f"{run}_{leg}.sse" for leg in ("1_request", "2_answer")]
        answer = json.loads(legs[1].with_suffix(".req.json").read_text("utf-8"))
        item_id = answer["newMessage"]["parts"][0]["functionResponse"]["id"]
        return adk, Scenario(run, legs, [{item_id: agno.APPROVE}])
    found = {each.name: each for each in (agno if protocol == "agno" else agui).scenarios()}[run]
    make = agno.decoder_for if protocol == "agno" else agui.decoder_for
    return lambda: make(found), found


def run(name: str, path: Path, alter: Alter, *, restart: bool = False) -> list[dict[str, Any]]:
    """Return the drafts of a recorded run whose last leg is altered."""
    make, scenario = recorded(name)
    *before, last = scenario.legs
    altered = path / "altered.sse"
    altered.write_bytes(alter(last.read_bytes()))
    assert altered.read_bytes() != last.read_bytes(), "the recording has nothing to alter"
    lines = replay(make, replace(scenario, legs=[*before, altered]), restart=restart)
    return [json.loads(line) for line in lines]


def instead(old: str, new: str) -> Alter:
    return lambda body: body.replace(old.encode(), new.encode())


def of(drafts: list[dict[str, Any]], type: str) -> list[dict[str, Any]]:
    return [each["data"] for each in drafts if each.get("type") == type]


def warned(drafts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [
        data for data in of(drafts, "system.warning") if data["code"] == "not_what_was_approved"
    ]
    for data in found:
        typed_data("system.warning", data)
    return found


def again_with(call: dict[str, Any]) -> Alter:
    """Insert an ADK event that repeats the approved call before its response."""
    event = {
        "content": {"parts": [{"functionCall": call}], "role": "model"},
        "invocationId": "e-1",
        "author": "demo_agent",
        "id": "again",
        "timestamp": 1.0,
    }
    return lambda body: b"data: " + json.dumps(event).encode() + b"\n\n" + body


AGNO_ARGS = ('"tool_args":{"title":"Spike Test"}', '"tool_args":{"title":"Another"}')
AGUI_ARGS = ('{\\"path\\": \\"/tmp/x\\"}', '{\\"path\\": \\"/etc\\"}')

# The recorded run, the change of its last leg, the approved call, and the call that ran.
ANOTHER: dict[str, tuple[str, Alter, tuple[str, Any], tuple[str, Any]]] = {
    "Agno 2.3, other arguments": (
        "agno/2.3.18/confirm_approve",
        instead(*AGNO_ARGS),
        ("create_document", {"title": "Spike Test"}),
        ("create_document", {"title": "Another"}),
    ),
    "Agno 3.1, other arguments": (
        "agno/3.1.10/confirm_approve",
        instead(*AGNO_ARGS),
        ("create_document", {"title": "Spike Test"}),
        ("create_document", {"title": "Another"}),
    ),
    "Agno 3.1, another tool": (
        "agno/3.1.10/confirm_approve",
        instead('"tool_name":"create_document"', '"tool_name":"delete_document"'),
        ("create_document", {"title": "Spike Test"}),
        ("delete_document", {"title": "Spike Test"}),
    ),
    "Agno 3.1, a member of a team": (
        "agno/3.1.10/team_member_confirm",
        instead('"tool_name":"create_document"', '"tool_name":"delete_document"'),
        ("create_document", {"title": "Team Doc"}),
        ("delete_document", {"title": "Team Doc"}),
    ),
    "Agno 3.1, other than a person filled in": (
        "agno/3.1.10/user_input",
        instead('"to_address":"a@b.c"}', '"to_address":"mallory@b.c"}'),
        ("send_email", {"subject": "Hi", "body": "Body", "to_address": "a@b.c"}),
        ("send_email", {"subject": "Hi", "body": "Body", "to_address": "mallory@b.c"}),
    ),
    "Agno 3.1, other than the model filled in": (
        "agno/3.1.10/user_input",
        instead('"tool_args":{"subject":"Hi"', '"tool_args":{"subject":"Pay"'),
        ("send_email", {"subject": "Hi", "body": "Body", "to_address": "a@b.c"}),
        ("send_email", {"subject": "Pay", "body": "Body", "to_address": "a@b.c"}),
    ),
    "ADK 1.16, another tool": (
        "adk/1.16.0/confirm_stream",
        instead('"name":"delete_file"', '"name":"wipe_disk"'),
        ("delete_file", {"path": "/etc/passwd"}),
        ("wipe_disk", {"path": "/etc/passwd"}),
    ),
    "ADK 2.13, another tool": (
        "adk/2.13.0/confirm_stream",
        instead('"name":"delete_file"', '"name":"wipe_disk"'),
        ("delete_file", {"path": "/etc/passwd"}),
        ("wipe_disk", {"path": "/etc/passwd"}),
    ),
    "ADK 2.13, other arguments": (
        "adk/2.13.0/confirm_stream",
        again_with({"id": ADK_CALL, "name": "delete_file", "args": {"path": "/"}}),
        ("delete_file", {"path": "/etc/passwd"}),
        ("delete_file", {"path": "/"}),
    ),
    "AG-UI, other arguments": (
        "agui/agno/approval",
        instead(*AGUI_ARGS),
        ("delete_file", {"path": "/tmp/x"}),
        ("delete_file", {"path": "/etc"}),
    ),
    "AG-UI, another tool": (
        "agui/agno/approval",
        instead('"toolCallName":"delete_file"', '"toolCallName":"wipe_disk"'),
        ("delete_file", {"path": "/tmp/x"}),
        ("wipe_disk", {"path": "/tmp/x"}),
    ),
}


@pytest.mark.parametrize("restart", [False, True], ids=["one decoder", "a decoder each leg"])
@pytest.mark.parametrize("case", ANOTHER)
def test_a_call_that_ran_with_other_arguments_than_approved_is_emitted(
    tmp_path: Path, case: str, restart: bool
) -> None:
    name, alter, approved, ran = ANOTHER[case]
    drafts = run(name, tmp_path, alter, restart=restart)
    [data] = warned(drafts)
    detail = data["detail"]
    assert (detail["approved"]["tool"], detail["approved"]["args"]) == approved
    assert (detail["ran"]["tool"], detail["ran"]["args"]) == ran
    assert detail["approved"]["args_digest"] != detail["ran"]["args_digest"] or (
        approved[0] != ran[0]
    )
    assert ran[0] in data["message"]
    assert approved[0] in data["message"]
    call_id = detail["tool_call_id"]
    assert [each["tool_call_id"] for each in of(drafts, "llm.tool_call")].count(call_id) == 1
    [result] = [each for each in of(drafts, "llm.tool_result") if each["tool_call_id"] == call_id]
    assert result["tool"] == ran[0]
    said = [each for each in of(drafts, "llm.tool_progress") if "tool" in each]
    assert all((each["tool"], each["args"]) == ran for each in said)
    places = {
        each["type"]: place
        for place, each in enumerate(drafts)
        if each.get("data") in (data, result) and "type" in each
    }
    assert places["system.warning"] < places["llm.tool_result"]
    if not name.startswith("adk") or "arguments" in case:
        assert said


THE_SAME: dict[str, tuple[str, Alter]] = {
    "another order of keys": (
        "agno/3.1.10/user_input",
        instead(
            '"tool_args":{"subject":"Hi","body":"Body"', '"tool_args":{"body":"Body","subject":"Hi"'
        ),
    ),
    "an argument that is null": (
        "agno/3.1.10/confirm_approve",
        instead('{"title":"Spike Test"}', '{"title":"Spike Test","folder":null}'),
    ),
    "arguments that are not repeated": (
        "agno/3.1.10/confirm_approve",
        instead('"tool_args":{"title":"Spike Test"},', ""),
    ),
    "white space": (
        "agui/agno/approval",
        instead(AGUI_ARGS[0], '{ \\"path\\":\\"/tmp/x\\" }'),
    ),
    "told again as it was": (
        "adk/2.13.0/confirm_stream",
        again_with(
            {"id": ADK_CALL, "name": "delete_file", "args": {"path": "/etc/passwd", "force": None}}
        ),
    ),
}


@pytest.mark.parametrize("case", THE_SAME)
def test_what_a_framework_does_to_a_call_is_no_difference(tmp_path: Path, case: str) -> None:
    name, alter = THE_SAME[case]
    drafts = run(name, tmp_path, alter)
    assert warned(drafts) == []
    make, scenario = recorded(name)
    plain = [json.loads(line) for line in replay(make, scenario)]
    assert of(drafts, "llm.tool_call") == of(plain, "llm.tool_call")


ALL = [
    *(f"agno/{each.name}" for each in agno.scenarios()),
    *(f"agui/{each.name}" for each in agui.scenarios()),
]


@for_each("name", [name for name in ALL if len(recorded(name)[1].legs) > 1])
def test_no_recorded_approval_is_taken_for_another_one(name: str) -> None:
    make, scenario = recorded(name)
    assert warned([json.loads(line) for line in replay(make, scenario)]) == []


def test_arguments_that_a_person_edited_are_what_was_approved() -> None:
    def told(args: dict[str, Any]) -> list[dict[str, Any]]:
        made = agui.decoder()
        schema = {"type": "object", "properties": {"approved": {}, "editedArgs": {}}}
        interrupt = {"id": "i", "reason": "tool_call", "toolCallId": "c", "responseSchema": schema}
        call = [
            agui.event("TOOL_CALL_START", toolCallId="c", toolCallName="delete"),
            agui.event("TOOL_CALL_ARGS", toolCallId="c", delta='{"doc_id":"d1"}'),
            agui.event("TOOL_CALL_END", toolCallId="c"),
        ]
        outcome = {"type": "interrupt", "interrupts": [interrupt]}
        agui.feed(made, *call, agui.event("RUN_FINISHED", outcome=outcome))
        made.open(2)
        made.decided({"i": {"decision": "approve", "value": EDITED}})
        call[1] = agui.event("TOOL_CALL_ARGS", toolCallId="c", delta=json.dumps(args))
        drafts = agui.feed(made, *call)
        return [
            each.data
            for each in drafts
            if isinstance(each, Draft) and each.type == "system.warning"
        ]

    assert told({"doc_id": "d2"}) == []
    [data] = told({"doc_id": "d1"})
    assert data["detail"]["approved"]["args"] == EDITED


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"n": 1}, {"n": 1.0}, True),
        ({"n": 1}, {"n": True}, False),
        ({"n": 0}, {"n": False}, False),
        ({"n": "1"}, {"n": 1}, False),
        ({"n": [1, {"a": 2}]}, {"n": [1.0, {"a": 2}]}, True),
        ({"n": [1, 2]}, {"n": [2, 1]}, False),
        ({"n": [1]}, {"n": [1, 1]}, False),
        ({"n": {"a": None}}, {"n": {}}, False),
        ({"n": None}, {}, True),
        ({}, {"force": True}, False),
        ({"n": "é"}, {"n": "e\u0301"}, False),
    ],
)
def test_arguments_are_compared_as_json(
    one: dict[str, Any], other: dict[str, Any], same: bool
) -> None:
    assert have_same_args(one, other) is same
    assert have_same_args(other, one) is same


def test_large_arguments_are_known_by_their_digest() -> None:
    large = {"text": "x" * MAX_SHOWN_BYTES}
    data = difference("c", ("write", large), ("write", {"text": "y"}))
    assert data is not None
    assert "args" not in data["detail"]["approved"]
    assert data["detail"]["ran"]["args"] == {"text": "y"}
    assert data["detail"]["approved"]["args_digest"].startswith("sha256:")
    assert len(data["message"]) < 1000


def test_arguments_of_any_depth_are_compared_and_warned_of() -> None:
    def nested(levels: int, inner: Any) -> dict[str, Any]:
        for _ in range(levels):
            inner = [inner]
        return {"a": inner}

    deep, other = nested(5_000, 1), nested(5_000, 2)
    assert have_same_args(deep, nested(5_000, 1.0))
    assert not have_same_args(deep, other)
    data = difference("c", ("t", deep), ("t", other))
    assert data is not None
    assert data["detail"]["ran"] == {"tool": "t"}


def test_a_snapshot_keeps_the_fields_that_a_person_fills_in() -> None:
    calls = Calls()
    call = calls.add("r", {"tool_call_id": "c", "tool_name": "t"}, pending=True)
    call.fields = {"to": None}
    restored = Calls()
    restored.restore(json.loads(json.dumps(calls.snapshot())))
    assert restored.open[0].fields == {"to": None}
