"""Model checks of two connectors, a session with two runs and a pause, and a kill at every step.

In no reachable state does a run wait for ever, and nothing is sent twice. If a rule that fixes a
known fault is switched off, the model finds the steps that lead to the fault.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from connector.model.explore import Explored, Found
from connector.model.protocol import (
    Protocol,
    Rules,
    State,
    begin,
    is_done,
    is_overtaken,
    is_sent_twice,
    runs_side_by_side,
)

LIMIT = 3_000_000
OVERTAKEN = "a later start of the session begins first"
WAITS, TWICE, AT_ONCE = "waits for ever", "is sent twice", "two runs of a session are called"

KILLED = Rules(kills=1)
KILLED_TWICE = Rules(alone=True, pods=3, kills=2)
CANCELLED = Rules(alone=True, kills=1, cancels=1)
ASLEEP = Rules(alone=True, kills=0, sleeps=1)
HANDED_OVER = Rules(alone=True, kills=0, stops=2, cancels=1)
CANCELLED_ASLEEP = Rules(alone=True, kills=0, sleeps=1, cancels=1)


def explored(rules: Rules) -> Explored[State]:
    return Explored(begin(rules), Protocol(rules).moves, LIMIT)


def wrong(rules: Rules) -> list[Found[State]]:
    """Return each violation with the shortest way to it."""
    states = explored(rules)
    found = [states.first(TWICE, is_sent_twice), states.stuck(WAITS, is_done)]
    if not rules.alone:
        found.append(states.first(OVERTAKEN, is_overtaken))
    if not rules.sleeps:  # a pod that slept may still call the upstream, and no record shows it
        found.append(states.first(AT_ONCE, runs_side_by_side))
    return [each for each in found if each is not None]


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param(KILLED, id="killed"),
        pytest.param(KILLED_TWICE, id="two of three killed", marks=pytest.mark.chaos),
        pytest.param(CANCELLED, id="killed and cancelled"),
        pytest.param(ASLEEP, id="asleep, and back"),
        pytest.param(HANDED_OVER, id="stopped and cancelled"),
        pytest.param(CANCELLED_ASLEEP, id="asleep and cancelled", marks=pytest.mark.chaos),
        pytest.param(
            replace(KILLED_TWICE, kills=1, stops=2), id="stopped, killed", marks=pytest.mark.chaos
        ),
        pytest.param(Rules(cancels=1), id="two runs, cancelled", marks=pytest.mark.chaos),
    ],
)
def test_no_run_waits_for_ever_and_none_is_sent_twice(rules: Rules) -> None:
    found = wrong(rules)
    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize(
    ("rules", "what", "last"),
    [
        pytest.param(
            replace(
                KILLED, alone=True, reaper_clears_earlier_legs=False, waiting_looks_at_raw=False
            ),
            WAITS,
            "CLAIM_SENDING",
            id="an earlier leg's turn is cleared away by nobody",
        ),
        pytest.param(
            replace(KILLED, alone=True, open_is_found=False),
            TWICE,
            "calls the upstream",
            id="an open that is not found counts as not called",
            marks=pytest.mark.chaos,
        ),
        pytest.param(
            replace(KILLED, leaves_by_leg=False, own_leg_first=False),
            AT_ONCE,
            "OPEN",
            id="a leg takes the turn of the next one along",
        ),
        pytest.param(
            replace(KILLED, alone=True, records_before_it_forgets=False),
            WAITS,
            "is killed",
            id="a note goes before what it tells is written down",
            marks=pytest.mark.chaos,
        ),
        pytest.param(
            replace(KILLED_TWICE, clears_after_the_open=False, passes_over_the_same_leg=False),
            WAITS,
            "TAKE_OVER_CLAIM",
            id="only the last dead one's things are cleared away",
            marks=pytest.mark.chaos,
        ),
        pytest.param(
            replace(ASLEEP, looks_before_it_sends=False),
            TWICE,
            "calls the upstream",
            id="a sleeper may have sent what was taken over",
            marks=pytest.mark.chaos,
        ),
        pytest.param(
            Rules(kills=0, keeps_the_order_of_starts=False),
            OVERTAKEN,
            "OPEN",
            id="a connector begins what it is given, whatever waits elsewhere",
        ),
    ],
)
def test_without_what_mends_it_the_model_shows_the_way(rules: Rules, what: str, last: str) -> None:
    found = {each.what: each for each in wrong(rules)}
    assert what in found
    assert found[what].trace[-1].endswith(last), str(found[what])
