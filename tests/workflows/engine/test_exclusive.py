"""A run of a workflow with `exclusive` begins nothing before its turn, and leaves its queue."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_workflows.engine.effects import TakeTurn
from penstock_workflows.engine.inputs import CancelInput, FailInput, TimerInput, TurnInput
from support.pure.engine_world import World, run_step, workflow


def flow(**more: Any) -> dict[str, Any]:
    steps = {"work": run_step(), "clean": run_step("cleaner", always=True, needs=["work"])}
    return workflow(steps, **{"exclusive": {"key": "input.city"}, **more})


def waiting(definition: dict[str, Any], city: Any = "Oslo") -> World:
    world = World(definition, {"city": city}, is_busy=True)
    world.run_until_idle()
    return world


def test_a_run_begins_when_its_turn_comes_and_leaves_at_its_end() -> None:
    world = waiting(flow(timeout="1h"))
    assert world.turn == TakeTurn("flow", "Oslo", "queue")
    assert (world.types, world.started, world.timers) == ([], {}, {})
    world.now_ms += 7_200_000
    world.take(TimerInput("turn"))
    assert world.types[0] == "workflow.started"
    assert world.timers["run"] == world.now_ms + 3_600_000, "the timeout counts from the turn"
    for late in (TurnInput(), TurnInput({"code": "busy", "message": "busy"})):
        world.take(late)  # changes nothing
    world.redo()
    state = world.run()
    assert state.end is not None
    assert state.end.status == "completed"
    world.check()


@pytest.mark.parametrize(
    ("cause", "last"),
    [
        (CancelInput("ada"), "lifecycle.cancelled"),
        (FailInput({"code": "internal", "message": "lost"}), "lifecycle.failed"),
        (TurnInput({"code": "busy", "message": "busy"}), "lifecycle.failed"),
    ],
)
def test_a_run_that_ends_while_it_waits_has_begun_nothing(cause: Any, last: str) -> None:
    world = waiting(flow())
    world.take(cause)
    assert world.types == [last]
    assert not world.started
    world.take(TurnInput())
    assert world.types == [last]
    world.check()


@pytest.mark.parametrize("city", ["x" * 1001, None])
def test_a_key_that_is_no_short_text_fails_the_run(city: str | None) -> None:
    world = waiting(flow(), city)
    assert world.types == ["lifecycle.failed"]
    assert world.events[-1][1]["code"] == "expression_error"
    world.check()
