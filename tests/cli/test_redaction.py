"""`penstock redaction check` finds mistakes without a server, and shows what the rules do."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock_cli.main import app

RULES = r"""
version: 2
redact:
  - id: people
    kinds: [email, card]
  - id: staff
    match: {agent: "hr-*"}
    kinds: ['re:\bEMP-[0-9]{6}\b']
    action: block
"""


def check(folder: Path, rules: str, *options: str, text: str = "") -> tuple[int, str]:
    file = folder / "redactions.yaml"
    file.write_text(rules)
    result = CliRunner().invoke(app, ["redaction", "check", str(file), *options], input=text)
    return result.exit_code, result.output


def test_a_text_is_shown_as_the_rules_leave_it(tmp_path: Path) -> None:
    text = "joe@example.com paid with 4111 1111 1111 1111"
    code, said = check(tmp_path, RULES, "--text", text=text)
    assert code == 0
    assert "no mistake, rules: 2" in said
    assert "[EMAIL_1] paid with [CARD_1]" in said


def test_a_match_that_blocks_is_told_and_not_shown(tmp_path: Path) -> None:
    code, said = check(tmp_path, RULES, "--text", text="I am EMP-123456.")
    assert code == 0
    assert "I am" in said
    assert "EMP-" not in said
    assert "a match of kind pattern blocks the run" in said


def test_a_mistake_ends_with_2_and_its_line(tmp_path: Path) -> None:
    code, said = check(tmp_path, RULES.replace("{6}", "+"))
    assert code == 2
    assert "redactions.yaml:8: redact[1].kinds[0]: `+` has no greatest number" in said
    code, said = check(tmp_path, RULES.replace("email", "e-mail"))
    assert code == 2
    assert "'e-mail' is none of secret, email, iban, card, phone" in said


def test_patterns_that_are_too_large_together_are_refused_at_once(tmp_path: Path) -> None:
    kinds = ", ".join(f"'re:[{first}-z]{{1,1000}}'" for first in "abcdefghijklmnopqrstuvwxyz")
    began = time.process_time()
    code, said = check(tmp_path, f"version: 1\nredact: [{{id: all, kinds: [{kinds}]}}]\n")
    assert time.process_time() - began < 2, "RE2 would compile them for seconds"
    assert code == 2
    assert "instructions of RE2, and may have 50000 together" in said


def test_a_rule_has_kinds_or_a_checker(tmp_path: Path) -> None:
    rule = "version: 1\nredact:\n  - {id: a, check: {url: 'https://x.example/check'}}\n"
    assert check(tmp_path, rule)[0] == 0
    for wrong in (rule.replace("check:", "kinds: [email], check:"), rule.replace(", check", ", x")):
        assert check(tmp_path, wrong)[0] == 2
    code, said = check(tmp_path, rule.replace("check:", "kinds: [email], check:"))
    assert "give either `kinds` or `check`" in said
    code, said = check(tmp_path, rule.replace("https:", "ftp:"))
    assert code == 2
    assert "redact[0].check.url" in said


@pytest.mark.parametrize("host", ["ada:s3cret@x.example", "x.example:99999", "x .example"])
def test_a_checker_that_could_never_be_called_is_refused(tmp_path: Path, host: str) -> None:
    rule = f"version: 1\nredact:\n  - {{id: a, check: {{url: 'https://{host}/check'}}}}\n"
    code, said = check(tmp_path, rule)
    assert code == 2
    assert "redact[0].check.url" in said
    assert "s3cret" not in said
