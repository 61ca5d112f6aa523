"""Compiles, checks and evaluates expressions in CEL. No other module of Penstock uses CEL.

Rules of automations and rules of the approvals policy have conditions. Steps of workflows have
expressions that give values. The module `value` compiles both with CEL, and
`evaluation` evaluates both within a budget. The module `template` fills texts with values from
data. The placeholders of rules are paths, not CEL; those of workflows are expressions.
"""

from penstock.expressions.errors import ExpressionError, MissingField, Position
from penstock.expressions.library.conversions import inserted_text
from penstock.expressions.library.values import MAX_STEPS, Budget, TooMuch
from penstock.expressions.patterns import is_found
from penstock.expressions.required import RequiredText
from penstock.expressions.template import EXPRESSION, Template
from penstock.expressions.value import (
    ELEMENT,
    Condition,
    Conditions,
    FieldRead,
    ReadPath,
    Scope,
    ValueExpression,
    ValueType,
    VariableType,
)

__all__ = [
    "ELEMENT",
    "EXPRESSION",
    "MAX_STEPS",
    "Budget",
    "Condition",
    "Conditions",
    "ExpressionError",
    "FieldRead",
    "MissingField",
    "Position",
    "ReadPath",
    "RequiredText",
    "Scope",
    "Template",
    "TooMuch",
    "ValueExpression",
    "ValueType",
    "VariableType",
    "inserted_text",
    "is_found",
]
