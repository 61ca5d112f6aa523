"""Steps with `always` run after a success, a failure and a cancel, when the children have ended."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_workflows.definition import InvalidDefinition, load_value
from penstock_workflows.engine import limits
from penstock_workflows.engine.effects import StartChild
from penstock_workflows.engine.inputs import CancelInput, ChildInput, FailInput, TimerInput
from penstock_workflows.engine.records import End, Stop
from support.pure.engine_world import Ending, World, completed, failed, run_step, workflow

CLEAN = run_step("cleaner", "'after ' + work.status", needs=["work"], always=True)
STEPS = {"work": run_step("worker"), "later": run_step("later", needs=["work"]), "clean": CLEAN}


def script(**endings: Ending | None) -> Any:
    def of(start: StartChild) -> Ending | None:
        return endings.get(start.name, completed())

    return of


def started(world: World) -> list[tuple[str, str]]:
    return [(start.name, start.message) for start in world.started.values()]


def end_of(world: World) -> End:
    world.check()
    [end] = [each for each in world.journal if isinstance(each, End)]
    return end


def test_a_step_with_always_runs_once_after_a_success() -> None:
    world = World(workflow(STEPS), script=script())
    world.run()
    assert sorted(started(world)) == [
        ("cleaner", "after completed"),
        ("later", "go"),
        ("worker", "go"),
    ]
    assert end_of(world).status == "completed"


def test_it_runs_after_a_failure_which_stays_the_end_of_the_run() -> None:
    world = World(workflow(STEPS), script=script(worker=failed(), cleaner=failed("other")))
    world.run()
    assert started(world) == [("worker", "go"), ("cleaner", "after failed")]
    end = end_of(world)
    assert (end.status, end.step, (end.error or {})["code"]) == ("failed", "work", "upstream_error")
    assert world.types[-2:] == ["workflow.failed", "lifecycle.failed work"]
    assert "workflow.step_failed clean" in world.types


def test_it_runs_after_a_cancel_when_the_cancelled_child_has_ended() -> None:
    world = World(workflow(STEPS), script=script(worker=None))
    world.run_until_idle()
    world.take(CancelInput("ada", "user_stop"))
    assert started(world) == [("worker", "go")]  # its end is awaited
    world.run()
    assert started(world) == [("worker", "go"), ("cleaner", "after cancelled")]
    assert "workflow.transition work->clean work_cancelled" in world.types
    assert (end_of(world).status, end_of(world).by) == ("cancelled", "ada")
    assert world.started[list(world.started)[-1]].always


def test_a_child_whose_end_is_never_known_delays_it_by_the_grace_time_only() -> None:
    world = World(workflow(STEPS), script=script(worker=None))
    world.run_until_idle()
    world.take(CancelInput("ada", "user_stop"))
    world.inputs = [each for each in world.inputs if not isinstance(each, ChildInput)]
    began = world.now_ms
    # The clock of the process that decides may be behind that of the timer.
    world.timers.pop("stop")
    world.take(TimerInput("stop"))
    world.run()
    assert started(world)[-1] == ("cleaner", "after cancelled")
    end = end_of(world)
    assert end.at >= began + limits.STOP_MS
    assert not end.confirmed


def test_a_step_that_is_under_way_goes_on_and_is_not_begun_again() -> None:
    steps = {**STEPS, "clean": run_step("cleaner", always=True)}
    world = World(workflow(steps), script=script(worker=None, cleaner=None))
    world.run_until_idle()
    [_, cleaner] = world.started
    world.take(CancelInput("ada", "user_stop"))
    world.run_until_idle()
    assert cleaner not in world.cancelled
    assert world.state is not None
    assert world.state.end is None
    world.take(ChildInput(cleaner, *completed(), 9))
    assert end_of(world).status == "cancelled"
    assert len(world.started) == 2


def test_steps_with_always_keep_their_order_and_their_retries_and_use_no_other_steps() -> None:
    steps = {
        "work": run_step("worker"),
        "one": run_step("one", always=True, needs=["work"], retry={"attempts": 2, "codes": ["x"]}),
        "two": run_step("two", "one.status + work.status", always=True, needs=["one"]),
        "after": run_step("after", needs=["two"]),
    }
    calls: list[str] = []

    def of(start: StartChild) -> Ending:
        calls.append(start.name)
        return failed("x") if start.name == "worker" or calls == ["worker", "one"] else completed()

    world = World(workflow(steps), script=of)
    world.run()
    assert calls == ["worker", "one", "one", "two"]
    assert started(world)[-1][1] == "completedfailed"
    assert end_of(world).status == "failed"


def test_a_failure_of_one_fails_a_run_that_was_well_and_the_others_still_run() -> None:
    steps = {
        "one": run_step("one", always=True),
        "two": run_step("two", always=True, needs=["one"]),
        "after": run_step("after", needs=["one"]),
    }
    world = World(workflow(steps), script=script(one=failed()))
    world.run()
    assert [name for name, _ in started(world)] == ["one", "two"]
    assert end_of(world).step == "one"


def test_a_stopped_run_ends_after_ten_minutes_although_a_step_hangs() -> None:
    world = World(workflow(STEPS), script=script(worker=failed(), cleaner=None))
    world.run()
    end = end_of(world)
    [stop] = [each for each in world.journal if isinstance(each, Stop)]
    assert end.at == stop.at + limits.STOP_MS + limits.ALWAYS_MS
    assert (end.status, end.confirmed) == ("failed", False)
    assert list(world.started)[-1] in world.cancelled
    assert world.timers == {}


@pytest.mark.parametrize("stopped", [False, True])
def test_an_end_that_cannot_be_processed_fails_the_step(stopped: bool) -> None:
    steps = {"work": run_step("worker"), "clean": run_step("cleaner", always=True)}
    world = World(workflow(steps), script=script(cleaner=None, worker=None))
    world.run_until_idle()
    if stopped:
        world.take(CancelInput("ada", "user_stop"))
    [_, cleaner] = world.started
    world.take(FailInput({"code": "internal", "message": "x"}, (cleaner, "lifecycle.completed")))
    world.run()
    assert end_of(world).status == ("cancelled" if stopped else "failed")


def test_whatever_is_read_of_a_step_that_may_not_have_ended_has_no_type() -> None:
    steps = {
        "n": {"set": "1"},
        "clean": {"set": "n.output == null ? 0 : n.output", "needs": ["n"], "always": True},
    }
    load_value(workflow(steps))


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ({"approve": {"title": "'?'"}}, "a step with approve has no always"),
        ({"listen": {"event": "lifecycle.completed"}}, "a step with listen has no always"),
        ({"for_each": {"in": "[1]"}, "set": "item"}, "a step with for_each has no always"),
    ],
)
def test_what_could_keep_a_cancelled_run_for_long_cannot_be_always(
    step: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidDefinition, match=reason):
        load_value(workflow({"a": {**step, "always": True}}))
