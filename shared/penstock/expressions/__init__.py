"""Compiles, checks and evaluates expressions in CEL, the only module of Penstock that uses CEL.

Rules of automations and of the approvals policy have conditions in CEL. A condition is refused when
it is compiled if it could take much time or memory; see `limits`.
"""

from penstock.expressions.condition import Bound, Condition, Conditions, VariableType
from penstock.expressions.errors import ExpressionError, MissingField, Position

__all__ = [
    "Bound",
    "Condition",
    "Conditions",
    "ExpressionError",
    "MissingField",
    "Position",
    "VariableType",
]
