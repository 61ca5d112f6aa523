"""Conditions are checked when they are compiled, and evaluated within limits."""

from __future__ import annotations

import time
from typing import Any

import pytest
from cel_expr_python import cel
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.expressions import (
    Budget,
    Condition,
    Conditions,
    ExpressionError,
    MissingField,
    Position,
    TooMuch,
)
from penstock.expressions.patterns import size_of

CONDITIONS = Conditions(["event"])
EVENT: dict[str, Any] = {
    "type": "approval.requested",
    "sequence": 7,
    "timestamp": "2026-11-22T10:00:00.123Z",
    "data": {
        "tool": "delete_file",
        "count": 3,
        "ratio": 2.5,
        "nothing": None,
        "flag": True,
        "items": [{"tool": "read_file", "n": 1}, {"tool": "delete_file", "n": 2}],
        "tags": ["a", "b"],
    },
}


def holds(text: str, event: dict[str, Any] = EVENT) -> bool:
    return CONDITIONS.compile(text).holds({"event": event})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", True),
        ('event.data.tool == "delete_file"', True),
        ('event["data"]["tool"] == "delete_file"', True),
        ("event.data.items[1].n == 2", True),
        ('event.data.tool in ["delete_file", "move_file"]', True),
        ("event.data.count in [1, 2, -3]", False),
        ("event.data.count > 2 && event.data.ratio < 3.0", True),
        ("event.data.count == 3.0", True),
        ("event.data.flag == true || event.data.nope == 1", True),
        ("event.data.nothing == null", True),
        ("has(event.data.nope)", False),
        ("!has(event.data.tool)", False),
        ('event.data.items.exists(i, i.tool == "delete_file")', True),
        ("event.data.items.all(i, i.n > 1)", False),
        ("event.data.items.exists_one(i, i.n > 1)", True),
        ("event.data.items.filter(i, i.n > 0).size() == 2", True),
        ('event.data.tool.startsWith("delete_") && event.data.tool.contains("file")', True),
        (r'event.data.tool.matches(r"^\w+_file$")', True),
        ('timestamp(event.timestamp) > timestamp("2026-01-01T00:00:00Z")', True),
        ('"+" == event.data.tool', False),
        ("event.data.count - 1 == 2 // a comment with + and {", True),
        ('event.data.tags.exists(t, t == "b") ? true : false', True),
        ("event.data.count + 1 == 4", True),
        ("event.data.items.map(i, i.n) == [1, 2]", True),
        ('{"a": event.data.count}.a == 3', True),
        ("event.data.count in [event.sequence, event.data.count]", True),
        ("event.data.tool.matches(event.data.tags[0])", False),
        ("event.data.tags.join() == 'ab'", True),
    ],
)
def test_a_condition_holds_or_not(text: str, expected: bool) -> None:
    assert holds(text) is expected


@pytest.mark.parametrize(
    ("text", "reason", "position"),
    [
        ("", "Syntax error", Position(1, 1)),
        ("event.data.n > ", "Syntax error", Position(1, 16)),
        ("evnt.data == 1", "undeclared reference to 'evnt.data'", Position(1, 1)),
        ("true && evnt.data.x", "undeclared reference to 'evnt.data.x'", Position(1, 9)),
        ("true && has(evnt.data)", "undeclared reference to 'evnt.data'", Position(1, 12)),
        ("true &&\n  nope(1)", "undeclared reference to 'nope'", Position(2, 7)),
        ('event.data.size() > "a"', "found no matching overload", Position(1, 19)),
        ('"yes"', "gives STRING, not true or false", Position(1, 1)),
        ("event.sequence", "unknown type; compare it", Position(1, 1)),
        ("type(event.a) == type(1)", "type is not supported", Position(1, 22)),
        ("event.data.n == 1u", "unsigned numbers", Position(1, 17)),
        ("x" * 2001, "2001 characters; at most 2000", None),
        ("(" * 300 + "true" + ")" * 300, "nested too deep", None),
    ],
)
def test_a_condition_that_cannot_be_used_is_refused_with_position_and_reason(
    text: str, reason: str, position: Position | None
) -> None:
    with pytest.raises(ExpressionError) as refused:
        CONDITIONS.compile(text)
    assert reason in refused.value.reason
    assert refused.value.position == position
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "event.data.nope == 1",
        "event.data.nope.deeper == 1",
        'event["data"]["nope"] == 1',
        "event.data.items[5].n == 1",
    ],
)
def test_a_missing_field_is_told_apart_from_other_errors(text: str) -> None:
    with pytest.raises(MissingField):
        holds(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1 / (event.data.count - 3) == 1", "divide by zero"),
        ("event.data.tool - 1 == 2", "does not take"),
        ("event.data.tool.deeper == 2", "a text has no field"),
        ('timestamp(event.data.tool) > timestamp("2026-01-01T00:00:00Z")', "cannot convert"),
    ],
)
def test_an_operation_that_fails_is_an_error_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(ExpressionError, match=reason) as failed:
        holds(text)
    assert not isinstance(failed.value, MissingField)


def test_a_number_beyond_64_bits_is_compared() -> None:
    assert not holds("event.data.n == 2", {"data": {"n": 2**64}})
    assert holds("event.data.n > 2", {"data": {"n": 2**64}})


def nested(depth: int) -> str:
    names = "abcdefgh"[:depth]
    opening = "".join(f"event.data.all({name}, " for name in names)
    return opening + " && ".join(f"{name} > -1" for name in names) + ")" * depth


LIST = {"l": [0] * 300_000}
TEXTS = {"t": "a" * 450_000, "u": "a" * 225_000 + "b"}


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("event.l.all(a, event.l == event.l)", LIST),
        ("event.l.all(a, !('x' in event.l))", LIST),
        ("event.l.all(a, event.l.all(b, b == a))", LIST),
        (" && ".join(["event.l == event.l"] * 80), LIST),
        ("json(event) == ''", LIST),
        ("!event.t.matches('(a|aa){1,500}(a|aa){1,500}b')", TEXTS),
        (r"!event.t.matches(r'((a|aa){1,30}){1,30}b')", TEXTS),
        (nested(4), {"data": list(range(300))}),
        (" == ".join(['["ab"]' + ".map(a, [a, a])" * 23] * 2), {}),
    ],
)
def test_a_hostile_condition_is_given_up_soon(text: str, event: dict[str, Any]) -> None:
    condition = CONDITIONS.compile(text)
    for steps, most_s in ((5_000, 0.1), (200_000, 5)):
        started = time.process_time()
        with pytest.raises(TooMuch):
            condition.holds({"event": event}, Budget(steps))
        assert time.process_time() - started < most_s


@pytest.mark.parametrize(
    "text",
    [
        'event.data.items.all(i, i.tool == "refund" && i.args.amount < 50.0)',
        r"event.data.query.matches('(?i)^\\s*(drop|truncate)')",
        'event.data.query.contains("file") || event.data.items.size() > 3',
    ],
)
def test_no_data_is_too_large_for_a_usual_condition(text: str) -> None:
    item = {"tool": "refund", "args": {"amount": 20.0}, "note": "x" * 1000}
    holds(text, {"data": {"items": [item] * 3000, "query": "x" * 200_000}})


@pytest.mark.parametrize(
    ("pattern", "least"),
    [
        ("abc", 3),
        ("(a|aa){1,500}", 2000),
        ("((a|aa){1,30}){1,30}b", 4000),
        ("[a-z]{100}", 500),
        ("a{9,}", 9),
        ("[]{5}]{9}", 45),
        ("(a{9}", 9),
        (r"\pL{100}", 5000),
    ],
)
def test_a_pattern_is_as_large_as_with_its_repetitions_written_out(
    pattern: str, least: int
) -> None:
    assert least <= size_of(pattern) <= 4 * least


_TEXT = st.sampled_from(["", "a", "b"])
_FIELD = st.one_of(_TEXT, st.none(), st.booleans(), st.integers(-1, 1), st.just({"x": "a"}))
_COMPARISON = st.sampled_from(
    [
        *('event.a == "a"', '"b" == event.b', 'event.o.x == "a"', 'event["a"] == "a"'),
        *('event.a != "a"', "event.a == event.b", "event.n > 0", 'event.o.x.y == "a"'),
        *("has(event.a)", 'dyn(event.b) == "b"', "event.b", '["a"].exists(a, a == event.a)'),
    ]
)
_CONDITION = st.recursive(
    _COMPARISON,
    lambda inner: st.one_of(
        st.builds("({} && {})".format, inner, inner),
        st.builds("({} || {})".format, inner, inner),
        st.builds("!({})".format, inner),
    ),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None)
@given(
    _CONDITION,
    st.fixed_dictionaries(
        {}, optional={"a": _FIELD, "b": _FIELD, "n": _FIELD, "o": st.dictionaries(_TEXT, _FIELD)}
    ),
)
def test_a_condition_that_requires_a_text_gives_what_the_runtime_gives(
    text: str, event: dict[str, Any]
) -> None:
    for each in (f"{text} && true", f"{text} == true"):
        condition, whole = CONDITIONS.compile(each), CONDITIONS.compile(each)
        whole.required = ()
        assert _result(condition, event) == _result(whole, event) == _in_runtime(each, event)


def _result(condition: Condition, event: dict[str, Any]) -> bool | None:
    try:
        return condition.holds({"event": event})
    except ExpressionError:
        return None


def _in_runtime(text: str, event: dict[str, Any]) -> bool | None:
    found = _RUNTIME.compile(text).eval(_RUNTIME.Activation({"event": event})).value()
    return found if isinstance(found, bool) else None


_RUNTIME = cel.NewEnv(variables={"event": cel.Type.Map(cel.Type.STRING, cel.Type.DYN)})


@pytest.mark.parametrize(
    ("text", "required"),
    [
        ('event.a == "x"', [(("event", "a"), "x")]),
        ('"x" == event.a.b && event.n > 1', [(("event", "a", "b"), "x")]),
        (
            'event.a == "x" && (event.b == "y" && event.c)',
            [(("event", "a"), "x"), (("event", "b"), "y")],
        ),
        ('event.a == "x" || event.b == "y"', []),
        ('!(event.a == "x")', []),
        ('event.l.exists(i, i.tool == "x")', []),
        ('event["a"] == "x"', []),
    ],
)
def test_the_texts_that_a_condition_requires_are_found(text: str, required: list[Any]) -> None:
    assert list(CONDITIONS.compile(text).required) == required
