"""A world for the pure engine of workflows: it does what the service and its neighbours would do.

The world holds the journal of one run, the inputs that are on their way, and what the effects have
done. It has no bus and no clock. Steps of agents end as `script` says.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from penstock_workflows.engine.decide import Decision, decide
from penstock_workflows.engine.effecting import open_effects
from penstock_workflows.engine.effects import (
    Call,
    CancelChild,
    CancelTimer,
    Effect,
    Frame,
    LeaveTurn,
    Listen,
    StartChild,
    StartTimer,
    TakeTurn,
)
from penstock_workflows.engine.inputs import (
    ApprovalInput,
    CalledInput,
    ChildInput,
    EventInput,
    Input,
    ProceedInput,
    StartInput,
    StepStartedSeen,
    TimerInput,
    TurnInput,
)
from penstock_workflows.engine.projection import projection
from penstock_workflows.engine.records import Record, decode, encode
from penstock_workflows.engine.state import State, fold, folded
from penstock_workflows.engine.values import ValuesNeeded

RUN_ID = "0193a5c0-0000-7000-8000-000000000001"
JsonObject = dict[str, Any]
# How a child ends: the event's type and data. It may be given the start of the child.
Ending = tuple[str, JsonObject]
Script = Callable[[StartChild], Ending | None]


def completed(text: str = "done", **data: Any) -> Ending:
    """Return the end of a child that succeeded."""
    return "lifecycle.completed", {"summary": text, **data}


def failed(code: str = "upstream_error", error: str = "it broke") -> Ending:
    """Return the end of a child that failed."""
    return "lifecycle.failed", {"error": error, "code": code}


def workflow(steps: Mapping[str, Any], **more: Any) -> JsonObject:
    """Return a definition of these steps."""
    return {"dsl": "penstock/1", "name": "flow", "version": "1", "steps": dict(steps), **more}


def run_step(agent: str = "agent", message: str = '"go"', **more: Any) -> JsonObject:
    """Return a step that runs an agent."""
    return {"run": {"agent": agent, "message": message}, **more}


@dataclass
class World:
    """One run of a workflow, and everything around it."""

    definition: JsonObject
    input: JsonObject = field(default_factory=dict)
    script: Script = lambda start: completed()
    decisions: Mapping[str, str] = field(default_factory=dict)  # by the name of the policy
    command: JsonObject = field(default_factory=lambda: {"session_id": "session"})
    now_ms: int = 1_000_000
    first: JsonObject | None = None  # what a fork knows of its first run
    is_busy: bool = False  # whether another run has the same key, so that the turn does not come

    def __post_init__(self) -> None:
        self.numbers = itertools.count(1)
        self.journal: list[Record] = []
        self.frames: list[Frame] = []
        self.state: State | None = None
        self.values: dict[str, Any] = {}
        self.started: dict[str, StartChild] = {}
        self.cancelled: set[str] = set()
        self.timers: dict[str, int] = {}
        self.calls: dict[str, Call] = {}
        self.turn: TakeTurn | None = None
        self.listening: dict[tuple[str, int | None, int], Listen] = {}
        # What is on its way, in the order in which it came to be.
        self.inputs: list[Input] = [
            StartInput(
                RUN_ID,
                self.command,
                {"agent": "flow"},
                self.definition,
                self.input,
                first=self.first,
            )
        ]

    # the protocol of the service

    def new_id(self) -> str:
        """Return the id of a new child."""
        return str(uuid.UUID(int=next(self.numbers)))

    def decide(self, input: Input, state: State | None) -> Decision:
        """Return the decision, with the stored values that it needs."""
        values: dict[str, Any] = {}
        while True:
            try:
                return decide(state, input, now_ms=self.now_ms, new_id=self.new_id, values=values)
            except ValuesNeeded as needed:
                if needed.digests <= values.keys():
                    raise AssertionError("the engine asks for the same values again") from needed
                values |= {digest: self.values[digest] for digest in needed.digests}

    def append(self, decision: Decision) -> None:
        """Store the records of a decision, and project them."""
        for stored in decision.stored:
            self.values[stored.digest] = orjson.loads(stored.payload)
        if not decision.records:
            return
        self.journal += decode(encode(decision.records))
        check_state(decision.state, is_partial=decision.is_partial)
        self.state = decision.state
        self.frames += decision.frames
        for frame in decision.frames:
            self.publish(frame)

    def take(self, input: Input) -> Decision:
        """Handle an input as the service does when nothing goes wrong."""
        decision = self.decide(input, self.state)
        self.append(decision)
        for effect in decision.effects:
            self.carry_out(effect)
        if decision.is_partial:
            self.take(ProceedInput())
        return decision

    def redo(self) -> None:
        """Carry out the effects of everything that is open, as after a redelivery."""
        if self.state is not None:
            for effect in open_effects(self.state):
                self.carry_out(effect)

    def run(self) -> State:
        """Handle all inputs in the order in which they come. Time passes when nothing else does."""
        while self.inputs or self.timers:
            if not self.inputs and not self.ring():
                break
            if self.inputs:
                self.take(self.inputs.pop(0))
        assert self.state is not None
        return self.state

    def run_until_idle(self) -> None:
        """Handle all inputs that are on their way. No time passes."""
        while self.inputs:
            self.take(self.inputs.pop(0))

    def ring(self) -> bool:
        """Let time pass to the next timer; False if the run is over or there is none."""
        if not self.timers or self.state is None or self.state.end is not None:
            return False
        timer = min(self.timers, key=lambda name: (self.timers[name], name))
        self.now_ms = max(self.now_ms, self.timers.pop(timer))
        self.inputs.append(TimerInput(timer))
        return True

    # what the neighbours do

    def carry_out(self, effect: Effect) -> None:
        """Carry out an effect. A repeated effect changes nothing."""
        match effect:
            case StartChild(child=child):
                if child in self.started:
                    assert self.started[child] == effect, "a repeated start differs"
                    return
                self.started[child] = effect
                assert child not in self.cancelled, "a cancelled child is started"
                ending = self.script(effect)
                if ending is not None:
                    self.inputs.append(ChildInput(child, ending[0], ending[1], 9))
            case CancelChild(child=child):
                if child not in self.cancelled:
                    self.inputs.append(ChildInput(child, "lifecycle.cancelled", {}, 10))
                self.cancelled.add(child)
            case Call(call_id=call):
                if call not in self.calls:
                    self.calls[call] = effect
                    self.inputs.append(CalledInput(call, "delivered", 200, '{"ok": true}'))
            case Listen(step=step, index=index, attempt=attempt):
                if (step, index, attempt) not in self.listening:
                    self.listening[step, index, attempt] = effect
                    event = {"run_id": "other", "event": effect.event, "data": {"n": 1}}
                    self.inputs.append(EventInput(step, index, attempt, event))
            case _:
                self._carry_out_other(effect)

    def _carry_out_other(self, effect: Effect) -> None:
        match effect:
            case StartTimer(timer=timer, due=due):
                self.timers[timer] = due
            case CancelTimer(timer=timer):
                self.timers.pop(timer, None)
            case TakeTurn():
                self.turn = effect
                if not self.is_busy:
                    self.inputs.append(TurnInput())
            case LeaveTurn():
                self.turn = None

    def publish(self, frame: Frame) -> None:
        """Do what the events of a frame lead to."""
        if frame.kind != "event":
            return
        type_, data = frame.payload["type"], frame.payload["data"]
        if type_ == "workflow.step_started" and "child_run_id" in data:
            self.inputs.append(StepStartedSeen(data["child_run_id"]))
        elif type_ == "approval.requested":
            approval = data["approval_id"]
            paused = {"type": "lifecycle.paused", "data": {"approval_id": approval}}
            self.inputs.append(ApprovalInput(approval, "asked", paused))
            decision = self.decisions.get(data["items"][0]["tool"], "approve")
            if decision != "none":
                self.inputs.append(decided(approval, decision))

    @staticmethod
    def heard(listen: Listen, data: JsonObject) -> EventInput:
        """Return an event for a step that listens."""
        event = {"run_id": "other", "event": listen.event, "data": data}
        return EventInput(listen.step, listen.index, listen.attempt, event)

    # what tests look at

    @property
    def events(self) -> list[tuple[str, JsonObject]]:
        """The type and the data of each event."""
        return [
            (frame.payload["type"], frame.payload["data"])
            for frame in self.frames
            if frame.kind == "event"
        ]

    @property
    def types(self) -> list[str]:
        """The type of each event, with the step where there is one."""
        return [" ".join([type_, *_about(data)]) for type_, data in self.events]

    def check(self) -> None:
        """Check what holds of every journal, whatever happened."""
        assert folded(self.journal) == self.state, "a journal that is read anew has another state"
        if self.state is not None and self.state.end is not None:
            assert self.turn is None, "a run that has ended keeps others waiting"
        again: list[Frame] = []
        state: State | None = None
        for record in self.journal:
            again += projection(state, record, self.values)
            state = fold(state, record)
        assert again == self.frames, "a projection that is made anew differs"
        if self.state is not None and self.state.end is not None:
            began, ended = (
                [
                    data["subrun_id"]
                    for type_, data in self.events
                    if type_ in types and "subrun_id" in data
                ]
                for types in (("dispatch.team", "dispatch.worker"), ("dispatch.finished",))
            )
            assert sorted(began) == sorted(ended), "a worker has no end, or two"
        positions = [frame.position for frame in again]
        assert positions == sorted(set(positions)), "frames have the same position"


def check_state(state: State | None, *, is_partial: bool = False) -> None:
    """Check what holds of every state."""
    assert state is not None
    open_ = state.open.values()
    assert state.busy == sum(entry.is_working for entry in open_)
    assert state.people_waiting == sum(entry.pause is not None for entry in open_)
    assert state.keys == {entry.id: entry.key for entry in open_ if entry.id is not None}
    assert not state.abandoned_children.keys() & state.keys.keys()
    begun = {step for step, _ in state.open} | state.loops.keys()
    assert not state.ready.keys() & (begun | state.results.keys())
    assert not state.loops.keys() & state.results.keys()
    assert not state.results.keys() & {step for step, index in state.open if index is None}
    for name, loop in state.loops.items():
        under_way = sum(step == name for step, _ in state.open)
        assert loop.begun - loop.ended == under_way
        assert loop.ended == sum(result is not None for result in loop.results)
    if state.end is not None:
        assert [*state.open, *state.ready, *state.loops] == []
    elif state.stop is not None:
        assert state.plan is not None
        names = {*(step for step, _ in state.open), *state.ready, *state.loops}
        assert all(state.plan.step(name).always for name in names)
    elif state.paused is not None:
        assert 0 < len(state.open) == state.people_waiting
    if state.stop is None and state.end is None and not (is_partial or state.waits_for_turn):
        assert state.open, "a run that has not ended waits for nothing"


def decided(approval: str, decision: str = "approve", **item: Any) -> ApprovalInput:
    """Return the news that a person has decided."""
    outcome = "approved" if decision == "approve" else "rejected"
    data = {"approval_id": approval, "outcome": outcome, "by": "grace"}
    items = [{"item_id": "x", "decision": decision, **item}]
    return ApprovalInput(approval, "decided", {"type": "approval.decided", "data": data}, items)


def _about(data: JsonObject) -> list[str]:
    if "from_step" in data:
        return [f"{data['from_step']}->{data['to_step']} {data['reason']}"]
    if "step_id" in data:
        return [data["step_id"].removeprefix("step_")]
    return [str(data["step"])] if "step" in data else []
