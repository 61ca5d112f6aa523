"""With `where: egress`, each event has what was found and what others see in its place."""

from __future__ import annotations

import copy
import json
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bus import masking
from penstock.bus.messages import RawFrame, Stored
from penstock.dialects.base import Draft
from penstock.dialects.decoders import DECODERS
from penstock.events import parse, typed_data
from penstock.redactions.scanner import redactor_of
from penstock_normalizer.fold.envelope import CanonicalEvent
from penstock_normalizer.fold.redacting import RunRedactions
from penstock_normalizer.fold.run_fold import RunFold
from support.fakes.raw import RUN_ID, Frames, agno, agno_pause, agno_text, agui

MAIL, CARD = "joe@example.com", "4111 1111 1111 1111"
KEY = "sk-ant-" + "a1" * 40  # a credential has no greatest length
ANSWER = f"Write to {MAIL} or pay with {CARD}, {MAIL}. The key is {KEY}"
CLEAN = "Write to [EMAIL_1] or pay with [CARD_1], [EMAIL_1]. The key is [SECRET_1]"
SECRETS = (MAIL, CARD, "joe", "example.com", "1111", "sk-ant", "a1a1")
JsonObject = dict[str, Any]


def rule(*kinds: str, **fields: Any) -> JsonObject:
    return {"id": "r", "kinds": kinds, "action": "mask", **fields}


MASKS = rule("email", "card", "secret", where="egress")


def frames(protocol: str = "agno", rules: Sequence[JsonObject] = (MASKS,), **facts: Any) -> Frames:
    return Frames(protocol, redactions={"version": 3, "rules": [*rules]}, **facts)


def fold_all(source: Iterable[RawFrame], into: RunFold | None = None) -> list[CanonicalEvent]:
    into = into or RunFold(RUN_ID, DECODERS)
    return [event for frame in source for event in into.feed(copy.copy(frame))]


def forms(event: CanonicalEvent) -> tuple[JsonObject, JsonObject]:
    """Return what callers without the scope `pii` get of an event, and what callers with it get."""
    stored = Stored(f"{event.type}.{RUN_ID}", 1, {}, event.body)
    masking.split(stored)
    return orjson.loads(stored.payload), orjson.loads(masking.whole(stored))


def check_forms(events: Sequence[CanonicalEvent], *secrets: str) -> list[JsonObject]:
    """Check that both forms of each event are valid, and that one has no secret; return the others'
    data."""
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    found = []
    for event in events:
        for form in forms(event):
            parse(form)
            typed_data(event.type, form["data"])
        seen, whole = forms(event)
        assert event.data == seen["data"]
        assert {**seen, "data": 0} == {**whole, "data": 0}, "they differ in their data only"
        text = json.dumps(seen, ensure_ascii=False)
        for secret in secrets or SECRETS:
            assert secret not in text, text
        found.append(whole["data"])
    return found


def said(events: Sequence[CanonicalEvent], whole: int, type_: str = "llm.stream") -> list[str]:
    name = {"llm.reasoning": "thought", "llm.tool_args": "delta"}.get(type_, "content")
    return [forms(event)[whole]["data"][name] for event in events if event.type == type_]


def cut(text: str, places: Iterable[int]) -> list[str]:
    ends = sorted({place for place in places if 0 < place < len(text)} | {len(text)})
    return [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


@given(st.lists(st.integers(1, len(ANSWER)), max_size=12))
@settings(max_examples=40, deadline=None)
def test_however_a_message_is_cut_both_forms_are_whole_and_no_match_is_in_two_events(
    places: list[int],
) -> None:
    run = frames()
    events = fold_all([run.open(), run.bytes(agno_text(*cut(ANSWER, places))), run.end()])
    check_forms(events)
    masked, whole = said(events, 0), said(events, 1)
    assert ("".join(masked), "".join(whole)) == (CLEAN, ANSWER)
    assert all(masked), "clients do not know empty pieces"
    assert all(whole)
    apart = redactor_of(RUN_ID, {"rules": [MASKS]})
    assert [apart.text(piece) for piece in whole] == masked
    [completed] = [event for event in events if event.type == "llm.message_completed"]
    assert [form["data"]["content"] for form in forms(completed)] == [CLEAN, ANSWER]
    assert [form["data"]["summary"] for form in forms(events[-1])] == [CLEAN, ANSWER]


TOOL_ARGS = {"to": MAIL, "n": [4111111111111111, 1.5], "note": f'é "{CARD}"\n', "key": KEY}


@given(st.lists(st.integers(1, 300), max_size=12), st.booleans())
@settings(max_examples=40, deadline=None)
def test_however_arguments_are_cut_both_forms_are_whole(places: list[int], escaped: bool) -> None:
    text = json.dumps(TOOL_ARGS, ensure_ascii=escaped)
    run, call = frames("agui"), {"toolCallId": "c1"}
    body = agui(
        {"type": "RUN_STARTED", "threadId": "t", "runId": "r"},
        {"type": "TOOL_CALL_START", "toolCallName": "send", **call},
        *({"type": "TOOL_CALL_ARGS", "delta": each, **call} for each in cut(text, places)),
        {"type": "TOOL_CALL_END", **call},
        {
            **{"type": "TOOL_CALL_RESULT", "messageId": "m2", "role": "tool"},
            **{"content": json.dumps({"sent": [MAIL]}), **call},
        },
        {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"},
    )
    events = fold_all([run.open(), run.bytes(body), run.end()])
    check_forms(events, *SECRETS, "4111111111111111")
    clean = {"to": "[EMAIL_1]", "n": ["[CARD_1]", 1.5], "note": 'é "[CARD_1]"\n'}
    clean["key"] = "[SECRET_1]"
    assert json.loads("".join(said(events, 0, "llm.tool_args"))) == clean
    assert "".join(said(events, 1, "llm.tool_args")) == text
    [called] = [event for event in events if event.type == "llm.tool_call"]
    assert [form["data"]["args"] for form in forms(called)] == [clean, TOOL_ARGS]
    [result] = [event for event in events if event.type == "llm.tool_result"]
    assert MAIL in json.dumps(forms(result)[1])


def test_thoughts_states_patches_errors_and_the_start_have_both_forms() -> None:
    run, fold = frames("agui", message=f"I am {MAIL}"), RunFold(RUN_ID, DECODERS)
    body = agui(
        {"type": "RUN_STARTED", "threadId": "t", "runId": "r"},
        {"type": "REASONING_MESSAGE_START", "messageId": "r1", "role": "reasoning"},
        {"type": "REASONING_MESSAGE_CONTENT", "messageId": "r1", "delta": "Ask joe@exam"},
        {"type": "REASONING_MESSAGE_CONTENT", "messageId": "r1", "delta": "ple.com"},
        {"type": "REASONING_MESSAGE_END", "messageId": "r1"},
        {"type": "STATE_SNAPSHOT", "snapshot": {MAIL: {"card": CARD}}},
        {"type": "STATE_DELTA", "delta": [{"op": "add", "path": f"/{MAIL}/x", "value": [CARD]}]},
        {"type": "CUSTOM", "name": "note", "value": {"mail": MAIL}},
        {"type": "RUN_ERROR", "message": f"no mail to {MAIL}"},
    )
    events = fold_all([run.open(), run.bytes(body), run.end()], fold)
    found = check_forms(events)
    assert fold.facts["message"] == "I am [EMAIL_1]", "the run's record has only the masked form"
    plain = Frames("agui", message=f"I am {MAIL}")
    as_sent = fold_all([plain.open(), plain.bytes(body), plain.end()])
    in_pieces = ("llm.reasoning", "lifecycle.started")
    whole = [data for event, data in zip(events, found, strict=True) if event.type not in in_pieces]
    assert whole == [event.data for event in as_sent if event.type not in in_pieces]
    assert "".join(said(events, 1, "llm.reasoning")) == f"Ask {MAIL}"
    assert found[0]["message"] == f"I am {MAIL}"


def test_who_decides_gets_the_request_as_it_came_with_the_same_digest() -> None:
    run, plain = frames(), Frames()
    *_, asked = fold_all([run.open(), run.bytes(agno_pause(path=MAIL)), run.end()])
    *_, as_sent = fold_all([plain.open(), plain.bytes(agno_pause(path=MAIL)), plain.end()])
    masked, whole = forms(asked)
    assert whole["data"] == as_sent.data
    [item], [other] = whole["data"]["items"], masked["data"]["items"]
    assert item["args"] == {"path": MAIL}
    assert item["editable"] is True
    assert {**other, "args": item["args"]} == item
    assert other["args"] == {"path": "[EMAIL_1]"}


def test_a_run_that_continues_from_its_stored_pause_gives_the_same_bytes() -> None:
    run, fold = frames(), RunFold(RUN_ID, DECODERS)
    before = [run.open(), run.bytes(agno("RunContent", content=MAIL)), run.bytes(agno_pause())]
    fold_all([*before, run.end()], fold)
    restored = RunFold(RUN_ID, DECODERS)
    restored.restore(orjson.loads(orjson.dumps(fold.snapshot())))
    rest = [run.open_next(str(fold.approval_id), t1="approve")]
    rest += [run.bytes(agno_text(f"a@b.cd, {CARD}, ", MAIL)), run.end()]
    once = fold_all(rest, fold)
    assert [event.body for event in once] == [event.body for event in fold_all(rest, restored)]
    assert "".join(said(once, 0)) == "[EMAIL_2], [CARD_1], [EMAIL_1]"


def test_what_nobody_gets_is_in_neither_form_and_the_names_of_all_matches_differ() -> None:
    rules = [rule("email"), rule("re:A[0-9]{3}"), rule("card", "email", where="egress")]
    rules.append(rule("re:B[0-9]{3}", where="egress"))
    run = frames(rules=rules)
    text = f"{MAIL} {CARD} A123 B123 A124 {MAIL}"
    events = fold_all([run.open(), run.bytes(agno_text(*cut(text, range(0, 99, 3)))), run.end()])
    check_forms(events, MAIL, CARD, "A12", "B12")
    assert "".join(said(events, 0)) == "[EMAIL_1] [CARD_1] [PATTERN_1] [PATTERN_2] [PATTERN_3] " + (
        "[EMAIL_1]"
    )
    assert "".join(said(events, 1)) == f"[EMAIL_1] {CARD} [PATTERN_1] B123 [PATTERN_3] [EMAIL_1]"
    for event in events:
        assert MAIL not in event.body.decode()


def test_what_is_taken_out_beside_a_long_match_that_is_masked_is_named() -> None:
    run = frames(rules=[rule("card"), rule("secret", where="egress")])
    body = agno_text(f"{CARD} {KEY}", KEY, " and more")
    events = fold_all([run.open(), run.bytes(body), run.end()])
    assert "".join(said(events, 0)) == "[CARD_1] [SECRET_1] and more"
    found = [
        each["kind"]
        for event in events
        if event.type == "llm.stream"
        for each in forms(event)[0].get("redactions", ())
    ]
    assert sorted(found) == ["card", "secret"]


def test_each_piece_of_a_long_match_costs_as_much_as_the_first() -> None:
    def cost_s(where: str) -> float:
        rules = [rule("secret", where=where)]
        by = RunRedactions.of(RUN_ID, {"version": 1, "rules": rules}, is_workflow=False)
        begun_s = time.process_time()
        for piece in (KEY, *["a1b2c3d4e5" * 20] * 10_000):
            deque(by.apply(Draft("llm.stream", {"message_id": "m", "content": piece})), 0)
        return time.process_time() - begun_s

    # Here, nothing is kept of what follows.
    assert cost_s("egress") < 20 * cost_s("ingest")


def test_a_match_that_blocks_stops_a_run_with_masks_before_it() -> None:
    run = frames(rules=[rule("card", action="block"), MASKS])
    events = fold_all([run.open(), run.bytes(agno_text("To ", MAIL, " pay ", CARD)), run.end()])
    found = check_forms(events)
    assert "".join(said(events, 1)) == f"To {MAIL} pay "
    assert events[-1].type == "lifecycle.cancelled"
    assert CARD not in json.dumps(found)


def test_an_event_without_a_match_and_a_run_without_masks_are_as_they_were() -> None:
    run, plain = frames(), Frames()
    body = agno_text("Nothing ", "is ", "here.")
    events = fold_all([run.open(), run.bytes(body), run.end()])
    as_sent = fold_all([plain.open(), plain.bytes(body), plain.end()])
    for event in (*events, *as_sent):
        assert not event.body.startswith(masking.MARK)
        assert b'"clear"' not in event.body
    assert "".join(said(events, 0)) == "Nothing is here."
    assert [event.type for event in as_sent][:2] == [event.type for event in events][:2]


@pytest.mark.parametrize("final", [False, True])
def test_the_path_of_an_argument_in_pieces_has_both_forms(final: bool) -> None:
    by = RunRedactions.of(RUN_ID, {"version": 1, "rules": [MASKS]}, is_workflow=False)
    call = {"tool_call_id": "c1", "tool": "send", "path": f"$['{MAIL}']"}
    drafts = [
        Draft("llm.tool_args", {**call, "value": "To ada@exam"}),
        Draft("llm.tool_args", {**call, "value": "ple.com", **({"final": True} if final else {})}),
        Draft("llm.tool_call", {"tool_call_id": "c1", "tool": "send", "args": {}}),
    ]
    *pieces, _ = [each for draft in drafts for each in by.apply(draft) if isinstance(each, Draft)]
    assert {each.data["path"] for each in pieces} == {"$[[EMAIL_1]']"}
    assert "".join(each.data["value"] for each in pieces) == "To [EMAIL_2]"
    assert {(each.clear or {})["path"] for each in pieces} == {call["path"]}
    assert "".join((each.clear or {})["value"] for each in pieces) == "To ada@example.com"


def test_a_price_is_in_both_forms_of_a_result() -> None:
    def cost_of(*_: object) -> JsonObject:
        return {"amount": "1", "currency": "USD"}

    run, fold = frames("agui"), RunFold(RUN_ID, DECODERS, cost_of=cost_of)
    call = {"toolCallId": "c1"}
    body = agui(
        {"type": "RUN_STARTED", "threadId": "t", "runId": "r"},
        {"type": "TOOL_CALL_START", "toolCallName": "send", **call},
        {"type": "TOOL_CALL_ARGS", "delta": "{}", **call},
        {"type": "TOOL_CALL_END", **call},
        {"type": "TOOL_CALL_RESULT", "messageId": "m", "role": "tool", "content": MAIL, **call},
    )
    events = fold_all([run.open(), run.bytes(body)], fold)
    [result] = [event for event in events if event.type == "llm.tool_result"]
    assert [form["data"]["cost"]["amount"] for form in forms(result)] == ["1", "1"]
