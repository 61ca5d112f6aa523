"""A client of several runs gets distinct ids, and its upstream gets its own ids back."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.dialects.agui.ids import call_name, own_messages, scope_of
from support.drive.agui_out import STRICT_1, Run, encoded, of_type
from support.fakes.raw import RUN_ID

ID = scope_of(RUN_ID)
USER = {"id": "u1", "role": "user", "content": "hi"}

Message = dict[str, Any]


def said(id: str, content: str = "x") -> Message:
    return {"id": id, "role": "assistant", "content": content}


def asks(id: str, call: str) -> Message:
    function = {"name": "search", "arguments": "{}"}
    calls = [{"id": call, "type": "function", "function": function}]
    return {"id": id, "role": "assistant", "toolCalls": calls}


def result(id: str, call: str) -> Message:
    return {"id": id, "role": "tool", "toolCallId": call, "content": "found"}


def snapshot(run: Run) -> list[Message]:
    """Return the messages of the run's last MESSAGES_SNAPSHOT."""
    messages: list[Message] = of_type(encoded(STRICT_1, run.events), "MESSAGES_SNAPSHOT")[-1][
        "messages"
    ]
    return messages


def ids(messages: list[Message]) -> list[str]:
    return [each["id"] for each in messages]


def test_a_snapshot_names_the_runs_own_messages_and_calls_as_its_events_did() -> None:
    run = Run().start().text("x").call().result(message_id="t1")
    run.say("state.messages", messages=[USER, said("m1"), asks("a1", "c1"), result("t1", "c1")])
    user, first, asking, answer = snapshot(run)
    assert user == USER
    assert first["id"] == f"{ID}m1"
    assert asking["toolCalls"][0]["id"] == answer["toolCallId"] == f"{ID}c1"
    assert answer["id"] == f"{ID}t1"


def test_a_snapshot_leaves_the_ids_of_earlier_runs_and_of_the_client_as_they_are() -> None:
    earlier = [USER, asks("a0", "c0"), result("t0", "c0"), said("m0")]
    run = Run().start().text("x").say("state.messages", messages=[*earlier, said("m1")])
    assert snapshot(run) == [*earlier, said(f"{ID}m1")]


def test_ids_that_several_runs_use_stay_apart_in_a_snapshot() -> None:
    run = Run().start().call().result(message_id="t1").text("third")
    turn = [asks("a1", "c1"), result("t1", "c1"), said("m1")]
    run.say("state.messages", messages=turn * 3)
    messages = snapshot(run)
    assert len(set(ids(messages))) == 9
    assert messages[8] == said(f"{ID}m1")
    asked = [each["toolCalls"][0]["id"] for each in messages if "toolCalls" in each]
    answered = [each["toolCallId"] for each in messages if each["role"] == "tool"]
    assert asked == answered == ["c1", "000000000001.c1", f"{ID}c1"]
    assert own_messages(messages) == turn * 3


def test_the_same_snapshot_in_a_later_run_gives_earlier_messages_the_same_ids() -> None:
    before = [said("m1"), said("m1"), said(f"{scope_of('f' * 36)}m1")]
    run = Run().start().say("state.messages", messages=before)
    again = Run().start().text("x").say("state.messages", messages=[*before, said("m1")])
    assert ids(snapshot(again))[:3] == ids(snapshot(run))


def test_what_refers_to_a_message_of_a_snapshot_uses_the_snapshots_id() -> None:
    run = Run().start().say("state.messages", messages=[USER, asks("a0", "c0")])
    run.result(id="c0", message_id="t1").call("c1", parent_message_id="a0")
    events = encoded(STRICT_1, run.events)
    (answer,) = of_type(events, "TOOL_CALL_RESULT")
    assert (answer["toolCallId"], answer["messageId"]) == ("c0", f"{ID}t1")


def test_a_message_that_begins_after_a_snapshot_is_not_glued_to_an_older_one() -> None:
    run = Run().start().say("state.messages", messages=[said("m1", "old")]).text("new")
    (start,) = of_type(encoded(STRICT_1, run.events), "TEXT_MESSAGE_START")
    assert start["messageId"] == f"{ID}m1"


@pytest.mark.parametrize("id", ["m1", "", "u.1", f"{ID}m1#2", "run--0199.x", f"{ID}", f"{ID}{ID}c"])
def test_an_upstreams_own_id_comes_back_as_it_was(id: str) -> None:
    begun = Run().start().text("x", id=id).events
    (start,) = of_type(encoded(STRICT_1, begun), "TEXT_MESSAGE_START")
    shown = Run().start().say("state.messages", messages=[said(id)])
    for given in (start["messageId"], snapshot(shown)[0]["id"]):
        assert own_messages([said(given)]) == [said(id)]


def test_one_qualifier_is_taken_away_so_that_a_penstock_behind_this_one_gets_its_own() -> None:
    inner = scope_of("e" * 36)
    given = [asks(f"{ID}{inner}a1", f"{ID}{inner}c1"), result(f"{ID}t", f"{ID}{inner}c1")]
    assert own_messages(given) == [asks(f"{inner}a1", f"{inner}c1"), result("t", f"{inner}c1")]


@pytest.mark.parametrize("odd", [1, None, {}, {"id": 3}, {"toolCalls": [1, {"id": []}]}])
def test_what_is_no_message_stays_as_it_is(odd: Any) -> None:
    assert own_messages([odd]) == [odd]


def test_the_last_call_of_an_id_is_the_one_that_is_answered() -> None:
    messages = [asks("a", f"{ID}c1"), asks("b", f"{scope_of('f' * 36)}c1"), asks("c", "c2")]
    assert call_name(messages, "c1") == f"{scope_of('f' * 36)}c1"
    assert call_name(messages, "c3") == "c3"
