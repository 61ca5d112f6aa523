"""Compiles, checks and evaluates expressions in CEL. No other module of Penstock uses CEL.

Rules of automations and of the approvals policy have conditions in CEL. A condition is refused when
it is compiled if it could take much time or memory; see `limits`. The module `template` fills texts
with values from data; its placeholders are paths, not CEL. Steps of workflows have expressions that
give values; `value` compiles these with CEL, and `evaluation` evaluates them within a budget.
"""

from penstock.expressions.condition import (
    Bound,
    Condition,
    Conditions,
    VariableType,
    is_found,
)
from penstock.expressions.errors import ExpressionError, MissingField, Position
from penstock.expressions.template import Template
from penstock.expressions.value import ReadPath, Scope, ValueExpression, ValueType

__all__ = [
    "Bound",
    "Condition",
    "Conditions",
    "ExpressionError",
    "MissingField",
    "Position",
    "ReadPath",
    "Scope",
    "Template",
    "ValueExpression",
    "ValueType",
    "VariableType",
    "is_found",
]
