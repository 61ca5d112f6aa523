"""Compiles and evaluates conditions, which are expressions that give true or false."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from cel_expr_python import cel

from penstock.expressions import limits
from penstock.expressions.errors import ExpressionError, MissingField, Position
from penstock.expressions.required import RequiredText, has_other_text, required_texts

_WHERE = re.compile(r"ERROR: <input>:(\d+):(-?\d+): ([^\n]*)")
_STATUS = re.compile(r"^[A-Z_]+: |\s*\[[A-Z_]+\]\s*$")
_MISSING: Final = ("NOT_FOUND: ", "UNKNOWN: Index error")

VariableType = Literal["object", "objects", "text", "texts", "integer", "time"]
_OBJECT: Final = cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
_TYPES: Final[Mapping[VariableType, Any]] = {
    "object": _OBJECT,
    "objects": cel.Type.List(_OBJECT),
    "text": cel.Type.STRING,
    "texts": cel.Type.List(cel.Type.STRING),
    "integer": cel.Type.INT,
    "time": cel.Type.TIMESTAMP,
}


@dataclass(frozen=True, slots=True)
class Bound:
    """The data on which conditions are evaluated. Several conditions may use the same data."""

    data: Mapping[str, Any]
    activation: Any
    size_bytes: int


class Conditions:
    """Compiles conditions that use variables of the given names and types.

    Without types, each variable is an object with text keys: `Conditions(["event"])` compiles
    conditions such as `event.data.tool == "delete_file"`.
    """

    def __init__(self, variables: Iterable[str] | Mapping[str, VariableType]) -> None:
        typed: Mapping[str, VariableType] = (
            variables if isinstance(variables, Mapping) else dict.fromkeys(variables, "object")
        )
        self._env = cel.NewEnv(variables={name: _TYPES[type_] for name, type_ in typed.items()})

    def compile(self, text: str) -> Condition:
        """Return the compiled condition.

        Raises:
            ExpressionError: the text is no expression, uses an unknown variable or function, may
                not be used in a condition, or gives no boolean.
        """
        max_bytes = limits.max_data_bytes(text)
        try:
            compiled = self._env.compile(text)
        except RuntimeError as error:
            raise compile_error(str(error)) from None
        found = compiled.return_type()
        if found != cel.Type.BOOL:
            raise ExpressionError(_not_boolean(found.name()), Position(1, 1))
        return Condition(text, compiled, max_bytes, required_texts(compiled.serialize(), text))

    def bind(self, data: Mapping[str, Any], size_bytes: int) -> Bound:
        """Return data on which conditions can be evaluated.

        `data` has the value of each variable. `size_bytes` is the size of all values as JSON.

        Raises:
            ExpressionError: CEL cannot represent a value, such as an integer of more than 64 bits.
        """
        try:
            return Bound(data, self._env.Activation(data), size_bytes)
        except (RuntimeError, TypeError, ValueError, OverflowError) as error:
            raise ExpressionError(plain_reason(str(error))) from None


class Condition:
    """A compiled condition."""

    def __init__(
        self, text: str, compiled: Any, max_data_bytes: int, required: Sequence[RequiredText] = ()
    ) -> None:
        self.text = text
        self._compiled = compiled
        self._max_data_bytes = max_data_bytes
        self._required = required

    def holds(self, bound: Bound) -> bool:
        """Return whether the condition holds for the data.

        Raises:
            MissingField: the condition reads a field that the data does not have.
            ExpressionError: the data is too large for this condition, or an operation fails.
        """
        if bound.size_bytes > self._max_data_bytes:
            raise ExpressionError(
                f"the data has {bound.size_bytes} bytes; this condition is evaluated on at most "
                f"{self._max_data_bytes}, since it could take long on more"
            )
        # Most conditions require a certain text, such as the name of a tool. This check takes a
        # fifth of the time of an evaluation. If the data has another text, no evaluation is needed.
        for path, text in self._required:
            if has_other_text(bound.data, path, text):
                return False
        try:
            result = self._compiled.eval(bound.activation)
            value = result.value()
        except RuntimeError as error:
            raise ExpressionError(plain_reason(str(error))) from None
        if value is True or value is False:
            return bool(value)
        reason = str(value)
        kind = MissingField if reason.startswith(_MISSING) else ExpressionError
        raise kind(plain_reason(reason))


def is_found(pattern: str, text: str) -> bool | None:
    """Return whether a text has a part that a pattern of RE2 matches.

    The result is None if RE2 does not know the pattern, or if the search would take long. RE2 takes
    time proportional to the text; Python's own regular expressions can take exponential time.
    """
    if not limits.is_quick(pattern, text):
        return None
    try:
        found = _FOUND.eval(_TEXTS.Activation({"pattern": pattern, "text": text})).value()
    except (RuntimeError, ValueError):
        return None
    return found if isinstance(found, bool) else None


_TEXTS: Final = cel.NewEnv(variables={"pattern": cel.Type.STRING, "text": cel.Type.STRING})
_FOUND: Final = _TEXTS.compile("text.matches(pattern)")


def compile_error(text: str) -> ExpressionError:
    """Return the error that a message of the compiler describes, with the error's position."""
    if "recursion" in text:
        return ExpressionError("it is nested too deep, or has too many operators in a row (32)")
    found = _WHERE.search(text)
    if found is None:
        return ExpressionError(plain_reason(text))
    line, column = int(found[1]), max(int(found[2]), 1)
    return ExpressionError(found[3].removesuffix(" (in container '')"), Position(line, column))


def _not_boolean(found: str) -> str:
    if found == "DYN":
        return "the condition gives a value of unknown type; compare it, as in event.data.x == true"
    return f"the condition gives {found}, not true or false"


def plain_reason(text: str) -> str:
    """Return a message of the runtime without the status at its beginning, such as `NOT_FOUND:
    `."""
    return _STATUS.sub("", _STATUS.sub("", text)).strip()
