"""Carries out a test: the engine decides about a run whose steps get canned answers. Pure.

Time passes only when nothing else happens: then the next timer is due.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from penstock.json_schema import misfits
from penstock.runs.calls import is_expected
from penstock.runs.workflows import input_of
from penstock_workflows.definition import Loaded, Problem
from penstock_workflows.definition.problems import Path
from penstock_workflows.engine import inputs, records
from penstock_workflows.engine.decide import decide
from penstock_workflows.engine.effects import CancelChild, CancelTimer, StartTimer, TakeTurn
from penstock_workflows.engine.projection import summary_of
from penstock_workflows.engine.records import Json, JsonObject
from penstock_workflows.engine.state import State
from penstock_workflows.testing.document import Answer, Test

MAX_SHOWN: Final = 300  # the greatest number of characters of a value in a reason
# By the kind of a step: the field of what it sends that a test may name alone.
_MAIN: Final = {"run": "message", "approve": "title"}


class _NoAnswer(Exception):
    """The test has no answer to an attempt of the step."""

    def __init__(self, waits: records.Scheduled | records.Waiting) -> None:
        which = f"item {waits.index} of " if waits.index is not None else ""
        which = f"attempt {waits.attempt} of {which}" if waits.attempt > 1 else which
        super().__init__(f"the test has no answer to {which}the step {waits.step}")
        self.step = waits.step


@dataclass
class _Run:
    """The run of a test. `begun` are the steps that have begun, `sent` is what they have sent, and
    `waiting` are the inputs about which nothing is decided yet."""

    test: Test
    loaded: Loaded
    state: State | None = None
    now_ms: int = 0
    begun: dict[str, None] = field(default_factory=dict)
    sent: dict[str, list[JsonObject]] = field(default_factory=dict)
    values: dict[str, Json] = field(default_factory=dict)  # the large outputs, by their digests
    waiting: deque[inputs.Input] = field(default_factory=deque)
    timers: dict[str, int] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def carry_out(self) -> State:
        """Return the last state; one without an end waits for what never comes. Raises
        _NoAnswer."""
        case, definition = self.test.case, self.loaded.workflow.definition
        self.now_ms = round(case.now.timestamp() * 1000)
        start = inputs.StartInput(
            run_id=self._new_id(),
            command={"session_id": self._new_id()},
            open={"agent": definition.name},
            definition=self.loaded.value,
            input=input_of(definition.input, case.input, case.message),
        )
        self.waiting.append(start)
        while self.waiting or self._ring():
            self._take(self.waiting.popleft())
        assert self.state is not None
        return self.state

    def _new_id(self) -> str:
        return str(uuid.UUID(int=next(self.numbers)))

    def _ring(self) -> bool:
        """Let time pass until the next timer is due; return False if there is none."""
        if self.state is None or self.state.end is not None or not self.timers:
            return False
        timer = min(self.timers, key=lambda name: self.timers[name])
        self.now_ms = max(self.now_ms, self.timers.pop(timer))
        self.waiting.append(inputs.TimerInput(timer))
        return True

    def _take(self, cause: inputs.Input) -> None:
        decision = decide(
            self.state, cause, now_ms=self.now_ms, new_id=self._new_id, values=self.values
        )
        self.state = decision.state
        self.values |= {each.digest: orjson.loads(each.payload) for each in decision.stored}
        if decision.is_partial:
            self.waiting.appendleft(inputs.ProceedInput())
        for effect in decision.effects:
            match effect:
                case StartTimer(timer, due):
                    self.timers[timer] = due
                case CancelTimer(timer):
                    self.timers.pop(timer, None)
                case CancelChild(child):
                    self.waiting.append(inputs.ChildInput(child, "lifecycle.cancelled", {}))
                case TakeTurn():
                    self.waiting.append(inputs.TurnInput())
        for record in decision.records:
            self._note(record)

    def _note(self, record: records.Record) -> None:
        match record:
            case records.ForEachStarted(step=step):
                self._begin(step)
            case records.Ended(step=step, outcome=outcome) if outcome != "skipped":
                self._begin(step)
            case records.Scheduled(step=step):
                self._begin(step)
                self._answer(record, _sent_to_child(record))
            case records.Waiting(step=step, detail=detail):
                self._begin(step)
                if record.kind != "wait":
                    self._answer(record, detail or {})

    def _begin(self, step: str) -> None:
        if step == self.test.case.cancel_at and step not in self.begun:
            self.waiting.append(inputs.CancelInput("somebody"))
        self.begun[step] = None

    def _answer(self, waits: records.Scheduled | records.Waiting, sent: JsonObject) -> None:
        self.sent.setdefault(waits.step, []).append(sent)
        if not (answer := self._answer_to(waits)).never:
            self.waiting += _ANSWERS[waits.kind](waits, answer)

    def _answer_to(self, waits: records.Scheduled | records.Waiting) -> Answer:
        answers = self.test.answers.get(waits.step, [])
        for place in (waits.index, waits.attempt - 1):
            if isinstance(answers, list) and place is not None:
                answers = answers[place] if place < len(answers) else []
        if isinstance(answers, Answer):
            return answers
        if waits.step == self.test.case.cancel_at:
            return Answer(never=True)
        raise _NoAnswer(waits)


def _sent_to_child(record: records.Scheduled) -> JsonObject:
    if record.kind == "workflow":
        return {"workflow": record.name, "version": record.version, "input": record.input}
    return {"agent": record.name, "message": record.message, "input": record.input}


def _of_child(child: records.Scheduled, answer: Answer) -> Iterator[inputs.Input]:
    if answer.failed is not None:
        error = {"code": answer.failed, "error": answer.message}
        yield inputs.ChildInput(child.child, "lifecycle.failed", error)
        return
    data = {"summary": summary_of(answer.data) if answer.text is None else answer.text}
    if not isinstance(answer.data, str | None):
        data["value"] = answer.data
    yield inputs.ChildInput(child.child, "lifecycle.completed", data)


def _of_person(approval: records.Waiting, answer: Answer) -> Iterator[inputs.Input]:
    is_approved = answer.decision == "approve"
    data = {"outcome": "approved" if is_approved else "rejected", "by": answer.by}
    item = {
        "decision": "approve" if is_approved else "reject",
        "expired": answer.decision == "expire",
        "note": answer.note,
        "value": answer.data,
    }
    event = {"type": "approval.decided", "data": data}
    yield inputs.ApprovalInput(str(approval.id), "decided", event, [item])


def _of_receiver(call: records.Waiting, answer: Answer) -> Iterator[inputs.Input]:
    code, message = answer.failed, answer.message
    if code is None and not is_expected(answer.status, (call.detail or {})["expect"]):
        code, message = f"http_{answer.status}", f"the receiver answered {answer.status}"
    if code is not None:
        error = {"code": code, "message": message}
        yield inputs.CalledInput(str(call.id), "failed", error=error)
        return
    text = answer.text
    if text is None and "data" in answer.model_fields_set:
        text = json.dumps(answer.data)
    headers = {name.lower(): value for name, value in answer.headers.items()}
    yield inputs.CalledInput(str(call.id), "delivered", answer.status, text, headers=headers)


def _of_event(listens: records.Waiting, answer: Answer) -> Iterator[inputs.Input]:
    category, _, action = (listens.detail or {})["event"].partition(".")
    event = {"event": {"category": category, "action": action}, "data": answer.data or {}}
    yield inputs.EventInput(listens.step, listens.index, listens.attempt, event)


_ANSWERS: Final[Mapping[str, Callable[..., Iterator[inputs.Input]]]] = {
    "run": _of_child,
    "workflow": _of_child,
    "approve": _of_person,
    "call": _of_receiver,
    "listen": _of_event,
}


def carry_out(test: Test, loaded: Loaded) -> list[Problem]:
    """Return how the run of a test differs from what the test expects; nothing if it does not."""
    run = _Run(test, loaded)
    try:
        state = run.carry_out()
    except _NoAnswer as missing:
        return [Problem((*test.path, "answers", missing.step), str(missing))]
    return list(_differences(test, loaded, run, state))


def _differences(test: Test, loaded: Loaded, run: _Run, state: State) -> Iterator[Problem]:
    place, expected, end = (*test.path, "expect"), test.case.expect, state.end
    if end is None:
        waits = ", ".join(dict.fromkeys(step for step, _ in state.open))
        yield Problem((*place, "status"), f"the run does not end: it waits for {waits}")
        return
    error = end.error or {}
    if end.status != expected.status:
        because = f" ({error['code']}: {error['message']})" if error else ""
        reason = f"the run is {end.status}{because}, not {expected.status}"
        yield Problem((*place, "status"), reason)
        return
    if "output" in expected.model_fields_set:
        yield from _compare((*place, "output"), end.output, expected.output)
    if expected.code is not None:
        yield from _compare((*place, "code"), error.get("code"), expected.code)
    if expected.steps is not None:
        yield from _compare((*place, "steps"), list(run.begun), list(expected.steps))
    for step, wanted in expected.sent.items():
        sent, wants = run.sent.get(step, []), wanted if isinstance(wanted, list) else [wanted]
        main = _MAIN.get(loaded.workflow.steps[step].kind)
        at = (*place, "sent", step)
        if len(sent) != len(wants):
            yield Problem(at, f"it has sent {len(sent)} times, not {len(wants)}")
            continue
        for number, (each, want) in enumerate(zip(sent, wants, strict=True)):
            inside = (*at, number) if isinstance(wanted, list) else at
            part = each if main is None or isinstance(want, dict) else each[main]
            yield from _compare(inside, part, want, is_part=True)


def _compare(path: Path, found: Json, wanted: Json, *, is_part: bool = False) -> Iterator[Problem]:
    """Yield the differences of two JSON values. With `is_part`, the found object may have further
    fields."""
    match found, wanted:
        case dict(), dict():
            for name, each in wanted.items():
                if name in found:
                    yield from _compare((*path, name), found[name], each)
                else:
                    yield Problem((*path, name), "is missing")
            for name in () if is_part else sorted(found.keys() - wanted.keys()):
                yield Problem(path, f"has {name!r}, too: {_shown(found[name])}")
        case list(), list() if len(found) == len(wanted):
            for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
                yield from _compare((*path, number), one, other)
        case _ if misfits({"const": wanted}, found):
            yield Problem(path, f"is {_shown(found)}, not {_shown(wanted)}")


def _shown(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
