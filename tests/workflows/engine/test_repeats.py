"""A step with `repeat` runs in rounds until its condition holds, and never more than it may."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_workflows.engine import forking
from penstock_workflows.engine.effects import StartChild
from penstock_workflows.engine.state import State
from support.pure.engine_world import Ending, World, completed, failed, run_step, workflow


def repeated(until: str = "last.data >= 3", rounds: int = 5, **more: Any) -> dict[str, Any]:
    message = "'round ' + string(round) + (round > 1 ? ', after ' + last.text : '')"
    return run_step("writer", message, repeat={"until": until, "rounds": rounds}, **more)


def counting(fails_in: int = 0) -> Any:
    """Return a script whose answers are the numbers of the calls."""
    calls = 0

    def script(start: StartChild) -> Ending:
        nonlocal calls
        calls += 1
        return failed() if calls == fails_in else completed(str(calls))

    return script


def end_of(state: State) -> tuple[str, Any]:
    assert state.end is not None
    return state.end.status, (state.end.error or {}).get("code") or state.end.output


def messages(world: World) -> list[str]:
    return [start.message for start in world.started.values()]


def test_each_round_reads_the_output_of_the_one_before_until_the_condition_holds() -> None:
    steps = {"draft": repeated(), "end": {"needs": ["draft"], "set": "draft.output.map(o, o.data)"}}
    world = World(workflow(steps, output="end.output"), script=counting())
    assert end_of(world.run()) == ("completed", [1, 2, 3])
    assert messages(world) == ["round 1", "round 2, after 1", "round 3, after 2"]
    began = [data for type_, data in world.events if type_ == "workflow.step_started"]
    assert [(each["kind"], each.get("iteration")) for each in began[:-1]] == [
        ("loop", None),
        *(("step", number) for number in (1, 2, 3)),
    ]
    world.check()


def test_a_condition_that_no_round_meets_fails_the_step_with_the_outputs_of_all() -> None:
    steps = {
        "draft": repeated("last.data > 9", 2, on_failure="continue"),
        "end": {"needs": ["draft"], "set": "[size(draft.output), draft.error.code]"},
    }
    world = World(workflow(steps, output="end.output"), script=counting())
    assert end_of(world.run()) == ("completed", [2, "until_not_met"])
    world.check()
    failing = World(workflow({"draft": repeated("last.data > 9", 2)}), script=counting())
    assert end_of(failing.run()) == ("failed", "until_not_met")
    failing.check()


@pytest.mark.parametrize(
    ("until", "code", "rounds"),
    [("last.data >= 9", "upstream_error", 2), ("last.text.x == 1", "expression_error", 1)],
)
def test_a_round_that_fails_is_the_last_one(until: str, code: str, rounds: int) -> None:
    steps = {
        "draft": repeated(until, on_failure="continue"),
        "end": {"needs": ["draft"], "set": "draft.error.code"},
    }
    world = World(workflow(steps, output="end.output"), script=counting(fails_in=2))
    assert end_of(world.run()) == ("completed", code)
    assert len(world.started) == rounds
    world.check()


def test_a_round_is_tried_again_as_its_step_says() -> None:
    retry = {"attempts": 2, "codes": ["upstream_error"]}
    world = World(workflow({"draft": repeated(retry=retry)}), script=counting(fails_in=2))
    assert end_of(world.run()) == ("completed", None)
    assert messages(world) == ["round 1", *["round 2, after 1"] * 2]
    world.check()


def test_a_fork_goes_on_with_the_round_that_failed_and_does_later_ones_anew() -> None:
    definition = workflow({"draft": repeated("round == 3")})
    first = World(definition, script=counting(fails_in=3))
    first.run()
    known = forking.ends_of(first.journal, ["step_draft.0", "step_draft.1"])
    fork = World(definition, first=known)
    assert end_of(fork.run())[0] == "completed"
    assert messages(fork) == ["round 3, after 2"]
    fork.check()
    # A round rests on the round before it.
    known["ends"] = [end for end in known["ends"] if end["index"] != 0]
    other = World(definition, first=known)
    other.run()
    assert len(other.started) == 3


def test_large_outputs_of_rounds_are_read_by_their_references() -> None:
    steps = {"draft": repeated("size(last.text) > 70000", output="{'text': result.text + 'y'}")}
    world = World(workflow(steps), script=lambda start: completed("x" * 70_000))
    assert end_of(world.run())[0] == "completed"
    assert len(world.started) == 1
    world.check()
