"""The examples of docs/automations.md are rules that Penstock takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from penstock.expressions import Conditions
from penstock_automations.rules.calls import read_call_secrets
from penstock_automations.rules.check import read_rule
from penstock_automations.rules.model import Rule
from support.drive.repository import ROOT
from support.fakes.receiver import SECRET

TEXT = (ROOT / "docs" / "automations.md").read_text("utf-8")
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
VARIABLES = {"${HOOK_SECRET}": SECRET, "${HOOK_TOKEN}": "t", "${ORDERS_SECRET}": SECRET}


def rules() -> list[dict[str, object]]:
    found = []
    for block in BLOCKS:
        text = block
        for name, value in VARIABLES.items():
            text = text.replace(name, value)
        content = yaml.safe_load(text)
        if isinstance(content, dict):
            content = content.get("rules", [])  # the file of secrets for calls has no rules
        found += content
    return found


def test_the_file_of_secrets_for_calls_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [block] = [each for each in BLOCKS if each.startswith("secrets:")]
    monkeypatch.setenv("N8N_SECRET", SECRET)
    monkeypatch.setenv("N8N_TOKEN", "t")
    file = tmp_path / "secrets.yaml"
    file.write_text(block)
    assert read_call_secrets(file)["n8n"].hosts == ["n8n.internal"]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["id"])
def test_an_example_is_a_rule(rule: dict[str, object]) -> None:
    assert read_rule(rule, Rule).id == rule["id"]


def test_the_condition_on_amounts_holds_for_whole_numbers_and_others() -> None:
    [rule] = [each for each in rules() if each["id"] == "small-refunds"]
    conditions = Conditions(["event"])
    condition = conditions.compile(str(rule["where"]))
    for amount, holds in ((49, True), (49.5, True), (50, False), (51.5, False)):
        items = [{"tool": "refund", "args": {"amount": amount}}]
        assert condition.holds({"event": {"data": {"items": items}}}) is holds
