"""Compiles expressions that give a JSON value, and evaluates them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

import orjson
from cel_expr_python import cel

from penstock.expressions.condition import VariableType, compile_error, plain_reason
from penstock.expressions.errors import ExpressionError, MissingField, Position

# The JSON type that an expression must give.
ValueType = Literal["any", "boolean", "text", "object", "list"]

MAX_RESULT_BYTES: Final = 512 * 1024

_MISSING: Final = ("NOT_FOUND: ", "UNKNOWN: Index error")
_NAMES: Final[Mapping[ValueType, tuple[str, type]]] = {
    "boolean": ("BOOL", bool),
    "text": ("STRING", str),
    "object": ("MAP", dict),
    "list": ("LIST", list),
}
_TYPES: Final[Mapping[VariableType, Any]] = {
    "object": cel.Type.DYN,
    "time": cel.Type.TIMESTAMP,
}


class Scope:
    """Compiles expressions that see the variables of the given names and types."""

    def __init__(self, variables: Mapping[str, VariableType]) -> None:
        self._env = cel.NewEnv(variables={name: _TYPES[type_] for name, type_ in variables.items()})

    def compile(self, text: str, gives: ValueType = "any") -> ValueExpression:
        """Return the compiled expression.

        Raises:
            ExpressionError: the text is no expression, uses an unknown variable or function, or
                gives another type.
        """
        try:
            compiled = self._env.compile(text)
        except RuntimeError as error:
            raise compile_error(str(error)) from None
        found = compiled.return_type().name()
        if (
            gives != "any"
            and found not in ("DYN", _NAMES[gives][0])
            and not found.startswith(f"{_NAMES[gives][0]}<")
        ):
            raise ExpressionError(f"gives {found}, must be {_NAMES[gives][0]}", Position(1, 1))
        return ValueExpression(text, gives, self._env, compiled)


class ValueExpression:
    """A compiled expression that gives a JSON value."""

    def __init__(self, text: str, gives: ValueType, env: Any, compiled: Any) -> None:
        self.text = text
        self.gives = gives
        self._env = env
        self._compiled = compiled

    def evaluate(self, scope: Mapping[str, Any]) -> Any:
        """Return the expression's value: None, a boolean, a number, a text, a list or an object.

        `scope` has the JSON value of each variable; `now` is a text such as
        `2026-11-22T17:00:00Z`, or a datetime.

        Raises:
            MissingField: the expression reads a field that the data does not have.
            ExpressionError: an operation fails, or the result has another type than it must have
                or is too large.
        """
        data = dict(scope)
        if isinstance(data.get("now"), str):
            data["now"] = datetime.fromisoformat(data["now"])
        try:
            result = self._compiled.eval(self._env.Activation(data))
            is_error = result.type().name() == "ERROR"
            value = result.plain_value()
        except (RuntimeError, TypeError, ValueError, OverflowError) as error:
            raise ExpressionError(plain_reason(str(error))) from None
        if is_error:
            reason = str(value)
            kind = MissingField if reason.startswith(_MISSING) else ExpressionError
            raise kind(plain_reason(reason))
        value = _json(value)
        if self.gives != "any" and not isinstance(value, _NAMES[self.gives][1]):
            raise ExpressionError(f"gives a value that is not {_NAMES[self.gives][0]}")
        if len(orjson.dumps(value)) > MAX_RESULT_BYTES:
            raise ExpressionError(f"gives more than {MAX_RESULT_BYTES} bytes")
        return value


def _json(value: Any) -> Any:
    match value:
        case None | bool() | str() | int():
            return value
        case float() if math.isfinite(value):
            return value
        case datetime():
            moment = value.astimezone(UTC).isoformat(timespec="milliseconds")
            return moment.removesuffix("+00:00") + "Z"
        case list():
            return [_json(each) for each in value]
        case dict() if all(isinstance(name, str) for name in value):
            return {name: _json(each) for name, each in value.items()}
    raise ExpressionError("gives a value that JSON does not have")
