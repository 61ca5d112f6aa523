"""The table of the benchmarks: medians, spreads and ratios."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.results import Results, Sample, Value, load, markdown, merged, ratio_of


@pytest.fixture
def results() -> Results:
    made = Results({"machine": "one core"}, skipped={"naive": "make bench-peers"})
    for us in (10.0, 30.0, 11.0):
        made.add(Sample("edge", "w1", "penstock", {"us_per_event": us, "p50_ms": 2.0}))
    for us in (20.0, 22.0, 25.0):
        made.add(Sample("edge", "w1", "nchan", {"us_per_event": us}))
    return made


def test_a_figure_is_the_median_of_its_rounds_with_the_lowest_and_the_highest(
    results: Results,
) -> None:
    assert results.value("edge", "w1", "penstock", "us_per_event") == Value(11.0, 10.0, 30.0, 3)


def test_a_ratio_is_that_of_the_medians(results: Results) -> None:
    assert ratio_of(results, "edge", "w1", "penstock", "nchan", "us_per_event") == 0.5
    assert ratio_of(results, "edge", "w1", "penstock", "nchan", "p50_ms") is None


def test_the_table_has_a_row_for_each_system_and_says_what_was_skipped(results: Results) -> None:
    table = markdown(results, {"edge": ("us_per_event", ["nchan", "naive"])})
    assert "machine: one core." in table
    assert "Skipped: naive (make bench-peers)." in table
    assert "| w1 | penstock | 11 (10 to 30) | 2 | 0.50 |" in table
    assert "| w1 | nchan | 22 (20 to 25) |  |  |" in table


def test_results_are_read_back_and_joined(results: Results, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text(results.dump())
    assert load(file) == results
    both = merged([load(file), results])
    value = both.value("edge", "w1", "nchan", "us_per_event")
    assert value is not None
    assert value.rounds == 6
