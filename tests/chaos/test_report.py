"""The reports of one round and of several, and the floors that a round must reach."""

from __future__ import annotations

from support.chaos.checker import Violation
from support.chaos.load import EVERY_S, STARVED, WINDOW_S, Load, Sample, work
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
        load=Load([Sample(0.0, 1.0), Sample(5.0, 2.0)], [0.3], [0.1]),
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
    broken.load = Load([Sample(20.0, 1.2), Sample(25.0, 1.8)])
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
        "  machine: not starved; work took 1.5 times as long, for 10 s 1.5 times; "
        "event loop late 0.3 s at most, faults late 0.1 s at most",
        "  violations: 1 (1 numbers)",
        "    numbers: r2: the sequence is [1, 3]",
    ]


def loaded(slower: float, for_s: float) -> Load:
    """Return the load of a machine that was slower for a while, and free before and after."""
    return Load(
        [
            Sample(at * EVERY_S, slower if 60 <= at * EVERY_S < 60 + for_s else 1.0)
            for at in range(int(180 / EVERY_S))
        ]
    )


def test_a_machine_that_was_slow_for_a_while_was_starved() -> None:
    assert loaded(STARVED + 1, for_s=WINDOW_S + 1).starved
    assert not loaded(STARVED + 1, for_s=WINDOW_S / 4).starved
    assert not loaded(STARVED - 1, for_s=60).starved
    assert Load(loop_late_s=[3.0]).starved
    assert not Load().starved


def test_work_on_a_cpu_of_its_own_takes_no_longer() -> None:
    # (Beside other tests, most tries do not have the CPU of their own.)
    assert any(work() < STARVED / 2 for _ in range(2000))


def test_what_is_only_late_does_not_count_on_a_starved_machine_and_what_is_wrong_does() -> None:
    report = good()
    late, wrong = Violation("end", "r1", "not yet", late=True), Violation("content", "r2", "other")
    report.violations = [late, wrong]
    assert (report.faults, report.excused) == ([late, wrong], [])
    report.load = loaded(9, for_s=60)
    assert (report.faults, report.excused) == ([wrong], [late])
    assert "late on a starved machine: 1 (1 end)" in str(report)
    assert "violations: 1 (1 content)" in summary([good(2), report])
