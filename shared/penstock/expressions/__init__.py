"""Compiles, checks and evaluates expressions in CEL, the only module of Penstock that uses CEL.

Rules of automations and of the approvals policy have conditions in CEL. A condition is refused when
it is compiled if it could take much time or memory; see `limits`.
Texts that are made of data are templates with placeholders (`template`), which have no CEL.
"""

from penstock.expressions.condition import Bound, Condition, Conditions, VariableType
from penstock.expressions.errors import ExpressionError, MissingField, Position
from penstock.expressions.template import Template

__all__ = [
    "Bound",
    "Condition",
    "Conditions",
    "ExpressionError",
    "MissingField",
    "Position",
    "Template",
    "VariableType",
]
