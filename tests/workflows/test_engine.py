"""The pure engine of workflows: what each input changes in a run."""

from __future__ import annotations

import itertools
import uuid

from penstock_workflows.engine import ChildInput, StartInput, StepStartedSeen, decide, folded

DEFINITION = {
    "dsl": "penstock/1",
    "name": "two",
    "version": "1",
    "steps": {
        "a": {"run": {"agent": "x", "message": "input.text"}},
        "b": {"needs": ["a"], "run": {"agent": "y", "message": "a.output.text"}},
    },
    "output": "b.output.text",
}


def test_a_sequence_runs_one_step_after_the_other() -> None:
    numbers = itertools.count()

    def new_id() -> str:
        return f"child-{next(numbers)}"

    start = StartInput(str(uuid.uuid4()), {"session_id": "s"}, {}, DEFINITION, {"text": "hello"})
    first = decide(None, start, now_ms=1, new_id=new_id)
    state = first.state
    journal = list(first.records)
    for child, text in (("child-0", "one"), ("child-1", "two")):
        seen = decide(state, StepStartedSeen(child), now_ms=2, new_id=new_id)
        assert [type(effect).__name__ for effect in seen.effects] == ["StartChild"]
        ended = ChildInput(child, "lifecycle.completed", {"summary": text}, 9)
        decision = decide(state, ended, now_ms=3, new_id=new_id)
        state = decision.state
        journal += decision.records
    assert [type(record).__name__ for record in journal] == [
        *("Started", "Scheduled", "Ended", "Scheduled", "Ended", "End"),
    ]
    assert folded(journal) == state
    assert state is not None
    assert state.end is not None
    assert state.end.output == "two"
