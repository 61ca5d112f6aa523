"""Checks a rule that a person wrote, and names each problem with its field. Pure."""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from penstock.expressions import ExpressionError
from penstock.validation import did_you_mean
from penstock_automations.rules.model import Rule, fields_of
from penstock_automations.rules.records import CONDITIONS

_UNDECLARED: Final = re.compile(r"undeclared reference to '([A-Za-z0-9_]+)[^']*'")

R = TypeVar("R", bound=Rule)


class InvalidRule(ValueError):
    """A rule has mistakes, which `problems` lists.

    Each problem has a `field` and a `reason`, and in a condition also `line` and `column`.
    """

    def __init__(self, problems: list[dict[str, Any]]) -> None:
        super().__init__("; ".join(map(_line, problems)))
        self.problems = problems


def read_rule(value: Any, model: type[R]) -> R:
    """Return the rule that a JSON or YAML value describes.

    Raises:
        InvalidRule: the value is no rule, or its condition cannot be compiled.
    """
    try:
        rule = model.model_validate(value)
    except ValidationError as error:
        raise InvalidRule(fields_of(error)) from None
    if rule.where is not None:
        try:
            CONDITIONS.compile(rule.where)
        except ExpressionError as error:
            problem: dict[str, Any] = {"field": "where", "reason": _explained(error.reason)}
            if error.position is not None:
                problem |= {"line": error.position.line, "column": error.position.column}
            raise InvalidRule([problem]) from None
    return rule


def _explained(reason: str) -> str:
    match = _UNDECLARED.fullmatch(reason)
    return reason if match is None else reason + did_you_mean(match[1], ["event"])


def _line(problem: dict[str, Any]) -> str:
    where = f" (line {problem['line']}, column {problem['column']})" if "line" in problem else ""
    return f"{problem['field']}{where}: {problem['reason']}"
