"""The conformance files of CEL hold for our evaluator, and what does not is named here.

The files are those of https://github.com/google/cel-spec, in tests/simple/testdata. They are not
part of this repository: `CEL_SPEC=<folder of a clone>` names them.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.expressions import ExpressionError, Scope

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif("CEL_SPEC" not in os.environ, reason="CEL_SPEC names no clone of cel-spec"),
]

FILES: Final = (
    *("basic", "comparisons", "conversions", "fields", "fp_math", "integer_math", "lists"),
    *("logic", "macros", "math_ext", "parse", "plumbing", "string", "string_ext", "timestamps"),
)
# What our expressions do not have: they work on JSON. The compiler says so for each.
ABSENT: Final = re.compile(
    r"unsigned numbers and bytes|messages are not allowed|is no variable|is not supported|"
    r"undeclared reference|found no matching overload|this macro is not allowed|"
    r"nested too deep|Syntax error|is no JSON"
)
# Where we differ. Python's comparison of an integer with a double is exact, and that of the
# specification loses digits; our times have microseconds, and those of CEL nanoseconds.
DIFFERENT: Final = (
    "not_lt_dyn_int_big_lossy_double",
    "not_gt_dyn_big_double_int",
    "lte_dyn_big_double_int",
    "gte_dyn_int_big_lossy_double",
    "toString_timestamp_nanos",
    "add_duration_nanos_over",
    "add_duration_nanos_under",
)
_TOKEN: Final = re.compile(
    r"\s*(?:#[^\n]*\s*)*(\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[\w.+/-]+|[{}\[\]:,;<>])"
)
_ESCAPE: Final = re.compile(
    r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[xX][0-9a-fA-F]{1,2}|[0-7]{1,3}|.)", re.DOTALL
)
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
Message = list[tuple[str, Any]]


def message(text: str) -> Message:
    """Read a message in protobuf's text format; texts stay as they are written."""
    tokens = iter([*_TOKEN.findall(re.sub(r"(?m)^\s*#.*$", "", text)), "}"])
    return _message(tokens, next(tokens))


def _message(tokens: Iterator[str], token: str) -> Message:
    found: Message = []
    while token not in ("}", ">"):
        if token in (",", ";"):
            token = next(tokens)
            continue
        name = token
        if name == "[":
            name = next(tokens)
            assert next(tokens) == "]"
        token = next(tokens)
        token = next(tokens) if token == ":" else token
        if token in ("{", "<"):
            found.append((name, _message(tokens, next(tokens))))
            token = next(tokens)
        else:
            value = token
            token = next(tokens)
            while value[0] in "\"'" and token[0] in "\"'":
                value, token = value[:-1] + token[1:], next(tokens)
            found.append((name, value))
    return found


def texts(value: str) -> str:
    """Return the text of a literal. Octal and hexadecimal escapes are bytes of UTF-8."""

    def part(found: re.Match[str]) -> bytes:
        sign, digits = found[1][0], found[1][1:]
        if sign in "uU":
            return chr(int(digits, 16)).encode()
        if sign in "xX":
            return bytes([int(digits, 16)])
        if sign.isdigit():
            return bytes([int(found[1], 8)])
        return _ESCAPED.get(sign, sign).encode()

    made, at = b"", 1
    for found in _ESCAPE.finditer(value, 1, len(value) - 1):
        made += value[at : found.start()].encode() + part(found)
        at = found.end()
    return (made + value[at:-1].encode()).decode()


_VALUES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "null_value": lambda value: None,
    "bool_value": lambda value: value == "true",
    "int64_value": lambda value: int(value, 0),
    "double_value": float,
    "string_value": texts,
    "list_value": lambda value: [plain(each) for name, each in value if name == "values"],
    "map_value": lambda value: {
        plain(dict(each)["key"]): plain(dict(each)["value"])
        for name, each in value
        if name == "entries"
    },
}


def plain(found: Message) -> Any:
    """Return the JSON value of a `cel.expr.Value`. Raises KeyError if there is none."""
    ((kind, value),) = found
    return _VALUES[kind](value)


def cases() -> Iterator[Any]:
    folder = Path(os.environ.get("CEL_SPEC", "")) / "tests/simple/testdata"
    for file in FILES if "CEL_SPEC" in os.environ else ():
        for kind, section in message((folder / f"{file}.textproto").read_text()):
            if kind == "section":
                of_section = [each for name, each in section if name == "test"]
                title = dict(section)["name"].strip('"')
                for test in of_section:
                    name = dict(test)["name"].strip('"')
                    marks = [pytest.mark.xfail] if name in DIFFERENT else []
                    yield pytest.param(test, id=f"{file}/{title}/{name}", marks=marks)


@pytest.mark.parametrize("case", list(cases()))
def test_a_case_of_the_specification_gives_its_value(case: Message) -> None:
    fields = dict(case)
    bindings = [dict(each) for name, each in case if name == "bindings"]
    try:
        data = {texts(each["key"]): plain(dict(each["value"])["value"]) for each in bindings}
        expected = plain(fields["value"]) if "value" in fields else True
    except KeyError as kind:
        pytest.skip(f"no JSON: {kind}")
    refused = ""
    found: Any = None
    try:
        compiled = Scope(dict.fromkeys(data, "any")).compile(f"[{texts(fields['expr'])}]")
        (found,) = compiled.evaluate(data)
    except ExpressionError as error:
        refused = error.reason
    if "eval_error" in fields:
        assert refused
    elif absent := ABSENT.search(refused):
        pytest.skip(absent[0])
    else:
        assert not refused
        same = found == expected and type(found) is type(expected)
        assert same or (isinstance(expected, float) and math.isclose(found, expected))
