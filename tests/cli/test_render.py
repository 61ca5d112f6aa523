"""What the terminal shows: events are rendered to pieces of styled text."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.events.catalogue import CATALOGUE
from penstock.events.examples import example
from penstock_cli.terminal import render
from penstock_cli.terminal.render import Piece, View


def event(name: str, data: dict[str, Any], **more: Any) -> dict[str, Any]:
    category, action = name.split(".")
    return {"event": {"category": category, "action": action}, "data": data, **more}


def shown(*events: dict[str, Any]) -> list[Piece]:
    view = View()
    return [piece for each in events for piece in view.render(each)]


def said(*events: dict[str, Any]) -> str:
    return "".join(text for text, _ in shown(*events))


def stream(text: str, message_id: str = "m1", **more: Any) -> dict[str, Any]:
    return event("llm.stream", {"content": text, "message_id": message_id}, **more)


def test_streamed_text_grows_on_one_line_and_what_follows_begins_a_new_one() -> None:
    assert shown(
        stream("Hello "),
        stream("world"),
        event("lifecycle.completed", {"summary": "Hello world"}),
    ) == [("Hello ", ""), ("world", ""), ("\n", ""), ("completed\n", "dim")]


COST = {"micros": 403, "currency": "EUR"}


def used(micros: int | None, currency: str = "EUR") -> dict[str, Any]:
    cost = None if micros is None else {"micros": micros, "currency": currency}
    return event("llm.usage", {"input_tokens": 400, "output_tokens": 7, "cost": cost})


@pytest.mark.parametrize(
    ("calls", "line"),
    [
        ([used(None)], "400 tokens read, 7 written"),
        (
            [
                used(597),
                event(
                    "llm.tool_result",
                    {"tool": "t", "tool_call_id": "c", "outcome": "ok", "result": 1, "cost": COST},
                ),
            ],
            "400 tokens read, 7 written, cost 0.001 EUR",
        ),
        ([used(597), used(403)], "800 tokens read, 14 written, cost 0.001 EUR"),
        (
            [used(1_500_000), used(7, "USD"), used(None)],
            "1200 tokens read, 21 written, cost 1.50 EUR and 0.000007 USD and calls without a known"
            " price",
        ),
    ],
)
@pytest.mark.parametrize("end", ["completed", "cancelled"])
def test_the_end_of_a_run_tells_what_it_used_and_cost(
    calls: list[dict[str, Any]], line: str, end: str
) -> None:
    assert said(*calls, event(f"lifecycle.{end}", {"reason": "x"})).endswith(f"\n{line}\n")


def test_a_model_that_counts_no_tokens_adds_no_line_to_the_end_of_its_run() -> None:
    nothing = event("llm.usage", {"input_tokens": 0, "output_tokens": 0, "cost": None})
    assert "tokens" not in said(nothing, event("lifecycle.completed", {}))


def test_a_run_begins_with_its_id_to_come_back_by() -> None:
    started = {"agent": "assistant", "user_id": "ann"}
    assert shown(event("lifecycle.started", started, run_id="0198")) == [
        ("▶ assistant, run 0198\n", "dim")
    ]


def test_thoughts_are_dimmed_and_apart_from_the_answer() -> None:
    assert shown(
        event("llm.reasoning", {"thought": "Hm, ", "reasoning_id": "r"}),
        event("llm.reasoning", {"thought": "yes.", "reasoning_id": "r"}),
        stream("Yes."),
    ) == [("Hm, ", "dim italic"), ("yes.", "dim italic"), ("\n", ""), ("Yes.", "")]


def test_each_message_has_its_own_line() -> None:
    assert said(stream("one", "a"), stream("two", "b"), stream("!", "b")) == "one\ntwo!"


def test_of_steps_that_speak_at_the_same_time_each_has_whole_lines() -> None:
    ann, bob = {"id": "r1", "name": "ann"}, {"id": "r2", "name": "bob"}
    done = event("llm.message_completed", {"content": "", "message_id": "a"}, subrun=ann)
    assert said(
        stream("It ", "a", subrun=ann),
        stream("I ", "b", subrun=bob),
        stream("rains.", "a", subrun=ann),
        stream("found ", "b", subrun=bob),
        done,
        stream("two.", "b", subrun=bob),
        event("workflow.step_completed", {"step_id": "step_b"}),
    ) == ("ann: It rains.\nbob: I found two.\ndone: step_b\n")


def test_an_agent_that_speaks_in_two_steps_is_named_with_the_second_step() -> None:
    first, second = ({"id": f"r{n}", "name": "assistant"} for n in (1, 2))
    assert said(
        stream("One.", "a", subrun=first, step_id="step_a"),
        event("llm.message_completed", {"content": "", "message_id": "a"}, subrun=first),
        event("system.warning", {"message": "late"}, subrun=second, step_id="step_b"),
        stream("Two.", "b", subrun=second, step_id="step_b"),
    ) == ("assistant: One.\nassistant (step_b): ! late\nassistant (step_b): Two.")


def test_a_text_that_is_held_is_shown_before_the_next_line_and_at_the_end() -> None:
    ann, bob = {"id": "r1", "name": "ann"}, {"id": "r2", "name": "bob"}
    both = stream("It ", "a", subrun=ann), stream("I ", "b", subrun=bob)
    warning = event("system.warning", {"message": "late"}, subrun=bob)
    assert said(*both, warning, stream("go", "b", subrun=bob)) == (
        "ann: It \nbob: I \nbob: ! late\nbob: go"
    )
    view = View()
    pieces = [piece for each in both for piece in view.render(each)] + view.end()
    assert "".join(text for text, _ in pieces) == "ann: It \nbob: I \n"


def test_the_failure_of_a_workflow_is_shown_once() -> None:
    error = {"code": "rejected", "message": "no"}
    assert said(
        event("workflow.failed", {"run_id": "0198", "error": error}),
        event("lifecycle.failed", {"code": "rejected", "error": "no"}),
    ) == ("failed (rejected): no\n")


def test_the_output_of_a_workflow_is_shown_unless_a_step_has_just_said_it() -> None:
    step = stream("Fine.", subrun={"id": "r1", "name": "ann"})
    assert said(step, event("lifecycle.completed", {"summary": "Fine."})) == (
        "ann: Fine.\ncompleted\n"
    )
    assert said(step, event("lifecycle.completed", {"summary": "All fine."})) == (
        "ann: Fine.\nAll fine.\ncompleted\n"
    )


def test_the_worker_who_speaks_is_named_once_a_line() -> None:
    worker = {"id": "s", "name": "Researcher"}
    assert said(stream("I ", subrun=worker), stream("found it", subrun=worker)) == (
        "Researcher: I found it"
    )


def test_a_tool_call_and_its_result_take_a_line_each() -> None:
    assert shown(
        event(
            "llm.tool_call",
            {"tool": "weather", "args": {"city": "Paris", "days": 2}, "tool_call_id": "t"},
        ),
        event(
            "llm.tool_result",
            {"tool": "weather", "result": {"sky": "clear"}, "tool_call_id": "t", "outcome": "ok"},
        ),
    ) == [
        ('→ weather(city="Paris", days=2)\n', "cyan"),
        ('← weather: {"sky": "clear"}\n', "green"),
    ]


def test_a_pending_call_says_that_it_waits() -> None:
    pending = {"tool": "rm", "args": {}, "tool_call_id": "t", "pending": True}
    assert said(event("llm.tool_call", pending)) == "→ rm() (waits for an approval)\n"


@pytest.mark.parametrize(
    ("outcome", "error", "line", "style"),
    [
        ("error", "disk full", "← error: rm: disk full\n", "red"),
        ("rejected", None, "← rejected: rm: no\n", "yellow"),
        ("unheard_of", None, "← rm: no\n", ""),
    ],
)
def test_a_result_that_is_none_says_so(
    outcome: str, error: str | None, line: str, style: str
) -> None:
    data = {"tool": "rm", "result": "no", "tool_call_id": "t", "outcome": outcome, "error": error}
    assert shown(event("llm.tool_result", data)) == [(line, style)]


def test_an_approval_shows_what_would_run() -> None:
    items = [
        {"item_id": "1", "kind": "confirmation", "tool": "delete_file", "args": {"path": "a"}},
        {"item_id": "2", "kind": "input", "description": "Which colour?"},
    ]
    requested = event("approval.requested", {"approval_id": "ap-1", "items": items})
    paused = event("lifecycle.paused", {"reason": "approval_required", "approval_id": "ap-1"})
    assert said(requested, paused) == (
        '? approval ap-1\n  delete_file(path="a")\n  Which colour?\n'
    )


def test_a_decision_names_who_took_it_and_why() -> None:
    to = {"roles": ["leads"], "users": ["chief"]}
    step = {"approval_id": "a", "step": 1, "to": to}
    assert said(event("approval.escalated", step)) == (
        "escalated (step 1): the role leads, chief may decide, too\n"
    )
    nobody = {**step, "to": {"roles": [], "users": []}}
    assert "everybody who decides approvals may decide" in said(event("approval.escalated", nobody))
    reminder = {"approval_id": "a", "step": 2, "expires_at": "2025-12-31T11:00:00Z"}
    assert (
        said(event("approval.reminded", reminder)) == "reminder: decide by 2025-12-31T11:00:00Z\n"
    )
    question = {"approval_id": "a", "step": 3, "kind": "question", "by": "ann", "text": "Why?"}
    assert said(event("approval.remarked", question)) == "question of ann: Why?\n"
    handover = {"approval_id": "a", "step": 4, "kind": "handover", "by": "ann", "to": "lee"}
    assert said(event("approval.remarked", handover)) == "handover of ann to lee\n"
    data = {"approval_id": "a", "outcome": "rejected", "by": "ann", "note": "not today"}
    assert said(event("approval.decided", data)) == "rejected by ann: not today\n"


@pytest.mark.parametrize(
    ("name", "data", "line"),
    [
        (
            "failed",
            {"error": "no model", "code": "upstream_error"},
            "failed (upstream_error): no model",
        ),
        (
            "cancelled",
            {"reason": "user_stop", "by": "ann", "confirmed": True},
            "cancelled by ann (user_stop)",
        ),
        (
            "cancelled",
            {"reason": "user_stop", "confirmed": False},
            "cancelled (user_stop; the agent server did not confirm it)",
        ),
    ],
)
def test_a_bad_end_says_why(name: str, data: dict[str, Any], line: str) -> None:
    assert said(event(f"lifecycle.{name}", data)) == f"{line}\n"


def test_an_answer_that_was_not_streamed_is_shown_whole() -> None:
    message = {"message_id": "m", "role": "assistant", "content": "All at once."}
    assert said(event("llm.message_completed", message)) == "All at once."
    assert said(event("lifecycle.completed", {"summary": "The end."})) == "The end.\ncompleted\n"


def test_an_answer_that_was_streamed_is_not_repeated() -> None:
    message = {"message_id": "m1", "role": "assistant", "content": "Hi"}
    assert said(stream("Hi"), event("llm.message_completed", message)) == "Hi"


def test_escape_sequences_of_an_agent_do_not_reach_the_terminal() -> None:
    assert said(stream("a\x1b[2Jb\x9b31m\x07\r\nc\td")) == "a[2Jb31m\nc\td"
    call = {"tool": "t\x1b]0;x", "args": {"a": "\x1b[0m"}, "tool_call_id": "1"}
    assert "\x1b" not in said(event("llm.tool_call", call))


def test_what_nobody_knows_yet_is_shown_as_it_is() -> None:
    assert shown(event("quantum.leap", {"to": 2})) == [('· quantum.leap {"to": 2}\n', "dim")]


def test_an_agents_own_events_are_shown_but_not_a_protocols_housekeeping() -> None:
    own = {"protocol": "agno", "name": "Progress", "value": {"step": 1}}
    assert said(event("custom.event", own)) == '· Progress {"step": 1}\n'
    assert said(event("custom.event", {**own, "name": "agno.ModelRequestStarted"})) == ""


def test_a_long_value_is_cut() -> None:
    assert render.short("x" * 300) == "x" * 199 + "…"
    assert render.short("a\n  b") == "a b"


def test_a_record_is_shown_without_its_empty_fields() -> None:
    assert "".join(text for text, _ in render.fields({"run_id": "r", "code": None, "legs": 2})) == (
        "run_id  r\nlegs    2\n"
    )


# These types change what the view shows next, or are pieces of a line.
SPECIAL = {"lifecycle.started", "llm.stream", "llm.reasoning"}


def test_every_line_is_that_of_an_event_type() -> None:
    assert set(render._LINES) | SPECIAL <= set(CATALOGUE)


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_event_without_a_line_of_its_own_is_shown_as_it_is(name: str) -> None:
    text = said(example(name).model_dump(mode="json", exclude_unset=True))
    if name not in render._LINES.keys() | SPECIAL:
        assert text.startswith(f"· {name} ")
