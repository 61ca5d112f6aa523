"""Checks a rule that a person wrote: its form, and what its action needs. Pure.

A rule acts with the rights that its owner had when the rule was written. These rights are checked
when the rule is written, and again when the rule acts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from penstock import start_fields
from penstock.expressions import ExpressionError
from penstock.settings import Config
from penstock.validation import did_you_mean, fields_at, reason_of
from penstock_automations.guard import AddressRefused, Guard
from penstock_automations.rules.actions import ActionKind, RunAction
from penstock_automations.rules.model import PATTERNS, Rule
from penstock_automations.rules.records import CONDITIONS, Owner

_UNDECLARED: Final = re.compile(r"undeclared reference to '([A-Za-z0-9_]+)[^']*'")

_SCOPES: Final[Mapping[ActionKind, str]] = {"run": "start", "decide": "decide"}
_NO_WORKFLOW: Final = (
    "a rule starts a stored workflow through an agent of the configuration with protocol: workflow"
)

R = TypeVar("R", bound=Rule)


class InvalidRule(ValueError):
    """A rule has mistakes. Each of the `problems` has a `field` and a `reason`, and in a condition
    also `line` and `column`."""

    def __init__(self, problems: list[dict[str, Any]]) -> None:
        super().__init__("; ".join(map(_line, problems)))
        self.problems = problems


def read_rule(value: Any, model: type[R]) -> R:
    """Return the rule that a JSON or YAML value describes. Raises InvalidRule."""
    try:
        rule = model.model_validate(value)
    except ValidationError as error:
        raise InvalidRule(problems_of(error, model)) from None
    if rule.where is not None:
        try:
            CONDITIONS.compile(rule.where)
        except ExpressionError as error:
            problem: dict[str, Any] = {"field": "where", "reason": _explained(error.reason)}
            if error.position is not None:
                problem |= {"line": error.position.line, "column": error.position.column}
            raise InvalidRule([problem]) from None
    return rule


def problems_of(error: ValidationError, model: type[BaseModel]) -> list[dict[str, Any]]:
    """Return the problems of a rule or a part: field, reason and, if known, a position."""
    found = error.errors(include_input=False, include_url=False)
    return [_problem(each, model) for each in found]


def _problem(each: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    cause = each.get("ctx", {}).get("error")
    reason = reason_of(each)
    if each["type"] == "string_pattern_mismatch":
        reason = PATTERNS.get(each["ctx"]["pattern"], reason)
    elif each["type"] == "extra_forbidden":
        *parents, name = each["loc"]
        reason += did_you_mean(str(name), fields_at(model, parents))
    problem: dict[str, Any] = {"field": ".".join(map(str, each["loc"])), "reason": reason}
    if isinstance(cause, ExpressionError) and cause.position is not None:
        position = cause.position
        problem |= {"reason": cause.reason, "line": position.line, "column": position.column}
    return problem


def _explained(reason: str) -> str:
    match = _UNDECLARED.fullmatch(reason)
    return reason if match is None else reason + did_you_mean(match[1], ["event"])


def _line(problem: dict[str, Any]) -> str:
    where = f" (line {problem['line']}, column {problem['column']})" if "line" in problem else ""
    return f"{problem['field']}{where}: {problem['reason']}"


def missing_right(rule: Rule, owner: Owner) -> str | None:
    """Return why the owner may not have a rule with this action; None if the owner may have it."""
    scope = _SCOPES.get(rule.action.kind)
    if scope is not None and not owner.has_scope(scope):
        return f"the action {rule.action.kind} needs the scope {scope}, which the owner lacks"
    webhook = rule.action.webhook
    if webhook is not None and webhook.links and not owner.has_scope("administer"):
        return "links let others decide: they need the scope administer, which the owner lacks"
    if rule.action.run is not None and not owner.user_id:
        return "a run belongs to a user, so the rule needs an owner"
    return None


def check_agent(run: RunAction, config: Config) -> None:
    """Raise InvalidRule if there is no such agent, or the agent does not accept the input. An input
    with placeholders is not checked here, but when the placeholders are filled."""
    agent = config.agent(run.agent)
    if agent is None:
        reason = f"{config.no_agent(run.agent)}; {_NO_WORKFLOW}"
        raise InvalidRule([{"field": "action.run.agent", "reason": reason}])
    if run.input is None or run.has_placeholders_in_input:
        return
    try:
        start_fields.accepted_input(agent.protocol, agent.accepts, run.input)
    except start_fields.NotAccepted as error:
        field = "action.run.input"
        raise InvalidRule([{"field": field, "reason": str(error)}]) from None


def check_action(rule: Rule, guard: Guard, config: Config) -> None:
    """Raise InvalidRule if the action can never succeed with these settings and agents."""
    if rule.action.run is not None:
        check_agent(rule.action.run, config)
    if rule.action.webhook is None:
        return
    try:
        guard.check_url(rule.action.webhook.url)
    except AddressRefused as error:
        problem = {"field": "action.webhook.url", "reason": str(error)}
        raise InvalidRule([problem]) from None
