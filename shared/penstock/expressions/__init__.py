"""Compiles, checks and evaluates expressions in CEL. No other module of Penstock uses CEL.

Rules of automations and rules of the approvals policy have conditions in CEL. If a condition could
take much time or memory, the condition is refused when it is compiled; see `limits`. Steps of
workflows have expressions that give values. The module `value` compiles such expressions with CEL,
and `evaluation` evaluates them within a budget. The module `template` fills texts with values from
data. The placeholders of templates are paths, not CEL.
"""

from penstock.expressions.condition import (
    Bound,
    Condition,
    Conditions,
    VariableType,
    is_found,
)
from penstock.expressions.errors import ExpressionError, MissingField, Position
from penstock.expressions.library.budget import MAX_STEPS, Budget
from penstock.expressions.template import Template
from penstock.expressions.value import ReadPath, Scope, ValueExpression, ValueType

__all__ = [
    "MAX_STEPS",
    "Bound",
    "Budget",
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
