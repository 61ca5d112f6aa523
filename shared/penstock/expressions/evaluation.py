"""Evaluates the syntax tree of an expression that gives a value, within a budget. Pure.

The CEL runtime cannot be interrupted, and copies lists and data without a limit. For example,
`a.map(i, i)` takes two seconds for a list of 9,000 numbers. So the runtime only parses and checks
the expressions that may make values. This module evaluates the trees of these expressions, and
counts each step and each new text. Tests compare this module's results with the results of the
runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.expressions.errors import ExpressionError
from penstock.expressions.library.budget import Budget
from penstock.expressions.library.functions import FUNCTIONS
from penstock.expressions.library.kinds import kind_of
from penstock.expressions.library.operators import select
from penstock.expressions.syntax import Call, Constant, Listed, Loop, Mapped, Name, Node, Select


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation of a tree."""

    budget: Budget
    variables: Mapping[str, Any]

    def value(self, node: Node) -> Any:
        """Return the value of a node.

        Raises:
            ExpressionError: an operation fails.
            TooMuch: the evaluation needs more than the budget.
        """
        self.budget.take()
        return _BY_TYPE[type(node)](self, node)

    def _name(self, node: Name) -> Any:
        if node.name not in self.variables:
            raise ExpressionError(f"the variable {node.name} has no value")
        return self.variables[node.name]

    def _select(self, node: Select) -> Any:
        operand = self.value(node.operand)
        if not node.is_test:
            return select(self.budget, operand, node.field)
        if not isinstance(operand, dict):
            raise ExpressionError(f"{kind_of(operand)} has no field {node.field!r}")
        return node.field in operand

    def _call(self, node: Call) -> Any:
        if (lazy := _LAZY.get(node.function)) is not None:
            return lazy(self, node)
        arguments = [self.value(each) for each in node.arguments]
        return FUNCTIONS[node.function](self.budget, *arguments)

    def _listed(self, node: Listed) -> list[Any]:
        return [self.value(each) for each in node.elements]

    def _mapped(self, node: Mapped) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, each in node.entries:
            name = self.value(key)
            if not isinstance(name, str):
                raise ExpressionError(f"a key of a map must be a text, not {kind_of(name)}")
            if name in found:
                raise ExpressionError(f"the key {name[:100]!r} is in the map twice")
            found[name] = self.value(each)
        return found

    def _loop(self, node: Loop) -> Any:
        range_ = self.value(node.range)
        if not isinstance(range_, list | dict):
            raise ExpressionError(f"{node.macro} takes a list or an object, not {kind_of(range_)}")
        inner = (
            Evaluation(self.budget, {**self.variables, node.variable: each}) for each in range_
        )
        return _MACROS[node.macro](node, inner)

    def boolean(self, node: Node) -> bool:
        """Return the value of a condition."""
        found = self.value(node)
        if not isinstance(found, bool):
            raise ExpressionError(f"a condition must be true or false, not {kind_of(found)}")
        return found

    def _conditional(self, node: Call) -> Any:
        condition, yes, no = node.arguments
        return self.value(yes if self.boolean(condition) else no)

    def _and(self, node: Call) -> bool:
        return not _decided(((self, each) for each in node.arguments), False)

    def _or(self, node: Call) -> bool:
        return _decided(((self, each) for each in node.arguments), True)


def _decided(conditions: Iterable[tuple[Evaluation, Node]], wanted: bool) -> bool:
    """Return whether a condition gives `wanted`.

    As in CEL, an error in one condition is ignored if another condition gives `wanted`.
    """
    failure: ExpressionError | None = None
    for evaluation, condition in conditions:
        try:
            if evaluation.boolean(condition) is wanted:
                return True
        except ExpressionError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return False


_Inner = Iterable[Evaluation]


def _all(node: Loop, inner: _Inner) -> bool:
    return not _decided(((each, node.each[0]) for each in inner), False)


def _exists(node: Loop, inner: _Inner) -> bool:
    return _decided(((each, node.each[0]) for each in inner), True)


def _exists_one(node: Loop, inner: _Inner) -> bool:
    return sum(each.boolean(node.each[0]) for each in inner) == 1


def _map(node: Loop, inner: _Inner) -> list[Any]:
    *conditions, element = node.each
    return [each.value(element) for each in inner if all(each.boolean(one) for one in conditions)]


_MACROS: Final[Mapping[str, Callable[[Loop, _Inner], Any]]] = {
    "all": _all,
    "exists": _exists,
    "exists_one": _exists_one,
    "map": _map,
}
_BY_TYPE: Final[Mapping[type, Callable[[Evaluation, Any], Any]]] = {
    Constant: lambda _, node: node.value,
    Name: Evaluation._name,
    Select: Evaluation._select,
    Call: Evaluation._call,
    Listed: Evaluation._listed,
    Mapped: Evaluation._mapped,
    Loop: Evaluation._loop,
}
_LAZY: Final[Mapping[str, Callable[[Evaluation, Call], Any]]] = {
    "_&&_": Evaluation._and,
    "_||_": Evaluation._or,
    "_?_:_": Evaluation._conditional,
}
SUPPORTED: Final = frozenset(FUNCTIONS) | _LAZY.keys()
