"""A fork: what had completed in the first run is not done again, everything else is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from penstock_workflows.engine import forking
from penstock_workflows.engine.effects import StartChild
from penstock_workflows.engine.inputs import ApprovalInput
from penstock_workflows.engine.records import Ended, Started
from support.pure.engine_world import (
    RUN_ID,
    Ending,
    World,
    completed,
    decided,
    failed,
    run_step,
    workflow,
)

ASK = {"approve": {"title": "'go on?'", "policy": "people"}}


def breaking(*agents: str) -> Any:
    def script(start: StartChild) -> Ending:
        return failed() if start.name in agents else completed(f"{start.name} done")

    return script


def completed_steps(world: World) -> set[str]:
    return {data["step_id"] for type_, data in world.events if type_ == "workflow.step_completed"}


def forked(first: World, steps: Collection[str] | None = None, **fields: Any) -> World:
    """Run the fork of a world's run to its end; `steps` had completed at its point."""
    steps = completed_steps(first) if steps is None else steps
    known = forking.ends_of(first.journal, steps)
    world = World(
        first.definition,
        first.input,
        **{"script": breaking(), "decisions": first.decisions, **fields},
        first=known,
    )
    world.values = dict(first.values)  # the service copies them
    world.run()
    world.check()
    return world


def called(world: World) -> list[str]:
    """The agents that the run's steps have called."""
    return [start.name for start in world.started.values()]


CHAIN = workflow(
    {
        "a": run_step("first"),
        "b": run_step("second", "a.output.text", needs=["a"]),
        "c": run_step("third", "b.output.text", needs=["b"]),
    },
    output="c.output.text",
)


def test_a_run_that_failed_goes_on_with_the_step_that_failed() -> None:
    first = World(CHAIN, script=breaking("third"))
    assert first.run().end is not None
    fork = forked(first)
    assert called(fork) == ["third"]
    [start] = fork.started.values()
    assert start.message == "second done"
    assert fork.state is not None
    assert fork.state.end is not None
    assert fork.state.end.output == "third done"
    assert fork.state.usage == {}
    step = ["workflow.step_started a", "workflow.step_completed a"]
    assert fork.types[:4] == ["workflow.started", *step, "workflow.transition a->b a_complete"]
    taken = {d["step_id"]: d["taken_from"] for _, d in fork.events if "taken_from" in d}
    children = {start.step_id: child for child, start in first.started.items()}
    assert taken == {
        step: {"run_id": RUN_ID, "child_run_id": children[step]} for step in ("step_a", "step_b")
    }


def test_a_fork_after_a_step_does_all_later_ones_again() -> None:
    first = World(CHAIN, script=breaking())
    first.run()
    assert called(forked(first, {"step_a"})) == ["second", "third"]
    assert called(forked(first, ())) == ["first", "second", "third"]
    assert called(forked(first)) == []


def test_a_fork_of_a_fork_names_the_run_that_did_the_step() -> None:
    first = World(CHAIN, script=breaking("third"))
    first.run()
    second = forked(first, script=breaking("third"))
    taken = second.journal[1]
    assert isinstance(taken, Ended)
    other = World(CHAIN)
    other.journal = [
        replace(each, run_id="another") if isinstance(each, Started) else each
        for each in second.journal
    ]
    third = forking.ends_of(other.journal, {"step_a"})["ends"]
    assert third == [{**third[0], "taken_from": taken.taken_from}]


def test_what_follows_a_step_that_ends_in_another_way_is_done_again() -> None:
    steps = {
        "a": run_step("first", on_failure="continue"),
        "b": run_step("second", "'after ' + a.status", needs=["a"]),
        "c": run_step("third"),
        "d": run_step("fourth", needs=["b", "c"]),
    }
    first = World(workflow(steps), script=breaking("first"))
    first.run()
    assert completed_steps(first) == {"step_b", "step_c", "step_d"}
    assert called(forked(first)) == ["first", "second", "fourth"]


def test_a_handler_of_a_failure_is_not_taken_over_by_a_fork_without_the_failure() -> None:
    steps = {
        "a": run_step("first", on_failure="h"),
        "h": run_step("helper", needs=["a"]),
        "z": run_step("last", needs=["h"]),
    }
    first = World(workflow(steps), script=breaking("first"))
    first.run()
    fork = forked(first)
    assert called(fork) == ["first", "last"]
    assert called(forked(first, script=breaking("first"))) == ["first", "helper", "last"]


APPROVED = workflow(
    {
        "ask": ASK,
        "deploy": run_step("deployer", needs=["ask"]),
        "tell": run_step("teller", needs=["deploy"]),
    }
)


def test_people_are_asked_again_before_anything_that_follows_their_decision() -> None:
    first = World(APPROVED, script=breaking("teller"))
    first.run()
    waiting = forked(first, decisions={"people": "none"})
    assert called(waiting) == []
    assert waiting.state is not None
    assert waiting.state.paused is not None
    # The same decision: what it has allowed is done already.
    assert called(forked(first)) == ["teller"]
    refused = forked(first, decisions={"people": "reject"})
    assert called(refused) == []
    assert refused.state is not None
    assert refused.state.end is not None
    assert refused.state.end.status == "failed"


@pytest.mark.parametrize(
    ("item", "again"),
    [
        ({"value": {"env": "test"}}, ["teller"]),
        ({"value": {"env": "live"}}, ["deployer", "teller"]),
        ({"value": {"env": "test"}, "note": "be quick"}, ["deployer", "teller"]),
    ],
    ids=["same", "another value", "another note"],
)
def test_a_step_whose_approval_says_something_else_is_done_again(
    item: dict[str, Any], again: list[str]
) -> None:
    def decide(world: World, **item: Any) -> None:
        assert world.state is not None
        [approval] = world.state.keys
        world.take(decided(approval, **item))
        world.inputs = [each for each in world.inputs if not isinstance(each, ApprovalInput)]
        world.run()

    nobody = {"people": "none"}
    first = World(APPROVED, script=breaking("teller"), decisions=nobody)
    first.run()
    decide(first, value={"env": "test"})
    fork = forked(first, decisions=nobody)
    decide(fork, **item)
    assert called(fork) == again


def test_only_the_items_of_a_loop_that_did_not_complete_are_done_again() -> None:
    loop = {"for_each": {"in": "input.names", "as": "name"}, "on_failure": "continue"}
    steps = {"each": {"run": {"agent": "worker", "message": "name"}, **loop}}
    broken = {"b"}

    def script(start: StartChild) -> Ending:
        return failed() if start.message in broken else completed(start.message)

    first = World(workflow(steps), {"names": ["a", "b", "c"]}, script=script)
    first.run()
    fork = forked(first)
    assert [start.message for start in fork.started.values()] == ["b"]
    assert fork.state is not None
    items = fork.state.results["each"].items or ()
    assert [item.output["text"] for item in items] == ["a", "worker done", "c"]
    # Other items than before are done, even at the same place.
    known = forking.ends_of(first.journal, completed_steps(first))
    other = World(workflow(steps), {"names": ["a", "x", "y", "z"]}, first=known)
    other.run()
    assert [start.message for start in other.started.values()] == ["x", "y", "z"]


def test_a_large_output_is_taken_over_by_its_reference() -> None:
    steps = {
        "a": run_step("first"),
        "b": run_step("second", "a.output.text", needs=["a"]),
    }

    def script(start: StartChild) -> Ending:
        return completed("x" * 100_000) if start.name == "first" else failed()

    first = World(workflow(steps), script=script)
    first.run()
    known = forking.ends_of(first.journal, completed_steps(first))
    [digest] = forking.references(known)
    assert first.values[digest]["text"] == "x" * 100_000
    fork = forked(first)
    [start] = fork.started.values()
    assert start.message == "x" * 100_000
