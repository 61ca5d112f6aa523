"""The input of a workflow is checked against its schema, in bounded time."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from penstock.json_schema import (
    MAX_SCHEMAS,
    TooMuchWork,
    misfits,
    schema_mistakes,
)

TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "value", "told"),
    [
        ({"type": "object"}, [], "input: must be object, not a list"),
        ({"required": ["diff"]}, {}, "input.diff: is missing"),
        ({"properties": {"a": TEXT}}, {"a": 1}, "input.a: must be string, not 1"),
        ({"properties": {"a": {"type": "integer"}}}, {"a": True}, "must be integer, not true"),
        (
            {"properties": {"diff": TEXT}, "additionalProperties": False},
            {"dif": "x"},
            'input.dif: there is no such field: did you mean "diff"?',
        ),
        (
            {"properties": {"files": {"items": {"properties": {"name": TEXT}}}}},
            {"files": [{"name": "x"}, {"name": None}]},
            "input.files[1].name: must be string, not null",
        ),
        ({"properties": {"a": {"enum": ["x", 1]}}}, {"a": "y"}, 'must be one of "x", 1; not "y"'),
        ({"properties": {"a": {"enum": [1]}}}, {"a": True}, "must be one of 1; not true"),
        ({"properties": {"a": {"maxLength": 2}}}, {"a": "abc"}, "at most 2 characters, not 3"),
        ({"properties": {"a": {"minItems": 1}}}, {"a": []}, "at least 1 elements, not 0"),
        ({"properties": {"a": {"minimum": 2}}}, {"a": 1}, "must be at least 2, not 1"),
        ({"properties": {"a": {"pattern": "^x"}}}, {"a": "y"}, "must match the pattern ^x"),
        ({"properties": {"a": {"anyOf": [TEXT]}}}, {"a": 1}, "must fit one of the 1 of anyOf"),
        ({"properties": {"a": {"oneOf": [{}, {}]}}}, {"a": 1}, "but fits 2"),
    ],
)
def test_a_misfit_is_named_with_its_path(schema: Any, value: Any, told: str) -> None:
    assert schema_mistakes(schema) == []
    [found] = misfits(schema, value)
    assert told in str(found)


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (True, "a schema is an object"),
        ({"propertys": {}}, "'propertys' is not supported: did you mean \"properties\"?"),
        ({"$ref": "http://example.com/schema"}, "'$ref' is not supported"),
        ({"type": "text"}, "must be one of object"),
        ({"properties": []}, "must be an object whose values are schemas"),
        ({"properties": {"a": 1}}, "a schema is an object"),
        ({"required": "a"}, "must be a list of names"),
        ({"enum": [{}]}, "must be a list of texts"),
        ({"pattern": "(?=x)"}, "must be a regular expression of RE2"),
        ({"minLength": True}, "must be a whole number"),
        ({"anyOf": {}}, "must be a list of schemas"),
    ],
)
def test_a_mistake_of_a_schema_is_named(schema: Any, told: str) -> None:
    [found] = schema_mistakes(schema)
    assert told in found.reason


def test_a_deep_and_a_wide_schema_are_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(20_000):
        deep = {"items": deep}
    assert "deep" in schema_mistakes(deep)[0].reason
    wide: dict[str, Any] = {"properties": {str(n): {} for n in range(MAX_SCHEMAS)}}
    assert "at most 500 parts" in schema_mistakes(wide)[0].reason


def test_a_check_that_would_take_long_is_given_up() -> None:
    slow_pattern = {"items": {"type": "string", "pattern": "(a|aa){1,100}$"}}
    many_schemas = {"items": {"allOf": [{"pattern": "x"} for _ in range(400)]}}
    for schema, value in (
        (slow_pattern, ["a" * 10_000] * 1000),
        (many_schemas, [1] * 100_000),
        ({"items": {"enum": list(range(10_000))}}, [9999] * 50_000),
    ):
        assert schema_mistakes(schema) == []
        begin = time.process_time()
        with pytest.raises(TooMuchWork):
            misfits(schema, value)
        assert time.process_time() - begin < 3


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "ab"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=8,
)
schemas = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "array", "string", "number", "integer", "null"])
            | st.just(["boolean", "null"]),
            "enum": st.lists(st.sampled_from(["a", 1, True, None]), min_size=1, max_size=3),
            "minimum": st.integers(-2, 2),
            "maxLength": st.integers(0, 2),
            "minItems": st.integers(0, 2),
            "required": st.lists(st.sampled_from("ab"), unique=True),
            "pattern": st.sampled_from(["^a", "b$"]),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("ab"), inner),
            "additionalProperties": inner | st.booleans(),
            "items": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=3),
            "oneOf": st.lists(inner, min_size=1, max_size=3),
            "allOf": st.lists(inner, min_size=1, max_size=3),
            "if": inner,
            "then": inner | st.booleans(),
            "else": inner | st.booleans(),
            "propertyNames": inner,
            "$ref": st.sampled_from(["#/definitions/a", "#/definitions/b"]),
        },
    ),
    max_leaves=6,
)


@given(schemas, values)
@settings(max_examples=100, deadline=None)
def test_values_fit_as_the_specification_says(schema: Any, value: Any) -> None:
    defined = {"a": {"type": ["string", "null", "object"]}, "b": {"items": {"maxLength": 1}}}
    schema = schema | {"definitions": defined}
    assert schema_mistakes(schema, is_foreign=True) == []
    assert (misfits(schema, value) == []) == Draft202012Validator(schema).is_valid(value)
