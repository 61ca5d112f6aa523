"""The page says what was run, and what was not."""

from __future__ import annotations

import json

from compare.page import FILE, extent, servers, table
from compare.rivals import RIVALS

AGNO = next(rival for rival in RIVALS if rival.id == "agno")


def test_what_could_not_be_tried_is_not_shown_with_its_reason() -> None:
    reports = {"agno": {"not shown": "its environment is not there"}}
    assert f"| {AGNO.name} | not shown |" in table(reports)
    assert "Not shown: its environment is not there" in servers(reports)


def test_a_server_whose_runs_had_more_time_than_those_of_others_says_so() -> None:
    reports = json.loads(FILE.read_text("utf-8"))
    assert "15 s after each restart unless a section says otherwise" in extent(reports)
    longer = [id for id, each in reports.items() if "60 s after" in servers({id: each})]
    assert longer == [id for id, each in reports.items() if each["patience_s"] != 15] != []


def test_every_server_was_tried_with_the_same_seed_and_every_run_is_counted() -> None:
    reports = json.loads(FILE.read_text("utf-8"))
    assert set(reports) == {rival.id for rival in RIVALS}
    shown = [each for each in reports.values() if "not shown" not in each]
    assert len({(each["seed"], each["rounds"], each["runs"]) for each in shown}) == 1
    for each in shown:
        ends = [each[name] for name in ("completed", "failed", "unknown", "endless", "unanswered")]
        assert sum(ends) == each["runs"]
