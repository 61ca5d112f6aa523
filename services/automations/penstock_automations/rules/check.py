"""Checks a rule that a person wrote: its form, and what its action needs. Pure.

A rule acts with the rights that its owner had when the rule was written. These rights are checked
when the rule is written, and again when the rule acts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from penstock.expressions import ExpressionError
from penstock.validation import did_you_mean, fields_at, reason_of
from penstock_automations.rules.actions import Action, ActionKind
from penstock_automations.rules.draft import Draft, Problem
from penstock_automations.rules.model import PATTERNS, Rule, problem_in
from penstock_automations.rules.records import Owner

_UNDECLARED: Final = re.compile(r"undeclared reference to '([A-Za-z0-9_]+)[^']*'")

_SCOPES: Final[Mapping[ActionKind, str]] = {"run": "start", "decide": "decide"}

R = TypeVar("R", bound=Rule)


class InvalidRule(ValueError):
    """A rule has mistakes, and `problems` has all of them."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(map(_line, problems)))
        self.problems = problems


def read_rule(value: Any, model: type[R], draft: Draft | None = None) -> R:
    """Return the rule that a JSON or YAML value describes. The draft gets the warnings. Raises
    InvalidRule with all mistakes."""
    try:
        return model.model_validate(value, context=draft or Draft())
    except ValidationError as error:
        raise InvalidRule(problems_of(error, model)) from None


def problems_of(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """Return the problems of a rule or a part of one."""
    found = error.errors(include_input=False, include_url=False)
    return [_problem(each, model) for each in found]


def _problem(each: Mapping[str, Any], model: type[BaseModel]) -> Problem:
    place = [step for step in each["loc"] if step != "[key]"]  # a name in an object with any names
    field, cause = ".".join(map(str, place)), each.get("ctx", {}).get("error")
    if isinstance(cause, ExpressionError):
        problem = problem_in(field, cause)
        return problem | {"reason": _explained(cause.reason)}
    reason = reason_of(each)
    if each["type"] == "string_pattern_mismatch":
        reason = PATTERNS.get(each["ctx"]["pattern"], reason)
    elif each["type"] == "extra_forbidden":
        *parents, name = each["loc"]
        reason += did_you_mean(str(name), fields_at(model, parents))
    return {"field": field, "reason": reason}


def _explained(reason: str) -> str:
    match = _UNDECLARED.fullmatch(reason)
    return reason if match is None else reason + did_you_mean(match[1], ["event"])


def _line(problem: Problem) -> str:
    where = f" (line {problem['line']}, column {problem['column']})" if "line" in problem else ""
    return f"{problem['field']}{where}: {problem['reason']}"


def missing_right(action: Action, owner: Owner) -> str | None:
    """Return why the owner may not have a rule with this action; None if the owner may have it."""
    scope = _SCOPES.get(action.kind)
    if scope is not None and not owner.has_scope(scope):
        return f"the action {action.kind} needs the scope {scope}, which the owner lacks"
    webhook = action.webhook
    if webhook is not None and webhook.links and not owner.has_scope("administer"):
        return "links let others decide: they need the scope administer, which the owner lacks"
    if action.run is not None and not owner.user_id:
        return "a run belongs to a user, so the rule needs an owner"
    return None
