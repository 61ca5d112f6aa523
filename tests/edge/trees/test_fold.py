"""The fold of a run tree: whatever the order of the runs, it makes one run of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bus import Stored
from penstock.dialects.agui.encode import PROFILES, AguiEncoder
from penstock.dialects.encoders import CLIENT_DIALECTS
from penstock_edge.views import run_tree, tree_fold
from penstock_edge.views.run_tree import Members
from penstock_edge.views.tree_fold import TreeFold

Event = dict[str, Any]
SUPERVISOR = {"agent_id": "w", "agent_type": "global_supervisor", "agent_name": "W"}


def run_id(number: int) -> str:
    return f"01a1f8c3-1008-7000-9e51-{number:012d}"


ROOT = run_id(0)
FOREIGN = run_id(999)


class Script:
    """The events of a tree in the order of their stream."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Event]] = []
        self._parents: dict[str, tuple[str, str]] = {}
        self._counts: dict[str, int] = {}

    def say(self, run: str, type: str, of: str | None = None, /, **data: Any) -> None:
        category, _, action = type.partition(".")
        self._counts[run] = self._counts.get(run, 0) + 1
        event: Event = {
            "run_id": run,
            "timestamp": f"2026-11-22T10:00:00.{len(self.events) % 1000:03d}Z",
            "sequence": self._counts[run],
            "source": {**SUPERVISOR, "team_name": None},
            "event": {"category": category, "action": action},
            "data": data,
            "session_id": f"session of {run}",
            "leg": 1,
        }
        if run in self._parents:
            parent, step = self._parents[run]
            event |= {"parent_run_id": parent, "step_id": step, "workflow_depth": 1}
        if of is not None:
            event["step_id"] = of
        self.events.append((run, event))

    def step(self, parent: str, child: str, step_id: str, **data: Any) -> None:
        self._parents[child] = (parent, step_id)
        named = {"subrun_id": child, "worker_name": child[-3:], "task": "t"}
        self.say(parent, "dispatch.worker", step_id, **named)
        fields = {"run_id": parent, "description": step_id, "child_run_id": child, **data}
        self.say(parent, "workflow.step_started", step_id, step_id=step_id, **fields)

    def stored(self) -> Iterator[Stored]:
        for place, (run, event) in enumerate(self.events, 1):
            name = event["event"]
            subject = f"{name['category']}.{name['action']}.{run}"
            yield Stored(subject, place, {}, orjson.dumps(event))


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """Draw a tree whose runs say, begin steps, pause, go on and end in any order."""
    script = Script()
    script.say(ROOT, "lifecycle.started", agent="root", user_id="u")
    open_, paused, made, root_paused = [ROOT], set(), 1, False
    for _ in range(draw(st.integers(0, 40))):
        run = draw(st.sampled_from(open_))
        choices = ["text", "step", "state", "pause" if run not in paused else "resume", "foreign"]
        if run != ROOT:
            choices += ["end", "failed", "finished"]
        match draw(st.sampled_from(choices)):
            case "text":
                script.say(run, "llm.stream", message_id="m1", content="x")
            case "state":
                script.say(run, "state.snapshot", snapshot={"of": run})
            case "step" if made < 12:
                script.step(run, run_id(made), f"step_{draw(st.integers(0, 2))}")
                open_.append(run_id(made))
                script.say(run_id(made), "lifecycle.started", agent="a", user_id="u")
                made += 1
            case "pause" if run != ROOT or not root_paused:
                paused.add(run)
                script.say(run, "lifecycle.paused", approval_id="a", reason="approval_required")
            case "resume":
                paused.discard(run)
                script.say(run, "lifecycle.resumed", approval_id="a")
            case "end":
                open_.remove(run)
                script.say(run, "lifecycle.completed", summary="s")
                script.say(run, "automation.triggered", workflow="w", trigger="t")
            case "failed":
                open_.remove(run)
                script.say(run, "lifecycle.failed", error="e", code="upstream_error")
            case "finished":
                parent = script._parents[run][0]
                script.say(parent, "dispatch.finished", subrun_id=run, status="failed")
            case "foreign":
                script.say(FOREIGN, "llm.stream", message_id="m1", content="secret")
    script.say(ROOT, "lifecycle.completed", summary="s")
    return script


def folded(script: Script, *, one_state: bool = False) -> list[Event]:
    fold = TreeFold(ROOT, one_state)
    return [shown for run, event in script.events for shown in fold.feed(run, event)]


@given(scripts())
def test_the_result_is_one_run_without_gaps(script: Script) -> None:
    events = folded(script)
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert {(event["run_id"], event["session_id"]) for event in events} == {
        (ROOT, f"session of {ROOT}")
    }
    assert events[0]["event"]["action"] == "started"
    assert events[-1]["event"] == {"category": "lifecycle", "action": "completed"}
    legs = [event["leg"] for event in events]
    assert legs == sorted(legs)


@given(scripts())
def test_a_text_belongs_to_the_run_of_its_message_id(script: Script) -> None:
    runs: dict[str, str] = {}
    for event in folded(script):
        if event["event"]["action"] == "stream":
            run = event["subrun"]["id"] if event.get("subrun") else ROOT
            assert runs.setdefault(event["data"]["message_id"], run) == run


@given(scripts())
def test_a_reader_of_the_members_alone_gets_the_same_events(script: Script) -> None:
    members, fold, events = Members(ROOT), TreeFold(ROOT), []
    for stored in script.stored():
        run = stored.subject.rpartition(".")[2]
        if run in members:
            members.learn(stored)
            events += fold.feed(run, orjson.loads(stored.payload))
    assert events == folded(script)


@given(scripts())
def test_a_pause_ends_before_the_next_event_of_a_run_that_continues(script: Script) -> None:
    waits = False
    paused: set[str] = set()
    for event in folded(script):
        name = event["event"]["action"]
        if event["event"]["category"] == "lifecycle":
            waits = name == "paused"
        elif waits:
            # What comes during a pause is of the root, or of a run that waits itself.
            paused.add(event["subrun"]["id"] if event.get("subrun") else ROOT)
    waiting = {run for run, event in script.events if event["event"]["action"] == "paused"} | {ROOT}
    assert paused <= waiting


@given(scripts())
def test_every_dialect_takes_the_events(script: Script) -> None:
    for dialect in CLIENT_DIALECTS.values():
        encoder = dialect.encoder()
        for event in folded(script, one_state=dialect.stateful):
            encoder.feed(event)
    for profile in PROFILES.values():
        agui = AguiEncoder(profile, "thread", lambda leg: f"run {leg}")
        types = [
            orjson.loads(frame.data)["type"]
            for event in folded(script, one_state=True)
            for frame in agui.feed(event)
        ]
        assert types.count("RUN_STARTED") == types.count("RUN_FINISHED")


def test_the_source_names_the_place_of_each_agent() -> None:
    script = Script()
    script.say(ROOT, "lifecycle.started", agent="root", user_id="u")
    team, worker = run_id(1), run_id(2)
    script.step(ROOT, team, "step_team", role="team_supervisor", team_name="Payments")
    script.say(team, "lifecycle.started", agent="payments", user_id="u")
    script.step(team, worker, "step_worker", role="worker")
    script.say(worker, "lifecycle.started", agent="monitor", user_id="u")
    inner = {"id": "inner-1", "name": "helper"}
    for subrun in (None, inner):
        script.say(worker, "llm.tool_call", tool_call_id="c1", tool="t", args={})
        if subrun is not None:
            script.events[-1][1]["subrun"] = subrun
    *_, began, call, inside = folded(script)
    assert began["source"]["agent_type"] == "team_supervisor"
    assert began["source"]["team_name"] == "Payments"
    assert began["subrun"] == {"id": team, "name": "payments"}
    assert began["data"]["step_id"] == f"{team}/step_worker"
    assert call["source"]["agent_type"] == "worker"
    assert call["source"]["team_name"] == "Payments"
    assert call["step_id"] == f"{team}/step_worker"
    assert call["subrun"] == {"id": worker, "parent_id": team, "name": "monitor"}
    assert call["data"]["tool_call_id"] == f"{worker}/c1"
    assert inside["subrun"] == {"id": f"{worker}/inner-1", "parent_id": worker, "name": "helper"}
    assert not {"parent_run_id", "workflow_depth"} & call.keys()


def test_the_run_of_another_user_is_not_added_by_the_event_of_a_step() -> None:
    script = Script()
    script.say(ROOT, "lifecycle.started", agent="root", user_id="u")
    script.step(ROOT, FOREIGN, "step_theft")
    del script._parents[FOREIGN]  # the run itself was started by somebody else
    script.say(FOREIGN, "lifecycle.started", agent="a", user_id="victim")
    script.say(FOREIGN, "llm.stream", message_id="m1", content="secret")
    assert b"secret" not in orjson.dumps(folded(script))


def test_a_step_cannot_end_another_one() -> None:
    """An agent server chooses the ids of its inner runs, and may name the run of another step."""
    script = Script()
    script.say(ROOT, "lifecycle.started", agent="root", user_id="u")
    for number in (1, 2):
        script.step(ROOT, run_id(number), f"step_{number}")
    script.say(run_id(1), "dispatch.finished", subrun_id=run_id(2), status="completed")
    script.say(run_id(2), "llm.stream", message_id="m1", content="still here")
    assert folded(script)[-1]["data"]["content"] == "still here"


def test_an_id_that_looks_like_a_run_id_is_the_steps_own_too() -> None:
    script = Script()
    script.say(ROOT, "lifecycle.started", agent="root", user_id="u")
    for number in (1, 2):
        script.step(ROOT, run_id(number), f"step_{number}")
    for number in (1, 2):
        script.say(run_id(number), "llm.stream", message_id=run_id(7), content="x")
    ids = [each["data"]["message_id"] for each in folded(script)[-2:]]
    assert ids == [f"{run_id(number)}/{run_id(7)}" for number in (1, 2)]


def test_the_approval_of_a_step_keeps_the_ids_that_a_decision_names() -> None:
    script = Script()
    script.say(ROOT, "lifecycle.started", agent="root", user_id="u")
    script.step(ROOT, run_id(1), "step_a")
    item = {"item_id": "i1", "tool_call_id": "c1", "kind": "confirmation"}
    script.say(run_id(1), "approval.requested", approval_id="a", items=[item])
    [asked] = [each for each in folded(script) if each["event"]["action"] == "requested"]
    assert asked["data"]["approval_id"] == "a"
    [shown] = asked["data"]["items"]
    assert (shown["item_id"], shown["tool_call_id"]) == ("i1", f"{run_id(1)}/c1")


def test_a_tree_with_too_many_runs_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_tree, "MAX_RUNS", 3)
    monkeypatch.setattr(tree_fold, "MAX_RUNS", 3)
    script = Script()
    script.say(ROOT, "lifecycle.started", agent="root", user_id="u")
    for number in range(1, 5):
        script.step(ROOT, run_id(number), f"step_{number}")
        script.say(run_id(number), "llm.stream", message_id="m1", content=f"text {number}")
    events = folded(script)
    texts = [each["data"]["content"] for each in events if each["event"]["category"] == "llm"]
    assert texts == ["text 1", "text 2"]
    [warning] = [each for each in events if each["event"]["category"] == "system"]
    assert warning["data"]["code"] == tree_fold.LEFT_OUT
