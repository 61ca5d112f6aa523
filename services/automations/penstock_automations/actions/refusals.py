"""What the refusal of a start or of a decision means for a delivery. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from penstock.expressions import ExpressionError
from penstock.web.problems import Problem
from penstock_automations.actions.carrier import Verdict

# For each HTTP status of a refusal: whether a later attempt may succeed, and the error's code.
Codes = Mapping[int, tuple[Literal["failed", "final"], str]]


def refused(problem: Problem, codes: Codes) -> Verdict:
    """Return the meaning of a refusal. A status that is not in the table may pass later."""
    outcome, code = codes.get(problem.status, ("failed", f"refused_{problem.status}"))
    return Verdict(outcome, code, problem.detail)


def unfilled(error: ExpressionError) -> Verdict:
    """Return the meaning of a template that the event does not fill, now or later."""
    return Verdict("final", "template", f"a template of the rule cannot be filled: {error}")
