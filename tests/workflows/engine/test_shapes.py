"""Each shape of a graph: which events a run has, in which order, and how the run ends."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_workflows.engine.effects import StartChild
from penstock_workflows.engine.inputs import (
    ApprovalInput,
    CancelInput,
    ChildInput,
    FailInput,
    TimerInput,
)
from penstock_workflows.engine.state import State
from support.pure.engine_world import (
    Ending,
    World,
    completed,
    decided,
    failed,
    run_step,
    workflow,
)

RETRY: dict[str, Any] = {"attempts": 2, "codes": ["upstream_error"]}


def end_of(state: State) -> tuple[str, Any]:
    """Return how the run ended, with its output or the code of its error."""
    end = state.end
    assert end is not None, "the run has no end"
    return end.status, end.error["code"] if end.error else end.output


def drain(world: World) -> None:
    """Handle everything that is on its way; no time passes."""
    while world.inputs:
        world.take(world.inputs.pop(0))


def failing(*agents: str, code: str = "upstream_error") -> Any:
    """Return a script in which these agents fail and the others say their name."""

    def script(start: StartChild) -> Ending:
        return failed(code) if start.name in agents else completed(start.name)

    return script


def test_a_sequence_runs_one_step_after_the_other() -> None:
    steps = {
        "a": run_step("first", '"say " + input.text'),
        "b": run_step("second", "a.output.text + '!'", needs=["a"]),
    }
    world = World(
        workflow(steps, output="b.output.text"),
        {"text": "hello"},
        lambda start: completed(f"{start.name}: {start.message}"),
    )
    assert end_of(world.run()) == ("completed", "second: first: say hello!")
    assert world.types == [
        "workflow.started",
        "dispatch.worker",
        "workflow.step_started a",
        "dispatch.finished",
        "workflow.step_completed a",
        "workflow.transition a->b a_complete",
        "dispatch.worker",
        "workflow.step_started b",
        "dispatch.finished",
        "workflow.step_completed b",
        "workflow.completed",
        "lifecycle.completed",
    ]
    world.check()


def test_steps_that_need_nothing_run_side_by_side_and_a_join_waits_for_all() -> None:
    steps = {
        "a": run_step("a"),
        "b": run_step("b"),
        "c": run_step("c"),
        "join": {"needs": ["a", "b", "c"], "set": "a.output.text + b.output.text + c.output.text"},
    }
    world = World(workflow(steps, output="join.output"), script=failing())
    assert end_of(world.run()) == ("completed", "abc")
    starts = [each for each in world.types if each.startswith("workflow.step_started")]
    assert starts[:3] == [f"workflow.step_started {name}" for name in "abc"]
    assert [each for each in world.types if "->" in each] == [
        f"workflow.transition {name}->join {name}_complete" for name in "abc"
    ]
    world.check()


@pytest.mark.parametrize(("score", "asked"), [(80, True), (95, False)])
def test_a_step_whose_condition_is_false_is_skipped_and_counts_as_done(
    score: int, asked: bool
) -> None:
    steps = {
        "a": {"set": str(score)},
        "b": {"needs": ["a"], "when": "a.output < 90", "set": '"b"'},
        "c": {"needs": ["b"], "set": "b.status"},
    }
    world = World(workflow(steps, output="c.output"))
    assert end_of(world.run()) == ("completed", "completed" if asked else "skipped")
    assert ("workflow.transition a->b when" in world.types) == asked
    last = "complete" if asked else "skipped"
    assert f"workflow.transition b->c b_{last}" in world.types
    world.check()


def test_a_loop_gives_its_outputs_in_the_order_of_the_list() -> None:
    steps = {
        "each": run_step(
            message="string(n)",
            for_each={"in": "[3, 1, 2]", "as": "n", "limit": 2},
            output='result.text + "!"',
        )
    }
    world = World(workflow(steps, output="each.output"), script=lambda _: None)
    drain(world)
    assert [start.message for start in world.started.values()] == ["3", "1"]
    # The items end in the reverse order.
    while (open_ := world.state and world.state.end is None) and world.started:
        for child in [*world.started][::-1]:
            start = world.started.pop(child)
            world.take(ChildInput(child, *completed(start.message)))
        while world.inputs:
            world.take(world.inputs.pop(0))
    assert not open_
    assert world.state is not None
    assert end_of(world.state) == ("completed", ["3!", "1!", "2!"])
    kinds = [data["kind"] for type_, data in world.events if type_ == "workflow.step_started"]
    assert kinds == ["parallel", "step", "step", "step"]
    first = next(data for _, data in world.events if data.get("step_id") == "step_each.0")
    assert (first["parent_step_id"], first["iteration"]) == ("step_each", 1)
    world.check()


def test_a_loop_over_an_empty_list_is_done_at_once() -> None:
    steps = {
        "each": run_step(for_each={"in": "[]"}),
        "b": {"needs": ["each"], "set": "each.output"},
    }
    world = World(workflow(steps, output="b.output"))
    assert end_of(world.run()) == ("completed", [])
    world.check()


def test_no_more_items_are_under_way_than_the_limit_says() -> None:
    steps = {"each": run_step(for_each={"in": "[1, 2, 3, 4, 5]", "limit": 2})}
    world = World(workflow(steps))
    while world.inputs:
        world.take(world.inputs.pop(0))
        assert world.state is not None
        assert len(world.state.open) <= 2
    assert world.state is not None
    assert world.state.end is not None


def test_no_more_children_are_under_way_than_the_concurrency_says() -> None:
    steps = {
        "ask": {"approve": {"title": '"ok?"'}},
        "bad": run_step("bad", retry=RETRY | {"attempts": 3}, on_failure="continue"),
        "each": run_step(for_each={"in": "[1, 2, 3]", "limit": 3}),
        "a": run_step(),
    }
    world = World(workflow(steps, concurrency=2), script=failing("bad"), decisions={"ask": "none"})
    most = 0
    while world.inputs or world.ring():
        world.take(world.inputs.pop(0))
        assert world.state is not None
        working = [entry for entry in world.state.open.values() if entry.step != "ask"]
        most = max(most, len(working))
    assert most == 2  # a step that is tried again keeps its place
    assert world.state is not None
    assert {*world.state.results} == {"bad", "each", "a"}  # the question takes no place
    world.check()


def test_a_nested_workflow_gets_its_input_and_gives_its_value() -> None:
    steps = {
        "inner": {
            "workflow": {"workflow": "team", "version": "2", "input": '{"task": "look"}'},
            "dispatch": {"team": '"Payments"', "task": '"check"'},
            "output": "result.data.found",
        }
    }
    world = World(
        workflow(steps, output="inner.output"),
        script=lambda start: completed("...", value={"found": start.input}),
        command={"session_id": "s", "workflow_depth": 2},
    )
    assert end_of(world.run()) == ("completed", {"task": "look"})
    (start,) = world.started.values()
    assert (start.kind, start.name, start.version) == ("workflow", "team", "2")
    assert start.workflow_depth == 3
    assert (
        "dispatch.team",
        {"team_name": "Payments", "task": "check", "subrun_id": start.child},
    ) in (world.events)
    begun = next(data for type_, data in world.events if type_ == "workflow.step_started")
    assert (begun["role"], begun["team_name"]) == ("team_supervisor", "Payments")
    world.check()


def test_a_dispatch_to_a_worker_of_a_team_names_both() -> None:
    steps = {"a": run_step(dispatch={"team": '"T"', "worker": '"W"', "task": '"do"'})}
    world = World(workflow(steps))
    world.run()
    (child,) = world.started
    assert world.events[1:3] == [
        ("dispatch.team", {"team_name": "T", "task": "do"}),
        ("dispatch.worker", {"worker_name": "W", "task": "do", "subrun_id": child}),
    ]
    world.check()


def test_a_session_is_of_the_step_alone_or_of_the_run() -> None:
    steps = {
        "a": run_step(),
        "b": run_step(),
        "c": {"run": {"agent": "agent", "message": '"x"', "session": "parent"}},
    }
    world = World(workflow(steps))
    world.run()
    sessions = {start.step_id: start.session_id for start in world.started.values()}
    assert sessions["step_c"] == "session"
    assert len({*sessions.values()}) == 3


# failures


def test_a_failed_step_ends_the_run_and_cancels_its_siblings() -> None:
    steps = {"a": run_step("bad"), "b": run_step("slow"), "c": run_step(needs=["a"])}
    world = World(workflow(steps), script=lambda start: failed() if start.name == "bad" else None)
    assert end_of(world.run()) == ("failed", "upstream_error")
    assert {world.started[child].name for child in world.cancelled} == {"slow"}
    assert world.types[-4:] == [
        "workflow.step_failed a",
        "dispatch.finished",
        "workflow.failed",
        "lifecycle.failed a",
    ]
    error = world.events[-2][1]["error"]
    assert error["code"] == "upstream_error"
    assert error["message"] == "the step a failed: it broke"
    assert "workflow.step_started c" not in world.types
    world.check()


def test_a_run_that_continues_sees_the_error_of_the_step() -> None:
    steps = {
        "a": run_step("bad", on_failure="continue"),
        "b": {"needs": ["a"], "set": 'a.status + " " + a.error.code'},
    }
    world = World(workflow(steps, output="b.output"), script=failing("bad"))
    assert end_of(world.run()) == ("completed", "failed upstream_error")
    assert "workflow.transition a->b a_failed" in world.types
    world.check()


@pytest.mark.parametrize("breaks", [True, False])
def test_a_handler_runs_only_if_its_step_has_failed(breaks: bool) -> None:
    steps = {
        "a": run_step("bad", on_failure="mend"),
        "mend": {"set": '"mended " + a.error.code'},
        "b": {"needs": ["mend"], "set": "[a.status, mend.status]"},
    }
    world = World(workflow(steps, output="b.output"), script=failing(*["bad"] * breaks))
    expected = ["failed", "completed"] if breaks else ["completed", "skipped"]
    assert end_of(world.run()) == ("completed", expected)
    world.check()


def test_a_loop_that_continues_has_null_for_failed_items_and_names_them() -> None:
    steps = {
        "each": run_step(
            message="string(item)",
            for_each={"in": "[1, 2, 3]"},
            on_failure="continue",
            output="result.text",
        ),
        "b": {"needs": ["each"], "set": '{"out": each.output, "error": each.error}'},
    }
    world = World(
        workflow(steps, output="b.output"),
        script=lambda start: failed() if start.message == "2" else completed(start.message),
    )
    status, output = end_of(world.run())
    assert status == "completed"
    assert output["out"] == ["1", None, "3"]
    assert output["error"] == {
        "code": "items_failed",
        "message": "1 of 3 items failed; item 1: it broke",
        "items": [{"index": 1, "code": "upstream_error", "message": "it broke"}],
    }
    assert "workflow.step_failed each" in world.types
    world.check()


def test_a_loop_whose_item_fails_ends_the_run() -> None:
    steps = {"each": run_step(message="string(item)", for_each={"in": "[1, 2, 3]", "limit": 1})}
    world = World(
        workflow(steps),
        script=lambda start: failed() if start.message == "2" else completed(),
    )
    assert end_of(world.run()) == ("failed", "upstream_error")
    assert len(world.started) == 2
    world.check()


# retry


def test_a_step_is_tried_again_after_a_backoff_that_grows() -> None:
    retry = RETRY | {"attempts": 4, "backoff": "2s", "factor": 3, "max_backoff": "10s"}
    world = World(workflow({"a": run_step(retry=retry)}), script=failing("agent"))
    begun_ms = world.now_ms
    assert end_of(world.run()) == ("failed", "upstream_error")
    assert len(world.started) == 4
    assert world.now_ms - begun_ms == (2 + 6 + 10) * 1000
    retries = [data for type_, data in world.events if type_ == "lifecycle.retrying"]
    assert retries == [
        {"retry_count": count, "max_retries": 3, "reason": "it broke", "step": "a"}
        for count in (1, 2, 3)
    ]
    begun = [data for type_, data in world.events if type_ == "workflow.step_started"]
    assert [data.get("attempt") for data in begun] == [None, 2, 3, 4]
    assert len({data["child_run_id"] for data in begun}) == 4
    assert world.types.count("workflow.step_failed a") == 1
    world.check()


def test_attempts_share_the_session_of_their_step() -> None:
    world = World(workflow({"a": run_step(retry=RETRY)}), script=failing("agent"))
    world.run()
    assert len({start.session_id for start in world.started.values()}) == 1


@pytest.mark.parametrize(
    ("code", "codes", "attempts"),
    [
        ("not_sent", None, 2),
        ("upstream_lost", None, 1),
        ("upstream_error", None, 1),
        ("upstream_error", ["timeout"], 1),
        ("timeout", ["timeout"], 2),
        ("outcome_unknown", None, 1),
        ("outcome_unknown", ["outcome_unknown"], 2),
        ("limit_exceeded", None, 1),
    ],
)
def test_only_the_codes_of_a_retry_are_tried_again_and_an_unknown_outcome_only_if_named(
    code: str, codes: list[str] | None, attempts: int
) -> None:
    retry = {"attempts": 2} if codes is None else {"attempts": 2, "codes": codes}
    world = World(workflow({"a": run_step(retry=retry)}), script=failing("agent", code=code))
    world.run()
    assert len(world.started) == attempts
    world.check()


def test_the_codes_of_a_retry_may_name_an_error_in_the_words_of_the_agent_server() -> None:
    error = {"error": "it broke", "code": "upstream_error", "error_type": "RATE_LIMIT"}
    retry = {"attempts": 2, "codes": ["RATE_LIMIT"]}
    world = World(
        workflow({"a": run_step(retry=retry)}), script=lambda _: ("lifecycle.failed", error)
    )
    world.run()
    assert len(world.started) == 2


def test_a_workflow_whose_step_was_not_sent_is_not_repeated_by_one_above_it() -> None:
    steps = {"first": run_step("good"), "a": run_step(needs=["first"])}
    world = World(workflow(steps), script=failing("agent", code="not_sent"))
    assert end_of(world.run()) == ("failed", "upstream_lost")


def test_a_child_that_somebody_cancelled_is_not_started_again() -> None:
    world = World(
        workflow({"a": run_step(retry={"attempts": 3})}),
        script=lambda _: ("lifecycle.cancelled", {"by": "ada", "reason": "user_stop"}),
    )
    assert end_of(world.run()) == ("failed", "cancelled")
    assert len(world.started) == 1


def test_an_answer_that_the_output_cannot_use_is_tried_again_like_a_failure() -> None:
    answers = iter(["no json", '{"score": 3}'])
    retry = RETRY | {"codes": ["expression_error"]}
    steps = {"a": run_step(output="result.data.score", retry=retry)}
    world = World(workflow(steps, output="a.output"), script=lambda _: completed(next(answers)))
    assert end_of(world.run()) == ("completed", 3)
    world.check()


# timeouts


def test_a_step_that_takes_too_long_fails_and_its_child_is_cancelled() -> None:
    steps = {
        "a": run_step(timeout="5s", on_failure="continue"),
        "b": {"needs": ["a"], "set": "a.error.code"},
    }
    world = World(workflow(steps, output="b.output"), script=lambda _: None)
    assert end_of(world.run()) == ("completed", "timeout")
    [child] = world.started
    assert [*world.cancelled] == [child]
    error = "it took longer than its timeout of 5 s"
    finished = ("dispatch.finished", {"subrun_id": child, "status": "cancelled", "error": error})
    assert world.events[3] == finished, "the worker has no end at the timeout"
    world.check()


def test_a_child_is_cancelled_although_the_process_died_right_after_it_recorded_the_timeout() -> (
    None
):
    steps = {"a": run_step(timeout="5s", on_failure="continue")}
    world = World(workflow(steps), script=lambda _: None)
    drain(world)
    assert world.ring()
    world.append(world.decide(world.inputs.pop(0), world.state))
    assert not world.cancelled  # the effects of the decision were not carried out
    world.redo()
    assert [*world.cancelled] == [*world.started]


def test_a_step_that_took_too_long_may_be_tried_again() -> None:
    steps = {"a": run_step(timeout="5s", retry={"attempts": 2, "codes": ["timeout"]})}
    seen: list[str] = []

    def script(start: StartChild) -> Ending | None:
        seen.append(start.child)
        return completed("late") if len(seen) == 2 else None

    world = World(workflow(steps, output="a.output.text"), script=script)
    assert end_of(world.run()) == ("completed", "late")
    assert world.cancelled == {seen[0]}
    world.check()


def test_a_workflow_that_takes_too_long_fails() -> None:
    steps = {"a": {"wait": "10s"}, "b": run_step(needs=["a"])}
    world = World(workflow(steps, timeout="5s"))
    assert end_of(world.run()) == ("failed", "timeout")
    assert world.types[-1] == "lifecycle.failed a"
    world.check()


# people


def test_an_approval_asks_pauses_the_run_and_gives_the_decision() -> None:
    steps = {
        "a": {
            "approve": {"title": '"Merge?"', "show": '{"score": 3}', "policy": "owners"},
            "output": "result.decision + ' by ' + result.by",
        }
    }
    world = World(workflow(steps, output="a.output"))
    assert end_of(world.run()) == ("completed", "approved by grace")
    assert world.types == [
        "workflow.started",
        "workflow.step_started a",
        "approval.requested",
        "lifecycle.paused",
        "approval.decided",
        "lifecycle.resumed",
        "workflow.step_completed a",
        "workflow.completed",
        "lifecycle.completed",
    ]
    requested = world.events[2][1]
    (item,) = requested["items"]
    assert (item["tool"], item["args"], item["description"]) == ("owners", {"score": 3}, "Merge?")
    world.check()


def test_an_approval_names_its_deciders_and_gives_the_answer_of_its_form() -> None:
    form = {"type": "object", "properties": {"amount": {"type": "number"}}}
    deciders = {"roles": ["finance"], "not": ["requester"]}
    ask = {"title": '"How much?"', "need": 2, "deciders": deciders, "form": form}
    half = {"needs": ["ask"], "set": "ask.output.data.amount / 2.0"}
    steps = {"ask": {"approve": ask}, "b": half}
    world = World(workflow(steps, output="b.output"), decisions={"ask": "none"})
    drain(world)
    [requested] = [data for type_, data in world.events if type_ == "approval.requested"]
    assert (requested["deciders_required"], requested["deciders"]) == (2, deciders)
    [item] = requested["items"]
    assert (item["kind"], item["input_schema"]) == ("input", form)
    world.take(decided(requested["approval_id"], value={"amount": 3}))
    assert world.state is not None
    assert end_of(world.state) == ("completed", 1.5)
    world.check()


def test_a_rejected_approval_fails_the_step_and_leaves_the_decision_in_its_output() -> None:
    steps = {
        "ask": {"approve": {"title": '"ok?"'}, "on_failure": "continue"},
        "b": {"needs": ["ask"], "set": "[ask.error.code, ask.output.decision, ask.output.by]"},
    }
    world = World(workflow(steps, output="b.output"), decisions={"ask": "reject"})
    assert end_of(world.run()) == ("completed", ["rejected", "rejected", "grace"])
    world.check()


def test_an_approval_whose_deadline_passed_fails_the_step_with_its_own_code() -> None:
    world = World(workflow({"ask": {"approve": {"title": '"ok?"'}}}), decisions={"ask": "none"})
    drain(world)
    assert world.state is not None
    approval = world.state.paused
    assert approval is not None
    world.take(decided(approval, "reject", expired=True))
    assert end_of(world.state) == ("failed", "expired")
    world.check()


def test_an_approval_of_which_nothing_is_heard_ends_with_the_steps_timeout() -> None:
    steps = {"ask": {"approve": {"title": '"ok?"'}, "timeout": "1h"}}
    world = World(workflow(steps), decisions={"ask": "none"})
    assert end_of(world.run()) == ("failed", "expired")
    requested = next(data for type_, data in world.events if type_ == "approval.requested")
    assert requested["expires_at"] == "1970-01-01T01:16:40.000Z"
    assert "approval.withdrawn" in world.types
    world.check()


def test_a_run_is_paused_only_when_nothing_else_can_continue() -> None:
    steps = {
        "ask": {"approve": {"title": '"ok?"'}},
        "slow": run_step("slow"),
        "end": {"needs": ["ask", "slow"], "set": "1"},
    }
    world = World(workflow(steps), script=lambda _: None, decisions={"ask": "none"})
    drain(world)
    assert "lifecycle.paused" not in world.types  # `slow` works
    (child,) = world.started
    world.take(ChildInput(child, "lifecycle.paused", {"approval_id": "of-child"}, 5))
    assert world.types[-1] == "lifecycle.paused"
    world.take(ChildInput(child, "lifecycle.resumed", {}, 7))
    assert world.types[-1] == "lifecycle.resumed"
    world.take(ChildInput(child, "lifecycle.paused", {"approval_id": "of-child"}, 5))  # late
    assert world.types[-1] == "lifecycle.resumed"
    world.take(ChildInput(child, *completed(), 9))
    assert world.types[-1] == "lifecycle.paused"
    world.check()


def test_a_pause_always_names_an_approval_that_is_open() -> None:
    steps: dict[str, Any] = {name: {"approve": {"title": '"ok?"'}} for name in "ab"}
    steps["c"] = {"needs": ["a", "b"], "set": "1"}
    world = World(workflow(steps), decisions={"a": "none", "b": "none"})
    drain(world)
    assert world.state is not None
    first = world.state.paused
    assert first is not None
    world.take(decided(first))
    second = world.state.paused
    assert second not in (None, first)
    world.take(decided(str(second)))
    assert end_of(world.state) == ("completed", None)
    kinds = [type_ for type_ in world.types if type_.startswith("lifecycle")]
    assert kinds == [*["lifecycle.paused", "lifecycle.resumed"] * 2, "lifecycle.completed"]
    world.check()


def test_each_escalation_and_the_end_of_the_deadline_are_told_once() -> None:
    world = World(workflow({"a": {"approve": {"title": '"ok?"'}}}), decisions={"a": "none"})
    drain(world)
    assert world.state is not None
    approval = str(world.state.paused)
    for step in (1, 1, 2, 1):
        data = {"approval_id": approval, "step": step}
        event = {"type": "approval.escalated", "data": data}
        world.take(ApprovalInput(approval, "escalated", event))
    expired = {"type": "approval.expired", "data": {"approval_id": approval, "reason": "late"}}
    for _ in range(2):
        world.take(ApprovalInput(approval, "expired", expired))
    told = [type_ for type_ in world.types if type_.startswith("approval.e")]
    assert [each.split()[0] for each in told] == [*["approval.escalated"] * 2, "approval.expired"]
    assert world.state.end is None  # the policy says what follows
    world.take(decided(approval))
    assert end_of(world.state)[0] == "completed"
    world.check()


def test_an_approval_that_is_withdrawn_fails_its_step() -> None:
    steps = {"a": {"approve": {"title": '"ok?"'}, "retry": {"attempts": 2, "codes": ["rejected"]}}}
    world = World(workflow(steps), decisions={"a": "none"})
    drain(world)
    assert world.state is not None
    approval = str(world.state.paused)
    event = {"type": "approval.withdrawn", "data": {"approval_id": approval, "reason": "moot"}}
    world.take(ApprovalInput(approval, "withdrawn", event))
    assert end_of(world.state) == ("failed", "withdrawn")


def test_another_attempt_of_a_question_is_another_approval() -> None:
    retry = {"attempts": 2, "backoff": "1s", "codes": ["rejected"]}
    steps = {"a": {"approve": {"title": '"ok?"'}, "retry": retry}}
    world = World(workflow(steps), decisions={"a": "reject"})
    assert end_of(world.run()) == ("failed", "rejected")
    asked = [data["approval_id"] for type_, data in world.events if "requested" in type_]
    assert len({*asked}) == 2
    world.check()


# late inputs


def test_what_belongs_to_an_earlier_attempt_changes_nothing() -> None:
    steps = {"a": run_step(timeout="5s", retry=RETRY | {"backoff": "1s"})}
    world = World(workflow(steps), script=lambda _: None)
    drain(world)
    (first,) = world.started
    world.take(ChildInput(first, "lifecycle.failed", {}, 3))
    for timer in ("timeout-a--1", "wait-a--1", "retry-a--2", "retry-b--1", "other", "retry-a-x-1"):
        assert world.take(TimerInput(timer)).records == []
    assert world.ring()
    drain(world)
    for late in (TimerInput("timeout-a--1"), TimerInput("retry-a--1")):
        assert world.take(late).records == []
    for type_ in ("lifecycle.completed", "lifecycle.failed", "lifecycle.paused"):
        assert world.take(ChildInput(first, type_, {"summary": "late"}, 9)).records == []
    assert world.state is not None
    assert [entry.attempt for entry in world.state.open.values()] == [2]
    world.check()


def test_the_times_of_a_journal_never_decrease_although_clocks_differ() -> None:
    world = World(workflow({"a": run_step(), "b": run_step(needs=["a"])}))
    world.take(world.inputs.pop(0))
    world.now_ms -= 5_000
    world.run()
    assert {record.at for record in world.journal} == {1_000_000}
    world.check()


# waiting, listening, calling


def test_a_wait_takes_its_time() -> None:
    world = World(workflow({"a": {"wait": "1h30m"}, "b": {"needs": ["a"], "set": "a.status"}}))
    begun_ms = world.now_ms
    assert end_of(world.run()) == ("completed", None)
    assert world.now_ms - begun_ms == 5_400_000
    world.check()


def test_a_step_hears_the_first_event_that_its_condition_holds_for() -> None:
    steps = {
        "a": {
            "listen": {"event": "note.added", "where": "event.data.n > 1"},
            "output": "result.data.data.n",
        }
    }
    world = World(workflow(steps, output="a.output"))
    drain(world)
    assert world.state is not None
    assert world.state.end is None  # n was 1
    heard = next(iter(world.listening.values()))
    for data in ({}, {"n": 0}, {"n": 7}):
        world.take(world.heard(heard, data))
    assert end_of(world.state) == ("completed", 7)
    world.check()


def test_a_call_gives_its_answer() -> None:
    steps = {
        "a": {
            "call": {"url": "https://example.com/", "body": '{"n": 1}', "secret": "mine"},
            "output": "result.data.ok",
        }
    }
    world = World(workflow(steps, output="a.output"))
    assert end_of(world.run()) == ("completed", True)
    (call,) = world.calls.values()
    assert (call.url, call.body, call.secret) == ("https://example.com/", {"n": 1}, "mine")
    assert (call.method, call.headers, call.expect) == ("POST", {}, None)
    world.check()


def test_a_call_has_its_method_its_parameters_its_headers_and_the_answers_that_it_expects() -> None:
    fields = {
        "url": "https://example.com/?a=1",
        "method": "GET",
        "query": {"q": "input.q", "n": "[1, 2.0, 2.5]", "none": "null", "is": "true"},
        "headers": {"X-Id": "id ${size(input.q)}"},
        "expect": [200, 404],
    }
    steps = {"a": {"call": fields, "output": "[result.status, result.headers]"}}
    world = World(workflow(steps, output="a.output"), {"q": "x & y"})
    assert end_of(world.run()) == ("completed", [200, {}])
    (call,) = world.calls.values()
    assert call.url == "https://example.com/?a=1&q=x+%26+y&n=1&n=2&n=2.5&is=true"
    assert (call.method, call.headers, call.expect) == ("GET", {"X-Id": "id 5"}, [200, 404])
    world.check()


@pytest.mark.parametrize("field", ["query", "headers"])
def test_a_call_with_a_large_parameter_or_header_fails_its_step(field: str) -> None:
    fields = {f"x-{number}": "input.text" for number in range(20)}
    world = World(
        workflow({"a": {"call": {"url": "https://example.com/", field: fields}}}),
        {"text": "x" * 10_000},
    )
    assert end_of(world.run()) == ("failed", "expression_error")
    assert world.calls == {}


def test_a_call_with_a_header_that_is_no_text_fails_its_step() -> None:
    steps = {"a": {"call": {"url": "https://example.com/", "headers": {"X-Id": "input.n"}}}}
    world = World(workflow(steps), {"n": 1})
    assert end_of(world.run()) == ("failed", "expression_error")
    assert world.calls == {}


# cancel


@pytest.mark.parametrize(
    "step",
    [
        run_step(),
        {"workflow": {"workflow": "inner"}},
        run_step(for_each={"in": "[1, 2, 3]", "limit": 2}),
        {"approve": {"title": '"ok?"'}},
        {"wait": "1h"},
        {"listen": {"event": "a.b", "where": "event.data.n == 5"}},
        run_step(retry=RETRY | {"backoff": "1h"}),
    ],
    ids=["run", "workflow", "for_each", "approve", "wait", "listen", "retry"],
)
def test_a_cancelled_run_cancels_its_children_and_ends_when_they_have_ended(step: Any) -> None:
    def script(start: StartChild) -> Ending | None:
        return failed() if "retry" in step else None

    steps = {"a": step, "b": run_step("late", needs=["a"])}
    world = World(workflow(steps), script=script, decisions={"a": "none"})
    drain(world)
    children = {*world.started}
    world.take(CancelInput("ada", "user_stop"))
    assert world.state is not None
    if "retry" not in step:
        assert world.cancelled == children
    assert (world.state.end is None) == bool(world.cancelled)
    world.run()
    assert world.types[-1] == "lifecycle.cancelled a"
    expected = {"reason": "user_stop", "by": "ada", "step": "a", "confirmed": True}
    assert world.events[-1][1] == expected
    assert not world.timers
    assert all(start.name != "late" for start in world.started.values())
    world.check()


def test_a_run_ends_although_a_cancelled_child_does_not() -> None:
    world = World(workflow({"a": run_step()}), script=lambda _: None)
    drain(world)
    world.take(CancelInput("ada"))
    world.inputs.clear()  # the child never answers
    begun_ms = world.now_ms
    state = world.run()
    assert world.now_ms - begun_ms == 30_000
    assert end_of(state)[0] == "cancelled"
    assert world.events[-1][1]["confirmed"] is False
    world.check()


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_cancelled_run_is_confirmed_if_the_agent_servers_of_its_children_stopped(
    confirmed: bool,
) -> None:
    world = World(workflow({"a": run_step(), "b": run_step()}), script=lambda _: None)
    drain(world)
    world.take(CancelInput("ada"))
    world.inputs.clear()
    one, other = world.cancelled
    world.take(ChildInput(one, "lifecycle.cancelled", {"confirmed": confirmed}))
    world.take(ChildInput(other, "lifecycle.cancelled", {"confirmed": True}))
    assert end_of(world.run())[0] == "cancelled"
    assert world.events[-1][1]["confirmed"] is confirmed
    world.check()


def test_a_child_whose_step_is_over_before_its_start_never_starts() -> None:
    world = World(workflow({"a": run_step()}))
    world.take(world.inputs.pop(0))
    world.take(CancelInput("ada"))
    assert end_of(world.run())[0] == "cancelled"
    assert not world.started
    world.check()


def test_a_run_one_of_whose_inputs_was_given_up_fails_and_cancels_its_children() -> None:
    steps = {"a": run_step("slow"), "b": run_step("late", needs=["a"])}
    world = World(workflow(steps), {}, lambda start: None)
    drain(world)
    failure = FailInput({"code": "internal", "message": "see the dead letter"})
    world.take(failure)
    drain(world)
    assert world.cancelled == set(world.started)
    (child,) = world.started
    world.take(ChildInput(child, "lifecycle.cancelled", {"by": "workflow"}))
    assert world.state is not None
    assert end_of(world.state) == ("failed", "internal")
    before = list(world.journal)
    world.take(failure)
    world.take(ChildInput(child, "lifecycle.completed", {}))
    assert world.journal == before
    world.check()


def test_a_run_does_not_wait_for_the_child_whose_end_was_given_up() -> None:
    world = World(workflow({"a": run_step("slow")}), {}, lambda start: None)
    drain(world)
    (child,) = world.started
    failure = {"code": "internal", "message": "see the dead letter"}
    world.take(FailInput(failure, (child, "lifecycle.completed")))
    assert world.state is not None
    assert end_of(world.state) == ("failed", "internal")
    world.check()


def test_a_run_that_stops_ends_at_once_when_an_input_is_given_up() -> None:
    world = World(workflow({"a": run_step("slow")}), {}, lambda start: None)
    drain(world)
    world.take(CancelInput("ada"))
    assert world.state is not None
    if world.state.end is None:
        world.take(FailInput({"code": "internal", "message": "see the dead letter"}))
    assert world.state.end is not None
    assert world.state.end.status == "cancelled"
    world.check()
