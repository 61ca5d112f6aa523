"""What a run's redactions name is in no event, whatever the agent server does with it."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bus import streams, subjects
from penstock.bus.messages import SEQUENCE, RawFrame
from penstock.bus.records.approvals import REVIEW_ITEM
from penstock.bus.records.runs import MAX_SHOWN_CHARACTERS
from penstock.dialects.base import Draft
from penstock.dialects.decoders import DECODERS
from penstock.events import parse, typed_data
from penstock_normalizer.fold import run_fold
from penstock_normalizer.fold.envelope import CanonicalEvent
from penstock_normalizer.fold.redacting import RunRedactions, Wait
from penstock_normalizer.fold.run_fold import RunFold
from support.drive.normalizing import Run, bus_to, normalizer
from support.drive.waiting import eventually
from support.fakes.raw import RUN_ID, Frames, agno, agno_pause, agno_text, agui
from support.real.nats import NatsServer

MAIL, CARD = "joe@example.com", "4111 1111 1111 1111"
ANSWER = f"Write to {MAIL} or pay with {CARD}, {MAIL}."
CLEAN = "Write to [EMAIL_1] or pay with [CARD_1], [EMAIL_1]."


def rules(*kinds: str, action: str = "mask") -> dict[str, Any]:
    rule = {"id": "r", "kinds": kinds or ("email", "card"), "action": action}
    return {"version": 3, "rules": [rule]}


def frames(protocol: str = "agno", *, action: str = "mask", **facts: Any) -> Frames:
    return Frames(protocol, redactions=rules(action=action), **facts)


def fold_all(source: Iterable[RawFrame], into: RunFold | None = None) -> list[CanonicalEvent]:
    into = into or RunFold(RUN_ID, DECODERS)
    return [event for frame in source for event in into.feed(copy.copy(frame))]


def said(events: Sequence[CanonicalEvent], type_: str = "llm.stream", name: str = "content") -> str:
    return "".join(event.data[name] for event in events if event.type == type_)


def check_clean(events: Sequence[CanonicalEvent], *secrets: str) -> None:
    """Check that the events are valid, numbered without gaps, and have no secret."""
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    for event in events:
        parse(event.body)
        typed_data(event.type, event.data)
        for secret in secrets or (MAIL, CARD):
            assert secret not in event.body.decode(), event.body


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 100])
def test_a_message_in_pieces_of_any_size_is_redacted_as_a_whole(size: int) -> None:
    run = frames()
    chunks = [ANSWER[at : at + size] for at in range(0, len(ANSWER), size)]
    events = fold_all([run.open(), run.bytes(agno_text(*chunks)), run.end()])
    check_clean(events)
    assert said(events) == CLEAN
    assert said(events, "llm.message_completed") == CLEAN
    assert said(events, "lifecycle.completed", "summary") == CLEAN


@given(st.lists(st.integers(1, len(ANSWER)), max_size=10))
@settings(max_examples=60)
def test_every_way_to_cut_a_message_gives_the_same_text(places: list[int]) -> None:
    run, ends = frames(), sorted({*places, len(ANSWER)})
    chunks = [ANSWER[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    assert said(fold_all([run.open(), run.bytes(agno_text(*chunks)), run.end()])) == CLEAN


def test_each_event_says_what_was_taken_out_of_which_field() -> None:
    run = frames()
    events = fold_all([run.open(), run.bytes(agno_text(ANSWER)), run.end()])
    [completed] = [event for event in events if event.type == "llm.message_completed"]
    assert orjson.loads(completed.body)["redactions"] == [
        {"field": "content", "kind": "email", "count": 2},
        {"field": "content", "kind": "card", "count": 1},
    ]
    assert "redactions" not in orjson.loads(events[0].body)


def test_a_run_without_redactions_has_the_same_events_as_before() -> None:
    run = Frames()
    events = fold_all([run.open(), run.bytes(agno_text(ANSWER)), run.end()])
    assert said(events) == ANSWER
    assert all("redactions" not in orjson.loads(event.body) for event in events)


def test_the_message_that_starts_a_run_is_redacted_in_its_event_and_its_record() -> None:
    run, fold = frames(message=f"I am {MAIL}"), RunFold(RUN_ID, DECODERS)
    [started] = fold_all([run.open()], fold)
    assert started.data["message"] == fold.facts["message"] == "I am [EMAIL_1]"


TOOL_ARGS = {"to": MAIL, "n": [4111111111111111], "note": f'é "{CARD}"\n'}


@pytest.mark.parametrize("size", [1, 3, 8, 1000])
def test_the_arguments_of_a_call_are_redacted_in_their_pieces_and_as_a_whole(size: int) -> None:
    text = json.dumps(TOOL_ARGS)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    run = frames("agui")
    call = {"toolCallId": "c1"}
    body = agui(
        {"type": "RUN_STARTED", "threadId": "t", "runId": "r"},
        {"type": "TOOL_CALL_START", "toolCallName": "send", **call},
        *({"type": "TOOL_CALL_ARGS", "delta": piece, **call} for piece in pieces),
        {"type": "TOOL_CALL_END", **call},
        {
            **{"type": "TOOL_CALL_RESULT", "messageId": "m2", "role": "tool"},
            **{"content": json.dumps({"sent": [MAIL]}), **call},
        },
        {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"},
    )
    events = fold_all([run.open(), run.bytes(body), run.end()])
    check_clean(events, MAIL, CARD, "4111111111111111")
    clean = {"to": "[EMAIL_1]", "n": ["[CARD_1]"], "note": 'é "[CARD_1]"\n'}
    assert json.loads(said(events, "llm.tool_args", "delta")) == clean
    [called] = [event for event in events if event.type == "llm.tool_call"]
    assert called.data["args"] == clean
    types = [event.type for event in events]
    assert types.index("llm.tool_call") > max(
        at for at, type_ in enumerate(types) if type_ == "llm.tool_args"
    )
    [result] = [event for event in events if event.type == "llm.tool_result"]
    assert "[EMAIL_1]" in json.dumps(result.data["result"])


def test_thoughts_states_patches_messages_and_unknown_events_are_redacted() -> None:
    run = frames("agui")
    user = {"id": MAIL, "role": "user", "content": MAIL}
    body = agui(
        {"type": "RUN_STARTED", "threadId": "t", "runId": "r"},
        {"type": "REASONING_MESSAGE_START", "messageId": "r1", "role": "reasoning"},
        {"type": "REASONING_MESSAGE_CONTENT", "messageId": "r1", "delta": "Ask joe@exam"},
        {"type": "REASONING_MESSAGE_CONTENT", "messageId": "r1", "delta": "ple.com"},
        {"type": "REASONING_MESSAGE_END", "messageId": "r1"},
        {"type": "STATE_SNAPSHOT", "snapshot": {MAIL: {"card": CARD}}},
        {
            "type": "STATE_DELTA",
            "delta": [{"op": "replace", "path": f"/{MAIL}/card", "value": [CARD]}],
        },
        {"type": "MESSAGES_SNAPSHOT", "messages": [user]},
        {"type": "CUSTOM", "name": "note", "value": {"mail": MAIL}},
        {"type": "RUN_ERROR", "message": f"no mail to {MAIL}"},
    )
    events = fold_all([run.open(), run.bytes(body), run.end()])
    assert said(events, "llm.reasoning", "thought") == "Ask [EMAIL_1]"
    by_type = {event.type: event.data for event in events}
    assert by_type["state.snapshot"]["snapshot"] == {"[EMAIL_1]": {"card": "[CARD_1]"}}
    [patch] = by_type["state.delta"]["delta"]
    assert patch == {"op": "replace", "path": "/[EMAIL_1]/card", "value": ["[CARD_1]"]}
    [message] = by_type["state.messages"]["messages"]
    assert message == {**user, "content": "[EMAIL_1]"}  # other events repeat the id
    assert by_type["lifecycle.failed"]["error"] == "no mail to [EMAIL_1]"
    assert MAIL not in said(events, "custom.event", "name") + str(by_type.get("custom.event"))


def test_who_decides_sees_no_secret_and_cannot_change_the_arguments_that_lack_it() -> None:
    run, fold = frames(), RunFold(RUN_ID, DECODERS)
    events = fold_all([run.open(), run.bytes(agno_pause(path=MAIL)), run.end()], fold)
    check_clean(events)
    [item] = events[-1].data["items"]
    assert item["args"] == {"path": "[EMAIL_1]"}
    assert item["editable"] is False
    assert orjson.loads(events[-1].body)["redactions"][0]["field"] == "items"
    assert fold.pending is not None
    assert MAIL in json.dumps(fold.pending.resume), "the agent server gets what it has sent"


def test_a_run_that_continues_from_its_stored_pause_gives_the_same_bytes() -> None:
    run, fold = frames(), RunFold(RUN_ID, DECODERS)
    before = [run.open(), run.bytes(agno("RunContent", content=MAIL)), run.bytes(agno_pause())]
    fold_all([*before, run.end()], fold)
    stored = orjson.loads(orjson.dumps(fold.snapshot()))
    restored = RunFold(RUN_ID, DECODERS)
    restored.restore(stored)
    assert fold.approval_id is not None
    rest = [run.open_next(fold.approval_id, t1="approve"), run.bytes(agno_text(f"{CARD}, ", MAIL))]
    rest.append(run.end())
    once = [event.body for event in fold_all(rest, fold)]
    again = [event.body for event in fold_all(rest, restored)]
    assert once == again
    assert b"[CARD_1]" in b"".join(again)
    assert b"[EMAIL_1]" in b"".join(again)


def test_what_was_taken_out_of_the_start_is_counted_once_and_by_no_other_event() -> None:
    run = frames(message=f"I am {MAIL}")
    events = fold_all([run.open(), run.bytes(agno_text("hi")), run.end()])
    found = [event.redactions for event in events if event.redactions]
    assert found == [[{"field": "message", "kind": "email", "count": 1}]]


def test_a_match_at_which_the_message_of_the_start_is_cut_is_in_no_event() -> None:
    words = "I pay with " + "x" * MAX_SHOWN_CHARACTERS
    message = words[: MAX_SHOWN_CHARACTERS - 16] + " " + CARD[:15]
    run, fold = frames(message=message), RunFold(RUN_ID, DECODERS)
    [started] = fold_all([run.open()], fold)
    assert started.data["message"] == fold.facts["message"] == message[:-15]


def test_ids_within_arguments_and_answers_are_content() -> None:
    run, fold = frames(), RunFold(RUN_ID, DECODERS)
    fold_all([run.open(), run.bytes(agno_pause()), run.end()], fold)
    answer = {"value": {"id": MAIL}, "args": {"type": MAIL, "role": CARD, "id": {"digest": CARD}}}
    decided: dict[str, Any] = {
        **{"approval_id": fold.approval_id, "outcome": "approved", "by": "ada"},
        "items": [{"item_id": "t1", "decision": "approve", **answer}],
    }
    events = fold_all([run.event("approval.decided", **decided, automatic=False)], fold)
    assert events[0].data["items"][0]["item_id"] == "t1"
    assert MAIL not in events[0].body.decode()
    assert CARD not in events[0].body.decode()


def test_escapes_in_json_texts_hide_nothing() -> None:
    run, hidden = frames("agui"), json.dumps({"note": f"Pay:\n{CARD}\nto\n{MAIL}"})
    call = {"id": MAIL, "type": "function", "function": {"name": "pay", "arguments": hidden}}
    messages = [
        {"id": "m1", "role": "assistant", "toolCalls": [call]},
        {"id": "m2", "role": "tool", "toolCallId": MAIL, "content": hidden},
    ]
    body = agui(
        {"type": "RUN_STARTED", "threadId": "t", "runId": "r"},
        {"type": "MESSAGES_SNAPSHOT", "messages": messages},
        {"type": "CUSTOM", "name": f"note of {MAIL}", "value": hidden},
        {"type": "RUN_ERROR", "message": "no", "code": f"no {MAIL}"},
    )
    events = fold_all([run.open(), run.bytes(body), run.end()])
    data = {event.type: event.data for event in events}
    clean = {"note": "Pay:\n[CARD_1]\nto\n[EMAIL_1]"}
    asked, answered = data["state.messages"]["messages"]
    assert asked["toolCalls"][0]["id"] == answered["toolCallId"] == MAIL, "other events repeat it"
    assert json.loads(asked["toolCalls"][0]["function"]["arguments"]) == clean
    assert json.loads(answered["content"]) == clean
    assert data["custom.event"]["name"] == "note of [EMAIL_1]"
    assert json.loads(data["custom.event"]["value"]) == clean
    assert data["lifecycle.failed"]["error_type"] == "no [EMAIL_1]"


def test_the_path_of_an_argument_in_pieces_is_searched() -> None:
    by = RunRedactions.of(RUN_ID, rules(), is_workflow=False)
    call = {"tool_call_id": "c1", "tool": "send"}
    drafts = [
        Draft("llm.tool_args", {**call, "path": f"$['{MAIL}']", "value": "To ada@exam"}),
        Draft("llm.tool_args", {**call, "path": f"$['{MAIL}']", "value": "ple.com"}),
        Draft("llm.tool_call", {**call, "args": {}}),
    ]
    yielded = [each for draft in drafts for each in by.apply(draft)]
    *pieces, _ = [each for each in yielded if isinstance(each, Draft)]
    assert {each.data["path"] for each in pieces} == {"$[[EMAIL_1]']"}
    assert "".join(each.data["value"] for each in pieces) == "To [EMAIL_2]"


# Blocking

WORDS = ["I ", "will ", "write ", "to ", "jo", "e@exam", "ple", ".com", " now", "."]


@pytest.mark.parametrize("size", [1, 3, len(WORDS)])
def test_a_match_that_blocks_ends_the_message_before_it_and_the_run(size: int) -> None:
    run, fold = frames(action="block"), RunFold(RUN_ID, DECODERS)
    body = [agno("RunStarted"), *(agno("RunContent", content=word) for word in WORDS)]
    sent = [run.open()]
    sent += [run.bytes(b"".join(body[at : at + size])) for at in range(0, len(body), size)]
    events = fold_all(sent, fold)
    check_clean(events, "joe", "exam", "ple.com")
    assert said(events) == said(events, "llm.message_completed") == "I will write to "
    *_, completed, warning, ended = events
    assert completed.type == "llm.message_completed"
    assert completed.data["status"] == "failed"
    assert (warning.type, warning.data["code"]) == ("system.warning", "blocked")
    assert ended.type == "lifecycle.cancelled"
    assert ended.data == {"reason": "blocked", "by": "policy", "confirmed": False}
    after = [run.bytes(agno("RunContent", content=MAIL)), run.end("cancelled")]
    assert fold_all(after, fold) == []


def test_the_command_to_stop_belongs_to_the_frame_with_the_match_only() -> None:
    run, fold = frames(action="block"), RunFold(RUN_ID, DECODERS)
    fold_all([run.open()], fold)
    assert fold.blocked is None
    fold_all([run.bytes(agno_text(ANSWER))], fold)
    assert fold.blocked == "email"
    fold_all([run.end()], fold)
    assert fold.blocked is None


@pytest.mark.parametrize(
    "body",
    [
        agno("RunStarted") + agno("RunError", content=f"no {MAIL}"),
        agno("RunStarted") + agno("RunCompleted", content=MAIL),
        agno_pause(path=MAIL),
        agno("RunStarted") + agno("CustomEvent", content={"x": MAIL}),
    ],
    ids=["an error", "an answer in one piece", "a question", "an unknown event"],
)
def test_a_match_that_blocks_is_in_no_event_of_any_type(body: bytes) -> None:
    run, fold = frames(action="block"), RunFold(RUN_ID, DECODERS)
    events = fold_all([run.open(), run.bytes(body), run.end()], fold)
    check_clean(events, MAIL, "joe")
    assert events[-1].type == "lifecycle.cancelled"
    assert fold.pending is None


def test_a_note_of_a_person_and_the_events_of_services_are_redacted() -> None:
    run, fold = frames(), RunFold(RUN_ID, DECODERS)
    fold_all([run.open(), run.bytes(agno_pause()), run.end()], fold)
    assert fold.approval_id is not None
    items = [{"item_id": "t1", "decision": "approve", "note": MAIL}]
    decided: dict[str, Any] = {
        "approval_id": fold.approval_id,
        "outcome": "approved",
        "by": MAIL,
        "items": items,
    }
    [event] = fold_all([run.event("approval.decided", **decided, automatic=False)], fold)
    assert event.data["items"] == [{**items[0], "note": "[EMAIL_1]"}]
    assert event.data["by"] == MAIL, "a name by which a person is known"


CARDS = "44 "  # each begins the form of a card, and none is one


def test_other_runs_go_on_before_a_long_search_and_after_many_short_ones() -> None:
    run, fold = frames("agui"), RunFold(RUN_ID, DECODERS)
    message = {"messageId": "m1"}
    fold.feed(run.open())
    begun = agui(
        {"type": "RUN_STARTED", "threadId": "t", "runId": "r"},
        {"type": "TEXT_MESSAGE_START", "role": "assistant", **message},
        *({"type": "TEXT_MESSAGE_CONTENT", "delta": CARDS * 100, **message} for _ in range(50)),
    )
    waits = [step for step in fold.events(run.bytes(begun)) if isinstance(step, Wait)]
    assert waits == [Wait.TURN]
    # A short frame may end a long text.
    ended = fold.events(run.bytes(agui({"type": "TEXT_MESSAGE_END", **message})))
    assert next(ended) is Wait.THREAD
    rest = [event for event in ended if isinstance(event, CanonicalEvent)]
    assert said(rest, "llm.message_completed") == CARDS * 5000


def test_the_message_that_starts_a_run_may_take_long_too() -> None:
    run, fold = frames(message=CARDS * 2000), RunFold(RUN_ID, DECODERS)
    steps = list(fold.events(run.open()))
    assert steps[:2] == [Wait.THREAD, Wait.THREAD], "its search for the record, and for the event"
    assert fold.facts["message"] == CARDS * 2000


def test_what_people_are_asked_may_take_long_too() -> None:
    run, fold = frames(), RunFold(RUN_ID, DECODERS)
    fold.feed(run.open())
    fold.feed(run.bytes(agno_pause(path=CARDS * 2000)))
    assert next(fold.events(run.end())) is Wait.THREAD


async def test_a_text_that_is_searched_for_long_lets_other_runs_of_its_normalizer_go_on(
    nats_server: NatsServer,
) -> None:
    every = rules("email", "card", "phone", "iban", "secret")
    async with bus_to(nats_server.url) as bus, normalizer(nats_server.url):
        flood, other = Run(bus), Run(bus)
        for run in (flood, other):
            await run.open(redactions=every)
            await run.until("lifecycle.started")
        pieces, started = 0, await last_number(flood)
        content = CARDS * 40_000
        await flood.bytes(agno("RunStarted") + agno("RunContent", content=content))
        while await last_number(flood) == started:
            before = await last_number(other)
            await other.bytes(agno("RunContent", content=f"piece {pieces} "))

            async def there(before: int = before) -> bool:
                return await last_number(other) > before

            await eventually(there, 30, "the event of the other run")
            pieces += 1
        assert pieces >= 3


async def last_number(run: Run) -> int:
    events = subjects.events_of_run(run.run_id)
    tail = await run.bus.tail(streams.events_for(run.run_id), events)
    assert tail is not None
    return int(tail.headers[SEQUENCE])


# Asking people

ASKS = ["Fine. ", "Write to ", "joe@exam", "ple.com", " now", "."]


def asking(*body: bytes, **facts: Any) -> tuple[Frames, RunFold, list[CanonicalEvent]]:
    """Fold a whole leg in which a match is found that people decide about."""
    run, fold = frames(action="review", **facts), RunFold(RUN_ID, DECODERS)
    sent = [run.open(), *map(run.bytes, body or (agno_text(*ASKS),)), run.end()]
    return run, fold, fold_all(sent, fold)


def paused(run: Frames, fold: RunFold) -> list[CanonicalEvent]:
    data: dict[str, Any] = {"reason": "approval_required", "approval_id": fold.approval_id}
    return fold_all([run.event("lifecycle.paused", **data)], fold)


def decided(run: Frames, fold: RunFold, decision: str = "approve") -> RawFrame:
    items = [{"item_id": REVIEW_ITEM, "decision": decision}]
    fields: dict[str, Any] = {"approval_id": fold.approval_id, "outcome": decision, "by": "ada"}
    return run.event("approval.decided", **fields, items=items, automatic=False)


def test_from_a_match_on_which_people_decide_nothing_comes_before_they_have_decided() -> None:
    run, fold, events = asking()
    check_clean(events, "joe", "exam", "now", '[EMAIL_1]"}')
    assert said(events) == "Fine. Write to "
    asked = events[-1]
    assert asked.type == "approval.requested"
    [item] = asked.data["items"]
    assert (item["kind"], item["item_id"], item["editable"]) == ("review", REVIEW_ITEM, False)
    assert item["args"]["kinds"] == ["email"]
    assert "[EMAIL_1]" in item["args"]["event"]["data"]["content"]
    events += paused(run, fold)
    events += fold_all([decided(run, fold)], fold)
    check_clean(events, "joe", "exam")
    at = [event.type for event in events].index("approval.decided")
    assert [event.type for event in events][at + 1] == "lifecycle.resumed"
    assert said(events) == said(events, "llm.message_completed") == "Fine. Write to [EMAIL_1] now."
    assert events[-1].type == "lifecycle.completed"
    assert [orjson.loads(event.body)["leg"] for event in (events[at], events[at + 1])] == [1, 2]
    found = [each.redactions for each in events if each.type == "llm.stream" and each.redactions]
    assert found == [[{"field": "content", "kind": "email", "count": 1}]]


def test_a_rejection_stops_the_run_and_shows_nothing_of_what_waited() -> None:
    run, fold, events = asking()
    events += paused(run, fold)
    events += fold_all([decided(run, fold, "reject")], fold)
    check_clean(events, "joe", "exam", "now")
    assert events[-1].type == "lifecycle.cancelled"
    assert events[-1].data["reason"] == "blocked"
    assert fold_all([decided(run, fold)], fold) == []


@pytest.mark.parametrize("decision", ["approve", "reject"])
def test_what_a_run_uses_counts_before_people_decide_and_whatever_they_decide(
    decision: str,
) -> None:
    used = agno("ModelRequestCompleted", input_tokens=7, output_tokens=2, model="m")
    run, fold, events = asking(agno("RunContent", content=f"{MAIL} hm"), used, agno_text("done"))
    assert [event.data["input_tokens"] for event in events if event.type == "llm.usage"] == [7]
    events += paused(run, fold)
    events += fold_all([decided(run, fold, decision)], fold)
    check_clean(events, "joe", "exam")
    assert [event.type for event in events].count("llm.usage") == 1


def test_a_run_that_waits_for_people_is_restored_with_what_waits() -> None:
    run, fold, _ = asking(agno("RunContent", content=MAIL), agno_pause(path=CARD))
    restored = RunFold(RUN_ID, DECODERS)
    restored.restore(orjson.loads(orjson.dumps(fold.snapshot())))
    answer = decided(run, fold)
    once = [event.body for event in fold_all([answer], fold)]
    assert once == [event.body for event in fold_all([answer], restored)]
    assert fold.approval_id == restored.approval_id is not None
    assert fold.pending is not None
    assert CARD in json.dumps(fold.pending.resume), "the agent server's own question comes next"
    run.leg = 2
    rest = [run.open_next(str(fold.approval_id), t1="approve"), run.bytes(agno_text("done"))]
    rest.append(run.end())
    last = fold_all(rest, fold)
    assert last[-1].type == "lifecycle.completed"
    assert [event.body for event in last] == [event.body for event in fold_all(rest, restored)]


def test_very_many_events_that_wait_are_stored_in_a_short_turn() -> None:
    _, fold, _ = asking(agno_text(f"{MAIL} hm", *["w "] * 5000))
    began = time.process_time()
    state = fold.snapshot()
    assert time.process_time() - began < 0.05, "it took 0.2 s of CPU, for which other runs wait"
    assert len(state["unreleased"]) > 5000


@pytest.mark.parametrize("frame", ["end", "event"])
def test_a_cancel_needs_no_decision(frame: str) -> None:
    run, fold = frames(action="review"), RunFold(RUN_ID, DECODERS)
    body = agno("RunStarted") + agno("RunContent", content=MAIL) + agno("RunContent", content=" hm")
    events = fold_all([run.open(), run.bytes(body)], fold)
    data: dict[str, Any] = {"by": "ada", "reason": "user_stop", "confirmed": False}
    stop = run.end("cancelled") if frame == "end" else run.event("lifecycle.cancelled", **data)
    events += fold_all([stop], fold)
    check_clean(events, "joe", "EMAIL")
    assert events[-1].type == "lifecycle.cancelled"
    assert fold.pending is None


def test_a_lost_answer_is_shown_after_the_decision_as_all_others_are() -> None:
    run, fold = frames(action="review"), RunFold(RUN_ID, DECODERS)
    body = agno("RunStarted") + agno("RunContent", content=f"{MAIL} hm")
    events = fold_all([run.open(), run.bytes(body), run.lost()], fold)
    assert events[-1].type == "approval.requested"
    events += fold_all([decided(run, fold)], fold)
    check_clean(events)
    assert events[-1].type == "lifecycle.failed"
    assert said(events) == "[EMAIL_1] hm"


def test_more_than_may_wait_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_fold, "MAX_UNRELEASED_BYTES", 10_000)
    run, fold = frames(action="review"), RunFold(RUN_ID, DECODERS)
    body = agno("RunStarted") + agno("RunContent", content=f"{MAIL} and ")
    begin = [run.open(), run.bytes(body)]
    flood = [run.bytes(agno("RunContent", content="x" * 1000)) for _ in range(12)]
    events = fold_all([*begin, *flood], fold)
    check_clean(events, "joe", "xxx")
    assert events[-1].type == "lifecycle.cancelled"
    assert fold.ended


def test_a_workflows_run_has_nobody_to_ask_and_is_stopped() -> None:
    by = RunRedactions.of(RUN_ID, rules(action="review"), is_workflow=True)
    assert list(by.apply(Draft("workflow.step_completed", {"result": MAIL}))) == []
    assert by.take_blocked() == "email"
