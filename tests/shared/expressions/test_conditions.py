"""Conditions are checked when they are compiled, and evaluated within limits."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.expressions import (
    Bound,
    Condition,
    Conditions,
    ExpressionError,
    MissingField,
    Position,
)
from penstock.expressions.limits import MAX_DATA_BYTES, max_data_bytes
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


def holds(text: str, event: dict[str, Any] = EVENT, size_bytes: int = 500) -> bool:
    return CONDITIONS.compile(text).holds(CONDITIONS.bind({"event": event}, size_bytes))


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
    ],
)
def test_a_condition_holds_or_not(text: str, expected: bool) -> None:
    assert holds(text) is expected


@pytest.mark.parametrize(
    ("text", "reason", "position"),
    [
        ("", "Syntax error", Position(1, 1)),
        ("event.data.n > ", "Syntax error", Position(1, 16)),
        ("evnt.data == 1", "undeclared reference to 'evnt.data'", Position(1, 5)),
        ("true &&\n  nope(1)", "undeclared reference to 'nope'", Position(2, 7)),
        ('event.data.size() > "a"', "found no matching overload", Position(1, 19)),
        ('"yes"', "gives STRING, not true or false", Position(1, 1)),
        ("event.sequence", "unknown type; compare it", Position(1, 1)),
        ("event.data.a + 1 == 2", "+ is not allowed", Position(1, 14)),
        ("event.data.items.map(i, i.n) == [1]", "the macro map is not allowed", Position(1, 18)),
        ('{"a": 1}.a == 1', "map and message literals", Position(1, 1)),
        ("event.data.n in [event.data.m]", "only constants", Position(1, 18)),
        ("[[1]] == [[1]]", "only constants", Position(1, 2)),
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
        ("event.data.tool - 1 == 2", "No matching overloads"),
        ("event.data.tool.deeper == 2", "SELECT to non-message type"),
        ('timestamp(event.data.tool) > timestamp("2026-01-01T00:00:00Z")', "conversion failed"),
    ],
)
def test_an_operation_that_fails_is_an_error_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(ExpressionError, match=reason) as failed:
        holds(text)
    assert not isinstance(failed.value, MissingField)


def test_a_number_beyond_64_bits_is_an_error() -> None:
    with pytest.raises(ExpressionError, match="out of range"):
        holds("event.data.n == 2", {"data": {"n": 2**64}})


def nested(depth: int) -> str:
    names = "abcdefgh"[:depth]
    opening = "".join(f"event.data.all({name}, " for name in names)
    return opening + " && ".join(f"{name} > -1" for name in names) + ")" * depth


def test_nested_macros_are_limited_by_depth_and_by_the_size_of_the_data() -> None:
    with pytest.raises(ExpressionError, match="nested at most 3 deep"):
        CONDITIONS.compile(nested(4))
    event = {"data": list(range(10))}
    most = max_data_bytes(nested(3))
    assert 4096 < most <= MAX_DATA_BYTES[3]
    assert holds(nested(3), event, most)
    with pytest.raises(ExpressionError, match=f"{most + 1} bytes"):
        holds(nested(3), event, most + 1)


LIST = {"l": [0] * 300_000}
TEXTS = {"t": "a" * 450_000, "u": "a" * 225_000 + "b"}


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("event.l.all(a, event.l == event.l)", LIST),
        ("event.l.all(a, .event.l == . event.l)", LIST),
        ("event.l.all(a, !('x' in event.l))", LIST),
        ("event.l.all(a, event.l.all(b, b == a))", LIST),
        (" && ".join(["event.l == event.l"] * 80), LIST),
        (" && ".join(["!event.t.contains(event.u)"] * 20), TEXTS),
        ("!event.t.matches('(a|aa){1,500}(a|aa){1,500}b')", TEXTS),
        (r"!event.t.matches(r'((a|aa){1,30}){1,30}b')", TEXTS),
    ],
)
def test_no_condition_takes_long_on_the_largest_data_that_it_may_have(
    text: str, event: dict[str, Any]
) -> None:
    most = max_data_bytes(text)
    assert most < 1024 * 1024
    with pytest.raises(ExpressionError, match="evaluated on at most"):
        holds(text, event, most + 1)
    # A part of the data that has about this size; an element of the list has two bytes of JSON.
    smaller = {name: value[: most // 2] for name, value in event.items()}
    started = time.process_time()
    holds_or_fails(text, smaller)
    assert time.process_time() - started < 5


def holds_or_fails(text: str, event: dict[str, Any]) -> None:
    with contextlib.suppress(ExpressionError):
        holds(text, event)


@pytest.mark.parametrize(
    "text",
    [
        'event.data.items.all(i, i.tool == "refund" && i.args.amount < 50.0)',
        r"event.data.query.matches('(?i)^\\s*(drop|truncate)')",
        r"event.id.matches(r'^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$')",
        'event.data.tags.exists(t, t in ["a", "b"]) && event.data.tool.contains("file")',
        "event.in.all.x == 1",
    ],
)
def test_a_usual_condition_is_evaluated_on_large_data(text: str) -> None:
    assert max_data_bytes(text) >= 512 * 1024


@pytest.mark.parametrize(
    "text",
    [
        "event.t.matches(event.u)",
        "matches(event.t, event.u)",
        "matches(event.t, 'a')",
        "event.t.matches(('a'))",
        r"event.t.matches('a\x7b1,900\x7d')",
    ],
)
def test_a_pattern_that_is_not_known_before_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError, match="pattern") as refused:
        CONDITIONS.compile(text)
    assert refused.value.position is not None


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


def test_too_many_iterations_are_an_error_and_not_a_wait() -> None:
    started = time.process_time()
    with pytest.raises(ExpressionError, match="budget exceeded"):
        holds(nested(3), {"data": list(range(300))})
    assert time.process_time() - started < 5


def test_conditions_share_bound_data() -> None:
    bound = CONDITIONS.bind({"event": EVENT}, 500)
    texts = ["event.sequence == 7", "event.sequence == 8"]
    assert [CONDITIONS.compile(text).holds(bound) for text in texts] == [True, False]


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


@settings(max_examples=500, deadline=None)
@given(
    _CONDITION,
    st.fixed_dictionaries(
        {}, optional={"a": _FIELD, "b": _FIELD, "n": _FIELD, "o": st.dictionaries(_TEXT, _FIELD)}
    ),
)
def test_a_condition_that_requires_a_text_gives_what_the_runtime_gives(
    text: str, event: dict[str, Any]
) -> None:
    condition, bound = CONDITIONS.compile(f"{text} == true"), CONDITIONS.bind({"event": event}, 100)
    for each in (CONDITIONS.compile(f"{text} && true"), condition):
        whole = Condition(each.text, each._compiled, 100)
        assert _result(each, bound) == _result(whole, bound)


def _result(condition: Condition, bound: Bound) -> bool | str:
    try:
        return condition.holds(bound)
    except ExpressionError as error:
        return str(error)


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
    assert list(CONDITIONS.compile(text)._required) == required
