"""Compiles and evaluates conditions, which are expressions that give true or false."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cel_expr_python import cel

from penstock.expressions.errors import ExpressionError, Position
from penstock.expressions.evaluation import boolean, program_of
from penstock.expressions.library.values import Budget
from penstock.expressions.required import has_other_text, required_texts
from penstock.expressions.syntax import Node
from penstock.expressions.value import OWN_FUNCTIONS, TYPES, VariableType, checked


class Conditions:
    """Compiles conditions that use variables of the given names and types.

    Without types, each variable is an object with text keys: `Conditions(["event"])` compiles
    conditions such as `event.data.tool == "delete_file"`.
    """

    def __init__(self, variables: Iterable[str] | Mapping[str, VariableType]) -> None:
        typed: Mapping[str, VariableType] = (
            variables if isinstance(variables, Mapping) else dict.fromkeys(variables, "object")
        )
        self._variables = typed
        self._env = cel.NewEnv(
            variables={name: TYPES[type_] for name, type_ in typed.items()},
            functions=OWN_FUNCTIONS,
        )

    def compile(self, text: str) -> Condition:
        """Return the compiled condition.

        Raises:
            ExpressionError: the text is no expression, is too long, uses an unknown variable or
                function, or gives no boolean.
        """
        parsed = checked(self._env, self._variables, text)
        if parsed.type != "BOOL":
            raise ExpressionError(_not_boolean(parsed.type), Position(1, 1))
        return Condition(text, parsed.root)


class Condition:
    """A compiled condition. `required` has the texts that fields of the data must have for the
    condition to hold."""

    def __init__(self, text: str, root: Node) -> None:
        self.text = text
        self.required = required_texts(root)
        self._program = program_of(root)

    def holds(self, data: Mapping[str, Any], budget: Budget | None = None) -> bool:
        """Return whether the condition holds for the data.

        `data` has the JSON value of each variable; the value of a time is a datetime. `budget` has
        the steps and characters that the evaluation may use. Default: a new budget.

        Raises:
            MissingField: the condition reads a field that the data does not have.
            ExpressionError: an operation fails.
            TooMuch: the evaluation needs more than the budget.
        """
        # Most conditions require a certain text, such as the name of a tool. If the data has
        # another text, no evaluation is needed.
        for path, text in self.required:
            if has_other_text(data, path, text):
                return False
        try:
            return boolean(self._program(budget or Budget(), data))
        except RecursionError:
            raise ExpressionError("the data is nested too deep") from None


def _not_boolean(found: str) -> str:
    if found == "DYN":
        return "the condition gives a value of unknown type; compare it, as in event.data.x == true"
    return f"the condition gives {found}, not true or false"
