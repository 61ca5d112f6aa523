"""A seed gives a round: the same faults and the same runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest

from support.chaos.plans import plans
from support.chaos.schedule import (
    EVERYTHING,
    MAJORITY,
    SETTLE_S,
    Fault,
    Shape,
    schedule,
    shown,
)

COUNT = {"connector": 2, "normalizer": 3, "approvals": 2, "edge": 2, "broker": 3, "upstream": 2}
SHAPE = Shape(COUNT)
SEEDS = range(20)


def test_a_seed_makes_the_same_round_again_and_another_seed_another() -> None:
    assert schedule(7, 60, SHAPE) == schedule(7, 60, SHAPE)
    assert schedule(7, 60, SHAPE) != schedule(8, 60, SHAPE)
    assert list(islice(plans(7, "1"), 50)) == list(islice(plans(7, "1"), 50))
    assert list(islice(plans(7, "1"), 50)) != list(islice(plans(8, "1"), 50))


@pytest.mark.parametrize("kills", [5, 8, 63])
def test_every_target_is_killed(kills: int) -> None:
    for seed in SEEDS:
        killed = Counter(f.target for f in schedule(seed, kills, SHAPE) if f.kind == "kill")
        assert killed.total() == kills
        assert set(killed) == set(COUNT) - {"upstream"}


def test_brokers_are_hurt_one_at_a_time_and_nothing_while_it_is_away() -> None:
    for seed in SEEDS:
        away: dict[tuple[str, int | None], float] = {}
        for fault in schedule(seed, 63, SHAPE):
            who = (fault.target, None if fault.target == "broker" else fault.number)
            assert fault.at_s >= round(away.get(who, 0.0), 1) - 0.1, str(fault)
            away[who] = fault.at_s + fault.for_s + SETTLE_S


def test_pauses_are_longer_than_the_leases() -> None:
    pauses = [f for seed in SEEDS for f in schedule(seed, 63, SHAPE) if f.kind == "pause"]
    assert {fault.target for fault in pauses} == set(SHAPE.pause_s)
    assert all(fault.for_s >= SHAPE.pause_s[fault.target] for fault in pauses)


def test_nothing_else_happens_while_many_are_away_at_once() -> None:
    shape = replace(SHAPE, alone=(MAJORITY, EVERYTHING))
    for seed in SEEDS:
        faults = schedule(seed, 63, shape)
        assert faults == sorted(faults, key=lambda fault: fault.at_s)
        for many in (MAJORITY, EVERYTHING):
            (alone,) = [fault for fault in faults if fault.target == many]
            away = (alone.at_s - SETTLE_S, alone.at_s + alone.for_s + SETTLE_S)
            assert not [
                str(other)
                for other in faults
                if other is not alone
                and other.at_s < away[1]
                and other.at_s + other.for_s > away[0]
            ]


def test_what_cannot_be_paused_is_not() -> None:
    shape = Shape(COUNT, pause_s={"normalizer": 4.0})
    pauses = [f for seed in SEEDS for f in schedule(seed, 63, shape) if f.kind == "pause"]
    assert {fault.target for fault in pauses} == {"normalizer"}


def test_a_schedule_is_shown_with_its_seed() -> None:
    faults = [
        Fault(1.5, "kill", "edge", 1, 2.0),
        Fault(2.0, "pause", "broker", 0, 8.0),
        Fault(3.0, "cut", "upstream", 0, 0.0),
        Fault(4.0, "hang", "connector", 1, 1.0),
    ]
    assert shown(7, faults).splitlines() == [
        "seed 7: 1 kills and 3 other faults; the same again: make chaos SEED=7",
        "   1.5 s  kill -9 edge 1, started again after 2.0 s",
        "   2.0 s  SIGSTOP broker 0, SIGCONT after 8.0 s",
        "   3.0 s  cut every answer of upstream 0",
        "   4.0 s  let the connections of connector 1 hang for 1.0 s",
    ]


def test_every_kind_of_run_is_asked_for() -> None:
    asked = list(islice(plans(1, "1", ("agno", "adk", "resumable", "agui")), 300))
    assert {plan.decision for plan in asked} == {None, "approve", "reject", "none"}
    assert {plan.agent for plan in asked} == {"agno", "adk", "resumable", "agui"}
    assert any(plan.leave_after is not None for plan in asked)
    assert any(plan.cancel_after is not None for plan in asked)
    assert any(plan.duel for plan in asked)
    assert any(plan.started_twice for plan in asked)
    sessions = Counter(plan.session_id for plan in asked)
    assert max(sessions.values()) > 10
    shared = [plan for plan in asked if sessions[plan.session_id] > 1]
    assert any(plan.decision is not None for plan in shared), "some wait for a decision"
    assert len({plan.message for plan in asked}) == len(asked)
