"""What is said of a round and of several, and which rounds show too little."""

from __future__ import annotations

from support.chaos.checker import Violation
from support.chaos.report import Report, Wait, check_floors, summary


def good(seed: int = 1) -> Report:
    return Report(
        seed,
        kills={"connector": 2, "edge": 1},
        outcomes={"completed": 8, "cancelled": 1, "failed (upstream_lost)": 1},
        events=100,
        reconnects=2,
        reattached=1,
        waits=[Wait(float(seed), "connector", 10.0, f"r{seed}", ("pause broker 1",))],
        took_s=60,
    )


def floors(report: Report) -> list[str]:
    return [violation.text for violation in check_floors(report, completed=0.6, reattached=1)]


def test_a_round_that_hurt_and_healed_enough_is_good() -> None:
    assert floors(good()) == []


def test_a_round_in_which_too_few_runs_were_completed_is_not() -> None:
    report = good()
    report.outcomes = {"completed": 5, "failed (upstream_lost)": 5}
    assert floors(report) == ["50% of the runs were completed, not 60%"]


def test_a_round_without_runs_is_not() -> None:
    report = good()
    report.outcomes = {}
    assert floors(report) == ["0% of the runs were completed, not 60%"]


def test_a_round_in_which_no_leg_was_gone_on_with_is_not() -> None:
    report = good()
    report.reattached = 0
    assert floors(report) == ["0 legs went on by another connector, not 1"]


def test_a_round_that_measured_nothing_is_not() -> None:
    report = good()
    report.waits = []
    assert floors(report) == ["no run was streaming when something was killed"]


def test_the_rounds_are_summed_up_with_the_slowest_and_what_else_was_hurt() -> None:
    broken = good(2)
    broken.violations = [Violation("numbers", "r2", "the sequence is [1, 3]")]
    assert summary([good(1), broken]).splitlines() == [
        "all 2 rounds, seeds 1, 2: 20 runs, 200 events, 4 reconnects, 2 legs gone on with in 120 s",
        "  kills: 6 (4 connector, 2 edge)",
        "  runs: 2 cancelled, 16 completed, 2 failed (upstream_lost)",
        "  from the kill of anything to the next event (n=2): p50 2.00 s, p99 2.00 s, max 2.00 s",
        "  from the kill of connector to the next event (n=2): p50 2.00 s, p99 2.00 s, max 2.00 s",
        "  the slowest, and what else was hurt meanwhile:",
        "    2.0 s r2 after connector at 10 s, with pause broker 1",
        "    1.0 s r1 after connector at 10 s, with pause broker 1",
        "  violations: 1 (1 numbers)",
        "    numbers: r2: the sequence is [1, 3]",
    ]
