"""Checks the rules of a file without a server."""

from __future__ import annotations

from penstock_automations.api.bodies import ApiRule
from penstock_automations.rules.check import InvalidRule, read_rule
from penstock_automations.rules.draft import Draft, Problem
from penstock_cli.terminal.rules_file import FileRule


def mistakes(rule: FileRule) -> tuple[list[str], list[str]]:
    """Return the mistakes of a rule and the warnings, each as `LINE: ID: FIELD: REASON`. Agents and
    addresses, which only the server knows, are not checked."""
    draft, wrong = Draft(), list[Problem]()
    try:
        read_rule(rule.value, ApiRule, draft)
    except InvalidRule as error:
        wrong = [each for each in error.problems if each["field"] not in rule.unset]
    return [_line(rule, each) for each in wrong], [_line(rule, each) for each in draft.warnings]


def _line(rule: FileRule, problem: Problem) -> str:
    field, place = problem["field"], (problem.get("line"), problem.get("column"))
    return f"{rule.location_of(field, *place)}: {rule.id}: {field}: {problem['reason']}"
