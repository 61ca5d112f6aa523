"""A pause that waits only for decisions that were or are being taken is left out of a leg."""

from __future__ import annotations

from typing import Any

import pytest

from edge.trees.test_fold import ROOT, Script, run_id
from penstock_edge.views.tree_fold import TreeFold

CHILD = run_id(1)


def shown(script: Script, *answered: str) -> list[tuple[str, int]]:
    """Return the type and the leg of each event of the root's lifecycle."""
    fold = TreeFold(ROOT)
    events: list[dict[str, Any]] = []
    for run, each in script.events:
        if each["event"]["action"] == "decided":
            fold.answered = answered
        events += fold.feed(run, each)
    return [
        (event["event"]["action"], event["leg"])
        for event in events
        if event["event"]["category"] == "lifecycle"
    ]


@pytest.fixture
def script() -> Script:
    """Two approvals, of the root and of a step's run, that are decided one after the other."""
    made = Script()
    made.say(ROOT, "lifecycle.started", agent="root", user_id="u")
    made.step(ROOT, CHILD, "step_1")
    for run, approval in ((ROOT, "own"), (CHILD, "childs")):
        made.say(run, "approval.requested", approval_id=approval, items=[])
    paused = {"reason": "approval_required"}
    made.say(CHILD, "lifecycle.paused", approval_id="childs", **paused)
    made.say(ROOT, "lifecycle.paused", approval_id="own", **paused)
    made.say(ROOT, "approval.decided", approval_id="own")
    made.say(ROOT, "lifecycle.resumed", approval_id="own")
    made.say(ROOT, "lifecycle.paused", approval_id="childs", **paused)
    made.say(CHILD, "approval.decided", approval_id="childs")
    made.say(ROOT, "lifecycle.resumed", approval_id="childs")
    made.say(ROOT, "lifecycle.completed", summary="done")
    return made


def test_a_pause_for_an_open_approval_is_shown(script: Script) -> None:
    two_legs = [("started", 1), ("paused", 1), ("resumed", 2), ("paused", 2), ("resumed", 3)]
    assert shown(script) == [*two_legs, ("completed", 3)]
    assert shown(script, "own") == [*two_legs, ("completed", 3)]


def test_a_leg_continues_over_a_pause_for_what_its_reader_decides(script: Script) -> None:
    one_leg = [("started", 1), ("paused", 1), ("resumed", 2), ("completed", 3)]
    assert shown(script, "own", "childs") == one_leg


def test_a_pause_that_comes_after_its_decision_is_left_out(script: Script) -> None:
    # The step's run is decided before the root learns of it.
    decided = script.events.pop(-3)
    script.events.insert(-4, decided)
    assert shown(script) == [("started", 1), ("paused", 1), ("resumed", 2), ("completed", 3)]
