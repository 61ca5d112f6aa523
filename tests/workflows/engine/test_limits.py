"""What ends a run for a reason of its own: limits, wrong expressions, refused starts."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from penstock.bus.records.runs import StartCommand
from penstock_workflows.engine import limits
from penstock_workflows.engine.decide import decide
from penstock_workflows.engine.draft import SliceUsed
from penstock_workflows.engine.inputs import CalledInput, EventInput, ProceedInput, StartInput
from penstock_workflows.engine.records import (
    ApprovalReported,
    CancelledChildEnded,
    ChildPaused,
    ChildResumed,
    End,
    Ended,
    ForEachStarted,
    Record,
    UnknownRecord,
    as_json,
    decode,
    encode,
)
from support.pure.engine_world import RUN_ID, World, completed, failed, run_step, workflow


def error_of(world: World) -> tuple[str, str, str | None]:
    """Return the code, the message and the step of a run that has failed."""
    end = world.run().end
    assert end is not None
    assert end.status == "failed"
    assert end.error is not None
    world.check()
    return end.error["code"], end.error["message"], end.step


# limits


def test_a_run_may_begin_a_thousand_steps_and_items() -> None:
    items = orjson.dumps(list(range(998))).decode()
    steps: dict[str, Any] = {
        "all": {"set": "input.items"},
        "each": {"needs": ["all"], "for_each": {"in": "all.output"}, "set": "item"},
        "last": {"needs": ["each"], "set": "1"},
    }
    world = World(workflow(steps), {"items": orjson.loads(items)})
    state = world.run()
    assert state.end is not None
    assert state.end.status == "completed"
    steps["more"] = {"needs": ["last"], "set": "1"}
    world = World(workflow(steps), {"items": orjson.loads(items)})
    code, message, step = error_of(world)
    assert (code, step) == ("limit_exceeded", "more")
    assert "1000 steps, items and further attempts" in message


def test_attempts_count_for_the_limit() -> None:
    steps = {
        "each": run_step(
            for_each={"in": "input.items", "limit": 100},
            retry={"codes": ["upstream_error"], "attempts": 20, "backoff": "1ms"},
            on_failure="continue",
        )
    }
    world = World(workflow(steps, concurrency=100), {"items": [0] * 100}, script=lambda _: failed())
    assert error_of(world)[0] == "limit_exceeded"
    assert len(world.started) == 1000


def test_a_list_may_have_a_thousand_items() -> None:
    steps = {"each": {"for_each": {"in": "input.items"}, "set": "1", "on_failure": "continue"}}
    code, message, step = error_of(World(workflow(steps), {"items": [0] * 1001}))
    assert (code, step) == ("limit_exceeded", "each")
    assert "1001 items" in message


@pytest.mark.parametrize(("depth", "status"), [(8, "completed"), (9, "failed")])
def test_workflows_may_be_nested_eight_deep(depth: int, status: str) -> None:
    command = {"session_id": "s", "workflow_depth": depth}
    world = World(workflow({"a": {"set": "1"}}), command=command)
    end = world.run().end
    assert end is not None
    assert end.status == status
    assert (end.error is None) or end.error["code"] == "limit_exceeded"
    world.check()


def test_the_runs_below_a_workflow_share_its_places_however_it_is_nested() -> None:
    """A workflow that runs itself a hundred times has at most two thousand runs under way."""
    bomb = workflow(
        {"a": {"workflow": {"workflow": "bomb"}, "for_each": {"in": "input.items", "limit": 100}}},
        concurrency=100,
    )
    under_way, places = 1, None
    for depth in range(8):
        command = {"session_id": "s", "workflow_depth": depth, "workflow_places": places}
        world = World(bomb, {"items": [0] * 200}, script=lambda _: None, command=command)
        while world.inputs:
            world.take(world.inputs.pop(0))
        under_way *= len(world.started)
        (places,) = {start.places for start in world.started.values()}
        assert under_way <= 2000, f"at depth {depth + 1}"
    assert under_way == 2000


# wrong expressions

_WRONG = "input.missing"


@pytest.mark.parametrize(
    ("step", "what"),
    [
        ({"set": _WRONG}, "set of the step a"),
        ({"set": "1", "when": f"{_WRONG} == 1"}, "when of the step a"),
        ({"set": "1", "for_each": {"in": _WRONG}}, "for_each.in of the step a"),
        ({"set": "item.x", "for_each": {"in": "[{}]"}}, "set of the step a.0"),
        (run_step(message=_WRONG), "message of the step a"),
        ({"run": {"agent": "x", "message": '"m"', "input": _WRONG}}, "input of the step a"),
        (run_step(output=_WRONG), "output of the step a"),
        (run_step(dispatch={"team": _WRONG}), "dispatch.team of the step a"),
        ({"workflow": {"workflow": "w", "input": _WRONG}}, "input of the step a"),
        ({"approve": {"title": _WRONG}}, "title of the step a"),
        ({"approve": {"title": '"t"', "show": _WRONG}}, "show of the step a"),
        ({"call": {"url": "https://x.example/", "body": _WRONG}}, "body of the step a"),
        ({"listen": {"event": "a.b", "where": "1 / event.data.n / 0 == 1"}}, "where of the step a"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_expression_that_cannot_be_evaluated_fails_the_run_with_step_and_reason(
    step: dict[str, Any], what: str
) -> None:
    world = World(workflow({"a": step, "b": run_step(needs=["a"])}))
    code, message, failed_step = error_of(world)
    assert (code, failed_step) == ("expression_error", "a")
    assert f"{what} cannot be evaluated: " in message
    wrong = "event.data" if "where" in what else "item.x" if "item" in str(step) else _WRONG
    assert wrong in message
    types = [each.split()[0] for each in world.types]
    begun = types.count("workflow.step_started")
    assert begun == (2 if "a.0" in what else 1), "a step that fails has begun"


def test_a_run_may_continue_after_a_wrong_expression() -> None:
    steps = {
        "a": {"set": _WRONG, "on_failure": "continue"},
        "b": {"needs": ["a"], "set": "a.error.code"},
    }
    end = World(workflow(steps, output="b.output")).run().end
    assert end is not None
    assert end.output == "expression_error"


def test_a_wrong_output_of_the_workflow_fails_the_run() -> None:
    world = World(workflow({"a": {"set": "1"}}, output="input.missing"))
    code, message, step = error_of(world)
    assert (code, step) == ("expression_error", None)
    assert "the workflow's output cannot be evaluated" in message


# answers that cannot be stored


@pytest.mark.parametrize(
    "step",
    [
        run_step(),
        run_step(output="result.data"),
        {"call": {"url": "https://x.example/"}},
        {"listen": {"event": "custom.event"}},
    ],
    ids=["run", "output", "call", "listen"],
)
@pytest.mark.parametrize("levels", [120, 160, 252, 300, 1000])
def test_an_answer_that_is_nested_too_deep_fails_its_step(
    step: dict[str, Any], levels: int
) -> None:
    """Without this, the answer is a dead letter, and the run stands still."""
    text = "[" * levels + "]" * levels
    world = World(workflow({"a": step}), script=lambda _: completed(text))
    world.take(world.inputs.pop(0))
    for call_id in [*world.calls]:
        world.take(CalledInput(call_id, "delivered", 200, text))
    for name, index, attempt in [*world.listening]:
        world.take(EventInput(name, index, attempt, {"data": orjson.loads(text)}))
    code, _, failed_step = error_of(world)
    assert code in ("invalid_output", "expression_error")
    assert failed_step == "a"


def test_an_answer_of_a_hundred_levels_is_passed_on_through_commands_and_events() -> None:
    text = "[" * 98 + "]" * 98
    nested = "[" * 20 + "a.output.data" + "]" * 20
    steps = {
        "a": run_step(),
        "b": {"needs": ["a"], **run_step()},
    }
    steps["b"]["run"]["input"] = f"{{'x': {nested}}}"
    world = World(workflow(steps), script=lambda _: completed(text))
    end = world.run().end
    assert end is not None
    assert end.status == "completed"
    start = list(world.started.values())[-1]
    command = StartCommand(
        run_id=start.child,
        agent="x",
        session_id="s",
        user_id="u",
        message="m",
        created_at="2026-11-22T19:00:00.000Z",
        input=start.input,
    )
    assert StartCommand.model_validate_json(command.dump()).input == start.input


def test_impossible_numbers_of_tokens_do_not_count() -> None:
    usage = {"input_tokens": 2**64 - 1, "output_tokens": -1, "total_tokens": 5}
    steps = {"a": run_step(), "b": run_step()}
    world = World(workflow(steps), script=lambda _: completed(usage=usage))
    state = world.run()
    assert state.end is not None
    assert state.end.status == "completed"
    assert state.usage == {"total_tokens": 10}


# starts


def test_a_refused_start_is_a_run_that_has_failed() -> None:
    world = World({})
    refused = {"code": "unknown_workflow", "message": "there is no workflow 'x'"}
    world.inputs = [StartInput(RUN_ID, {"session_id": "s"}, {"agent": "x"}, None, {}, refused)]
    assert error_of(world) == ("unknown_workflow", "there is no workflow 'x'", None)
    assert [frame.kind for frame in world.frames] == ["open", "event"]
    assert world.types == ["lifecycle.failed"]


def test_a_definition_that_is_not_valid_is_a_run_that_has_failed() -> None:
    world = World({"dsl": "penstock/1", "steps": {"a": {"set": "("}}})
    assert error_of(world)[0] == "invalid_definition"


def test_a_second_start_changes_nothing() -> None:
    world = World(workflow({"a": {"set": "1"}}))
    start = world.inputs[0]
    world.run()
    assert world.take(start).records == []


# large values


def test_a_large_output_is_kept_by_reference_and_loaded_where_it_is_named() -> None:
    text = "x" * 70_000
    steps = {
        "a": run_step(output="result.text"),
        "b": {"needs": ["a"], "set": "1"},
        "c": {"needs": ["b"], "set": "size(a.output)"},
    }
    world = World(workflow(steps, output="c.output"), script=lambda _: completed(text))
    end = world.run().end
    assert end is not None
    assert end.output == 70_000
    (record,) = [each for each in world.journal if isinstance(each, Ended) and each.step == "a"]
    assert record.output is None
    assert record.ref is not None
    assert world.values == {record.ref["digest"]: text}
    assert ("workflow.step_completed", text) in [(t, d.get("output")) for t, d in world.events]
    world.check()


def test_the_records_of_a_run_stay_small_however_many_outputs_it_has() -> None:
    text = "x" * 60_000
    steps = {"each": run_step(for_each={"in": "input.items"}, output="result.text")}
    world = World(workflow(steps), {"items": [0] * 100}, script=lambda _: completed(text))
    state = world.run()
    assert state.inline_bytes < 1_200_000
    assert len(encode(world.journal)) < 2_000_000
    world.check()


# the journal


def test_a_record_of_a_newer_version_is_refused() -> None:
    with pytest.raises(UnknownRecord, match="unknown type 'later'"):
        decode(orjson.dumps({"v": 1, "records": [{"record": "later", "at": 1}]}))
    with pytest.raises(UnknownRecord, match="another version"):
        decode(orjson.dumps({"v": 2, "records": []}))
    with pytest.raises(UnknownRecord, match="cannot be read"):
        decode(orjson.dumps({"v": 1, "records": [{"record": "ended", "at": 1}]}))


def test_a_record_keeps_its_fields_and_those_of_newer_versions_are_ignored() -> None:
    record = Ended(1, "a", "completed", 3, {"x": None}, size=5, child={"status": "completed"})
    (given,) = orjson.loads(encode([record]))["records"]
    assert decode(orjson.dumps({"v": 1, "records": [{**given, "newer": 1}]})) == [record]


def test_the_names_of_the_journals_records_do_not_follow_the_names_of_classes() -> None:
    renamed: list[tuple[Record, str]] = [
        (ForEachStarted(1, "a", []), "looped"),
        (ChildPaused(1, "a", 2), "held"),
        (ChildResumed(1, "a", 2), "released"),
        (ApprovalReported(1, "a", "decided"), "news"),
        (CancelledChildEnded(1, "b", "completed"), "left"),
    ]
    for record, name in renamed:
        assert as_json(record)["record"] == name
        assert decode(encode([record])) == [record]


# steps

MANY = {"items": list(range(300)), "data": list(range(40))}
LONG: dict[str, Any] = {
    "for_each": {"in": "input.items"},
    "set": "size(input.data.filter(x, size(input.data.filter(y, y == x)) > 0)) + item",
}


def start_of(world: World) -> StartInput:
    start = world.inputs[0]
    assert isinstance(start, StartInput)
    return start


def test_a_long_decision_is_partial_and_the_next_ones_begin_the_rest() -> None:
    world = World(workflow({"a": LONG}, output="a.output"), MANY)
    first = world.decide(start_of(world), None)
    assert first.is_partial
    assert 0 < sum(isinstance(each, Ended) for each in first.records) < 300
    end = world.run().end
    assert end is not None
    assert end.output == [40 + each for each in range(300)]
    world.check()


def test_a_redelivered_start_begins_what_a_partial_decision_has_left() -> None:
    """The process may end between the two decisions."""
    world = World(workflow({"a": LONG}, output="a.output"), MANY)
    world.append(world.decide(start_of(world), None))
    while (decision := world.decide(start_of(world), world.state)).is_partial:
        world.append(decision)
    assert any(isinstance(each, End) for each in decision.records)


def test_a_run_whose_decisions_take_too_many_steps_fails_even_if_items_may_fail() -> None:
    step = {**LONG, "on_failure": "continue", "retry": None}
    world = World(workflow({"a": step}), MANY)
    state = None
    given: Any = start_of(world)
    while state is None or state.end is None:
        decision = decide(state, given, now_ms=1, new_id=world.new_id, run_steps=1_000_000)
        state, given = decision.state, ProceedInput()
    assert state.end.error is not None
    assert state.end.error["code"] == "limit_exceeded"
    assert "taken 1000000 steps" in state.end.error["message"]
    assert 1_000_000 - limits.DECISION_STEPS < state.steps < 1_000_000 + limits.DECISION_STEPS


def test_a_decision_that_takes_more_than_its_slice_is_not_made() -> None:
    world = World(workflow({"a": LONG}), MANY)
    with pytest.raises(SliceUsed):
        decide(None, start_of(world), now_ms=1, new_id=world.new_id, slice_steps=2000)
    small = World(workflow({"a": {"set": "input.n + 1"}}), {"n": 1})
    given = start_of(small)
    made = decide(None, given, now_ms=1, new_id=small.new_id, slice_steps=2000)
    assert isinstance(made.records[-1], End)
