"""`penstock policy check` explains each rule; the exit code says whether all is as expected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock_cli.main import app

POLICY = """\
version: 7
rules:
  - {id: read-only, match: {tool: "get_*"}, outcome: approve}
  - id: payments
    match: {tool: transfer}
    when: args.amount > 1000.0
    outcome: ask
    deciders: {roles: [finance], not: [requester]}
    need: 2
"""
CASE = {"tool": "transfer", "args": {"amount": 5000}, "expect": {"rule": "payments", "need": 2}}


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


def check(policy: Path, *cases: object, flags: tuple[str, ...] = ()) -> tuple[int, str]:
    given: list[str] = []
    for number, case in enumerate(cases):
        path = policy.parent / f"case{number}.json"
        path.write_text(json.dumps(case))
        given += ["--case", str(path)]
    result = CliRunner().invoke(app, ["policy", "check", str(policy), *given, *flags])
    return result.exit_code, result.output


def test_each_rule_is_explained(policy: Path) -> None:
    code, output = check(policy, CASE)
    assert code == 0
    said = " ".join(output.split())
    assert "tool: transfer is not get_*" in said
    assert "its condition is true (decides)" in said
    assert "ask 2 of (role finance, not requester), by rule payments" in said


def test_an_error_in_a_condition_is_explained(policy: Path) -> None:
    code, output = check(policy, {"tool": "transfer"})
    said = " ".join(output.split())
    assert code == 0
    assert "cannot be decided" in said
    assert "so the item is asked: there is no field 'amount' (decides)" in said


def test_what_is_otherwise_than_expected_ends_with_1(policy: Path) -> None:
    code, output = check(policy, CASE, CASE | {"expect": {"outcome": "approve", "need": 1}})
    assert code == 1
    assert "outcome is ask, and approve was expected" in output
    assert "need is 2, and 1 was expected" in output


def test_the_explanation_is_also_json(policy: Path) -> None:
    code, output = check(policy, CASE, flags=("--json",))
    said = json.loads(output)
    assert (code, said["outcome"], said["rule"], said["differences"]) == (0, "ask", "payments", [])
    assert [each["rule"] for each in said["verdicts"]["1"]] == ["read-only", "payments"]


def test_mistakes_are_named_by_line_and_end_with_2(policy: Path) -> None:
    policy.write_text(POLICY + "    nedd: 3\n    deadline: soon\n")
    code, output = check(policy)
    assert code == 2
    assert f"{policy}:10: rules[1].nedd: there is no such field" in output
    assert f"{policy}:11: rules[1].deadline: a duration is" in output


def test_what_is_no_yaml_is_named_by_line(policy: Path) -> None:
    policy.write_text("version: [\n")
    code, output = check(policy)
    assert code == 2
    assert f"{policy}:2: not YAML: expected the node content" in output


@pytest.mark.parametrize("case", [{"tol": "x"}, [], {"expect": {"outcome": "allow"}}])
def test_what_is_no_case_ends_with_2(policy: Path, case: object) -> None:
    code, output = check(policy, case)
    assert code == 2
    assert "case0.json" in output


def test_a_missing_file_ends_with_2(tmp_path: Path) -> None:
    code, output = check(tmp_path / "none.yaml")
    assert (code, "none.yaml" in output) == (2, True)
