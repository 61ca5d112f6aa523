"""Reads the document of budgets, and says which budgets apply to a run. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from yaml.nodes import Node

from penstock.budgets.model import Budget, BudgetsDocument
from penstock.documents.reading import Found, checked, digest_of, value_of
from penstock.documents.store import Source
from penstock.expressions import Budget as Steps
from penstock.expressions import Condition, Conditions, ExpressionError, VariableType

VARIABLES: Final[Mapping[str, VariableType]] = {
    "agent": "text",
    "user": "text",
    "tenant": "text",
    "roles": "texts",
    "session_id": "text",
    "depth": "integer",
    "now": "time",
}
CONDITIONS: Final = Conditions(VARIABLES)
_STEPS: Final = 5_000  # the most steps of one condition: about a millisecond


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The facts of a start that budgets read."""

    run_id: str
    agent: str
    user: str
    session_id: str
    tenant: str = ""  # empty without one
    roles: Sequence[str] = ()
    depth: int = 0  # how many automation rules led to the run


@dataclass(frozen=True, slots=True)
class Applying:
    """Whether and why a budget applies to a run. A budget whose condition fails applies."""

    budget: Budget
    applies: bool
    reason: str
    is_error: bool = False


class Budgets:
    """The budgets in force. The constructor raises ExpressionError for the first wrong
    condition."""

    def __init__(self, document: BudgetsDocument, source: Source = "kv") -> None:
        self.document = document
        self.source: Source = source
        self.digest = digest_of(document)
        self.by_id = {budget.id: budget for budget in document.budgets}
        self._conditions: dict[str, Condition] = {
            budget.id: CONDITIONS.compile(budget.when)
            for budget in document.budgets
            if budget.when is not None
        }

    @property
    def version(self) -> int:
        return self.document.version

    def applying(self, facts: RunFacts, now: datetime) -> list[Applying]:
        """Return for each budget whether it applies to the run."""
        return [self._applying(budget, facts, now) for budget in self.document.budgets]

    def _applying(self, budget: Budget, facts: RunFacts, now: datetime) -> Applying:
        if (misfit := budget.match.misfit(facts)) is not None:
            return Applying(budget, False, misfit)
        condition = self._conditions.get(budget.id)
        if condition is None:
            return Applying(budget, True, "it matches, and has no condition")
        data: dict[str, Any] = {
            "agent": facts.agent,
            "user": facts.user,
            "tenant": facts.tenant,
            "roles": list(facts.roles),
            "session_id": facts.session_id,
            "depth": facts.depth,
            "now": now,
        }
        try:
            holds = condition.holds(data, Steps(_STEPS))
        except Exception as error:
            reason = f"its condition has an error, so the budget applies: {error}"
            return Applying(budget, True, reason, is_error=True)
        return Applying(budget, holds, f"its condition is {'true' if holds else 'false'}")


NONE: Final = Budgets(BudgetsDocument.model_construct(version=0, budgets=[]), "builtin")


def parse(text: str) -> Budgets:
    """Return the budgets that a text in YAML (or JSON) describes. Raises InvalidDocument."""
    value, root = value_of(text)
    return from_value(value, "file", root)


def from_value(value: Any, source: Source, root: Node | None = None) -> Budgets:
    return Budgets(checked(BudgetsDocument, value, _wrong_conditions, root), source)


def _wrong_conditions(document: BudgetsDocument) -> Iterator[Found]:
    for number, budget in enumerate(document.budgets):
        if budget.when is not None:
            try:
                CONDITIONS.compile(budget.when)
            except ExpressionError as error:
                yield ("budgets", number, "when"), str(error)
