"""Whatever the order and the repetitions of its inputs, a run goes on and ends in the same way."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_workflows.engine.effects import StartChild
from penstock_workflows.engine.inputs import CancelInput
from penstock_workflows.engine.records import (
    Ended,
    ForEachStarted,
    Record,
    Scheduled,
    Started,
    Stop,
    Waiting,
)
from penstock_workflows.engine.state import Result
from support.pure.engine_faults import FaultyWorld
from support.pure.engine_world import Ending, World, completed, failed, workflow

LONG = 1_000_000

# No output depends on the ids of children, which depend on the order.
_OUT: dict[str, Any] = {"output": "result.text"}
_RETRY = {"attempts": 3, "codes": ["upstream_error"]}
_ACTIONS: list[dict[str, Any]] = [
    {"run": {"agent": "good", "message": '"go"'}, **_OUT},
    {"run": {"agent": "bad", "message": '"go"'}, **_OUT},
    {"run": {"agent": "mends", "message": '"go"'}, "retry": _RETRY, **_OUT},
    {"run": {"agent": "large", "message": '"go"'}, **_OUT},
    {"workflow": {"workflow": "inner"}, **_OUT},
    {"set": "1"},
    {"wait": "3s"},
    {"approve": {"title": '"ok?"', "policy": "yes"}},
    {"approve": {"title": '"ok?"', "policy": "no", "form": {"type": "object"}}},
    {"call": {"url": "https://example.com/"}},
    {"listen": {"event": "a.b"}},
]


# A child that ends only if it is cancelled.
_SLOW: dict[str, Any] = {"run": {"agent": "slow", "message": '"go"'}, "timeout": "5s", **_OUT}


@st.composite
def definitions(draw: Any, *, fails: bool) -> dict[str, Any]:
    """Return a definition of up to six steps, each of which may need those before it."""
    steps: dict[str, Any] = {}
    for number in range(draw(st.integers(1, 6))):
        step = dict(draw(st.sampled_from([*_ACTIONS, *[_SLOW] * 3 * fails])))
        before = list(steps)
        if before:
            needs: list[str] = draw(st.lists(st.sampled_from(before), unique=True, max_size=3))
            step["needs"] = needs
            if needs and draw(st.booleans()):
                wanted = draw(st.sampled_from(["completed", "failed", "skipped"]))
                step["when"] = f'{needs[0]}.status != "{wanted}"'
        match draw(st.integers(0, 3)):
            case 0:
                step["for_each"] = {"in": "[1, 2, 3]", "limit": draw(st.integers(1, 3))}
            case 1:
                until = f"round == {draw(st.integers(1, 3))}"
                step["repeat"] = {"until": until, "rounds": draw(st.integers(1, 3))}
        may_be_always = not step.keys() & {"for_each", "repeat", "approve", "listen"}
        if fails and may_be_always and draw(st.integers(0, 2)) == 0:
            step["always"] = True
        step["on_failure"] = (
            "continue" if not fails else draw(st.sampled_from(["continue", "fail"]))
        )
        steps[f"s{number}"] = step
    last = list(steps)[-1]
    exclusive = {"exclusive": {"key": '"k"'}} if draw(st.booleans()) else {}
    return workflow(
        steps,
        output=f"[{last}.status, {last}.output]",
        concurrency=draw(st.integers(1, 4)),
        **exclusive,
    )


def script_of(world: World) -> Any:
    """Return what the agents do; `mends` fails at its first attempt."""
    seen: Counter[str] = Counter()

    def script(start: StartChild) -> Ending | None:
        seen[start.step_id] += 1
        match start.name:
            case "slow":
                return None
            case "bad":
                return failed()
            case "mends" if seen[start.step_id] == 1:
                return failed()
            case "large":
                return completed("x" * 70_000)
            case _:
                return completed(start.step_id)

    return script


def a_world(definition: dict[str, Any], data: st.DataObject | None = None) -> World:
    decisions = {"yes": "approve", "no": "reject"}
    if data is None:
        world = World(definition, decisions=decisions)
    else:
        numbers = data.draw(st.randoms(use_true_random=False))
        world = FaultyWorld(definition, decisions=decisions, choose=numbers.randrange)
    world.script = script_of(world)
    return world


def check_journal(journal: list[Record], definition: dict[str, Any]) -> None:
    """Check that no step began before its needs were done, and that each began and ended once."""
    done: set[str] = set()
    begun: Counter[Any] = Counter()
    ended: Counter[Any] = Counter()
    children: Counter[str] = Counter()
    steps = definition["steps"]
    stop: Stop | None = None
    for record in journal:
        match record:
            case Stop():
                assert stop is None
                stop = record
            case Scheduled() | Waiting() | ForEachStarted():
                needs = steps[record.step].get("needs", ())
                if stop is not None:
                    assert steps[record.step].get("always")
                    needs = [name for name in needs if steps[name].get("always")]
                assert done.issuperset(needs), f"{record.step} began before its needs were done"
                if not isinstance(record, ForEachStarted):
                    begun[record.step, record.index, record.attempt] += 1
                    assert not ended[record.step, record.index]
                if isinstance(record, Scheduled):
                    children[record.child] += 1
            case Ended():
                ended[record.step, record.index] += 1
                if record.index is None:
                    done.add(record.step)
    always = {name for name, step in steps.items() if step.get("always")}
    is_late = stop is not None and journal[-1].at >= (stop.always_due or 0)
    assert is_late or always <= done, "an `always` step was left out"
    assert not begun or max(begun.values()) == 1
    assert not ended or max(ended.values()) == 1
    assert not children or max(children.values()) == 1
    assert type(journal[0]) is Started
    assert [type(record).__name__ for record in journal].count("End") == 1
    times = [record.at for record in journal]
    assert times == sorted(times)


@given(definition=definitions(fails=False), data=st.data())
@settings(max_examples=50, deadline=None)
def test_a_run_ends_in_the_same_way_whatever_the_order_and_the_faults(
    definition: dict[str, Any], data: st.DataObject
) -> None:
    plain, faulty = a_world(definition), a_world(definition, data)
    expected, state = plain.run(), faulty.run()
    for world in (plain, faulty):
        check_journal(world.journal, definition)
        world.check()
    assert expected.end is not None
    assert state.end is not None
    assert (state.end.status, state.end.output) == ("completed", expected.end.output)
    for name, result in expected.results.items():
        assert _plain(state.results[name], faulty) == _plain(result, plain)
    # Each child was started once, by the only record that has its id.
    scheduled = [record.child for record in faulty.journal if isinstance(record, Scheduled)]
    assert sorted(faulty.started) == sorted(scheduled)


@given(definition=definitions(fails=True), data=st.data())
@settings(max_examples=50, deadline=None)
def test_a_run_that_may_fail_or_is_cancelled_ends_whatever_the_order_and_the_faults(
    definition: dict[str, Any], data: st.DataObject
) -> None:
    world = a_world(definition, data)
    if data.draw(st.booleans()):
        world.take(world.inputs.pop(0))
        world.inputs.append(CancelInput("ada"))
    state = world.run()
    assert state.end is not None
    check_journal(world.journal, definition)
    world.check()
    terminal = [type_ for type_ in world.types if type_.split()[0] in _TERMINAL]
    assert len(terminal) == 1
    assert world.types[-1] == terminal[0]
    # No child of a run that has ended works on.
    slow = {child for child, start in world.started.items() if start.name == "slow"}
    assert slow <= world.cancelled


def _plain(result: Result, world: World) -> Any:
    return result.outcome, result.value(world.values), result.error


_TERMINAL = {"lifecycle.completed", "lifecycle.failed", "lifecycle.cancelled"}


@given(definition=definitions(fails=True))
@settings(max_examples=40, deadline=None)
def test_an_input_that_comes_again_adds_nothing(definition: dict[str, Any]) -> None:
    world = a_world(definition)
    past = []
    while world.inputs or world.ring():
        input = world.inputs.pop(0)
        world.take(input)
        past.append(input)
        for earlier in past:
            decision = world.decide(earlier, world.state)
            assert decision.records == [], f"{earlier} adds records when it comes again"
    assert world.state is not None
    assert world.state.end is not None


@given(definition=definitions(fails=True))
@settings(max_examples=40, deadline=None)
def test_a_decision_depends_on_its_arguments_alone_and_leaves_the_state_as_it_is(
    definition: dict[str, Any],
) -> None:
    world = a_world(definition)
    while world.inputs or world.ring():
        input = world.inputs.pop(0)
        before = world.state.copy() if world.state is not None else None
        numbers = world.numbers
        decisions = []
        for _ in range(2):
            world.numbers = iter(range(LONG, 2 * LONG))  # type: ignore[assignment]
            decisions.append(world.decide(input, world.state))
        assert decisions[0].records == decisions[1].records
        assert decisions[0].frames == decisions[1].frames
        assert decisions[0].effects == decisions[1].effects
        assert world.state == before
        world.numbers = numbers
        world.take(input)
