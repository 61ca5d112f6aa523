"""Decides what a refused start or decision means for a delivery. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from penstock.expressions import ExpressionError
from penstock.web.problems import Problem
from penstock_automations.actions.executor import Verdict

# Maps the HTTP status of a refusal to the outcome and the error's code. The outcome is "failed" if
# a later attempt may succeed, else "final".
Codes = Mapping[int, tuple[Literal["failed", "final"], str]]


def refused(problem: Problem, codes: Codes) -> Verdict:
    """Return the result for a refusal. The outcome for an unknown status is "failed".

    A refusal that names a code of its own has this code.
    """
    outcome, code = codes.get(problem.status, ("failed", f"refused_{problem.status}"))
    return Verdict(outcome, problem.more.get("code", code), problem.detail)


def unfilled(error: ExpressionError) -> Verdict:
    """Return the result for a template that this event can never fill."""
    return Verdict("final", "template", f"a template of the rule cannot be filled: {error}")
