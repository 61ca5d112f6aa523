"""A2A's stream responses: what a client folds out of them, wherever its stream was cut."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.a2a import (
    ENDED,
    A2aEncoder,
    TaskFold,
    older,
)
from penstock.events import TERMINAL
from support.drive.for_each import for_each
from support.recorded.canonical import (
    Recorded,
    event,
    recorded,
    recorded_runs,
    run,
    samples,
    type_of,
)
from support.recorded.goldens import check

GOLDEN = Path(__file__).parents[2] / "golden" / "encoded" / "a2a"
SHOWN = [
    "adk/2.13.0/confirm_stream",
    "adk/2.13.0/think_stream",
    "agno/3.1.10/auto_tool",
    "agno/3.1.10/confirm_reject_note",
    "agno/3.1.10/cancel_midrun",
    "agno/3.1.10/model_error_midstream",
    "agno/3.1.10/team_delegate",
    "agno/3.1.10/user_input",
]

each_run = for_each("recorded_run", recorded_runs(), lambda each: each.name)
Json = dict[str, Any]


def responses(events: Iterable[Json], *, extended: bool = True) -> list[Json]:
    encoder = A2aEncoder(extended)
    return [each for one in events for each in encoder.responses(one)]


def folded(given: Iterable[Json], *, after: Json | None = None) -> Json:
    fold = TaskFold()
    for each in [{"task": after}] if after is not None else []:
        fold.add(each)
    for each in given:
        fold.add(each)
    return fold.task()


@pytest.mark.parametrize("name", SHOWN)
def test_a_recorded_run_gives_its_golden_frames(name: str) -> None:
    events = recorded(name).events
    encoder = A2aEncoder()
    lines = [frame.data.decode() for event in events for frame in encoder.feed(event)]
    check(GOLDEN / f"{name.replace('/', '_')}.jsonl", lines)


def test_clients_of_0_3_get_the_same_in_their_form() -> None:
    encoder = A2aEncoder(older=True)
    events = recorded("agno/3.1.10/confirm_reject_note").events
    lines = [frame.data.decode() for event in events for frame in encoder.feed(event)]
    check(GOLDEN / "older_agno_3.1.10_confirm_reject_note.jsonl", lines)


@each_run
def test_a_stream_begins_with_its_task_and_ends_once(recorded_run: Recorded) -> None:
    shown = responses(recorded_run.events)
    assert [next(iter(each)) for each in shown].index("task") == 0
    states = [each["statusUpdate"]["status"]["state"] for each in shown if "statusUpdate" in each]
    has_ended = type_of(recorded_run.events[-1]) in TERMINAL
    assert [state in ENDED for state in states] == [False] * (len(states) - 1) + [has_ended]
    begun: set[str] = set()
    for each in shown:
        if update := each.get("artifactUpdate"):
            artifact_id = update["artifact"]["artifactId"]
            assert update.get("append", False) is (artifact_id in begun)
            begun.add(artifact_id)


@each_run
def test_a_client_that_was_cut_off_at_any_frame_and_subscribes_again_has_the_same_task(
    recorded_run: Recorded,
) -> None:
    for extended in (True, False):
        shown = responses(recorded_run.events, extended=extended)
        whole = folded(shown)
        # Each later frame is folded into what a client has that got the task at the cut.
        for cut in range(1, len(shown)):
            assert folded(shown[cut:], after=folded(shown[:cut])) == whole


@given(st.lists(st.sampled_from([*samples()]), max_size=30), st.integers(0, 60))
def test_whatever_comes_a_cut_changes_nothing(events: list[Json], cut: int) -> None:
    started = event("lifecycle.started", {"agent": "a", "user_id": "u", "message": "Hello"})
    shown = responses([started, *events])
    cut = min(cut, len(shown) - 1)
    assert folded(shown[cut:], after=folded(shown[:cut]) if cut else None) == folded(shown)
    older({"task": folded(shown)})


@each_run
def test_without_the_extension_a_client_gets_the_same_artifacts_and_end(
    recorded_run: Recorded,
) -> None:
    plain = folded(responses(recorded_run.events, extended=False))
    extended = folded(responses(recorded_run.events))
    assert plain["artifacts"] == extended["artifacts"]
    assert plain["status"] == extended["status"]
    parts = [part for each in plain.get("history", ()) for part in each["parts"]]
    types = {part["data"]["type"] for part in parts if "data" in part}
    assert types <= {"approval.requested"}


def test_a_pause_shows_each_open_request_whole_and_says_it_for_people() -> None:
    item = {"item_id": "c1", "kind": "confirmation", "tool": "pay", "args": {"eur": 5}}
    asked = {"approval_id": "a1", "digest": "d1", "items": [item]}
    events = run(
        ("approval.requested", asked),
        ("lifecycle.paused", {"reason": "approval_required", "approval_id": "a1"}),
    )
    status = responses(events)[-1]["statusUpdate"]["status"]
    assert status["state"] == "TASK_STATE_INPUT_REQUIRED"
    text, part = status["message"]["parts"]
    assert text == {"text": "The task waits for a decision on pay(eur=5)"}
    assert part["data"] == {"type": "approval.requested", "data": asked}


def test_a_credential_is_asked_for_as_authentication() -> None:
    item = {"item_id": "c1", "kind": "credential", "description": "Sign in"}
    events = run(
        ("approval.requested", {"approval_id": "a1", "digest": "d1", "items": [item]}),
        ("lifecycle.paused", {"reason": "approval_required", "approval_id": "a1"}),
    )
    assert responses(events)[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"


def test_a_run_without_messages_shows_its_result_as_an_artifact() -> None:
    ended = ("lifecycle.completed", {"summary": "82", "value": {"score": 82}})
    events = run(ended)
    [artifact] = folded(responses(events))["artifacts"]
    assert artifact["parts"] == [{"data": {"score": 82}}]


def test_an_open_message_ends_before_a_failure() -> None:
    events = run(
        ("llm.stream", {"message_id": "m1", "content": "Half"}),
        ("lifecycle.failed", {"error": "boom", "code": "upstream_lost"}),
    )
    *_, closed, failed = responses(events)
    assert closed["artifactUpdate"]["lastChunk"] is True
    status = failed["statusUpdate"]
    assert status["status"]["message"]["parts"] == [{"text": "boom"}]
    assert next(iter(status["metadata"].values())) == {"code": "upstream_lost"}


def test_a_text_of_many_pieces_is_folded_in_linear_time() -> None:
    pieces = [("llm.stream", {"message_id": "m1", "content": "x"})] * 20_000
    [artifact] = folded(responses(run(*pieces)))["artifacts"]
    assert artifact["parts"] == [{"text": "x" * 20_000}]


def test_the_frames_are_json_without_line_ends() -> None:
    asked = event("lifecycle.started", {"agent": "a", "user_id": "u", "message": "a\nb"})
    [frame] = A2aEncoder().feed(asked)
    assert b"\n" not in frame.data
    assert orjson.loads(frame.data)["task"]["history"][0]["parts"] == [{"text": "a\nb"}]


def test_no_character_in_a_frame_ends_a_line_for_a_reader_that_splits_as_python_does() -> None:
    text = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\\\u2028"
    [_, *frames] = A2aEncoder().feed(event("llm.stream", {"message_id": "m", "content": text}))
    [frame] = frames
    assert len(frame.data.decode().splitlines()) == 1
    [part] = orjson.loads(frame.data)["artifactUpdate"]["artifact"]["parts"]
    assert part["text"] == text
