"""`penstock budget check` explains which budgets apply to a start."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from penstock_cli.main import app

BUDGETS = """\
version: 2
budgets:
  - id: trial
    match: {roles: [trial]}
    per: user
    limit: {cost: 5 EUR}
    at: [{share: 1.0, do: refuse}]
  - id: everybody
    per: user
    window: month
    limit: {tokens: 1000000}
    at: [{share: 1.0, do: refuse}]
"""


def check(folder: Path, text: str, **case: object) -> tuple[int, str]:
    budgets, start = folder / "budgets.yaml", folder / "case.json"
    budgets.write_text(text)
    start.write_text(json.dumps(case))
    result = CliRunner().invoke(app, ["budget", "check", str(budgets), "--case", str(start)])
    return result.exit_code, " ".join(result.output.split())


def test_each_budget_is_explained(tmp_path: Path) -> None:
    code, said = check(tmp_path, BUDGETS, user="ada", expect={"budgets": ["everybody"]})
    assert code == 0
    assert "no mistake, budgets: 2" in said
    assert "trial does not apply roles: the user has none of trial" in said
    assert "everybody applies it matches, and has no condition" in said


def test_a_start_to_which_other_budgets_apply_ends_with_1(tmp_path: Path) -> None:
    code, said = check(tmp_path, BUDGETS, roles=["trial"], expect={"budgets": ["everybody"]})
    assert code == 1
    assert "trial, everybody apply, and ['everybody'] were expected" in said


def test_a_mistake_ends_with_2_and_its_line(tmp_path: Path) -> None:
    code, said = check(tmp_path, BUDGETS.replace("5 EUR", "5"))
    assert code == 2
    assert "budgets.yaml:6: budgets[0].limit.cost: an amount of money is a number" in said
