"""JSON Patch is applied completely or not at all, and its cost has a limit."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.patch import (
    MAX_COPIED,
    MAX_LEVELS,
    MAX_SIZE,
    Document,
    DoesNotApply,
    is_patch,
)


def patched(value: Any, *operations: dict[str, Any]) -> Any:
    """Return the document after these operations."""
    assert is_patch(list(operations))
    document = Document(value)
    document.apply(list(operations))
    return document.value


def op(name: str, path: str, **fields: Any) -> dict[str, Any]:
    return {"op": name, "path": path, **fields}


@pytest.mark.parametrize(
    ("value", "operation", "expected"),
    [
        ({"a": 1}, op("add", "/b", value=2), {"a": 1, "b": 2}),
        ({"a": [1, 3]}, op("add", "/a/1", value=2), {"a": [1, 2, 3]}),
        ({"a": [1]}, op("add", "/a/-", value=2), {"a": [1, 2]}),
        ({"a": 1}, op("add", "", value=[2]), [2]),
        ({"a": 1}, op("replace", "/a", value=None), {"a": None}),
        ([1, 2], op("replace", "/1", value=3), [1, 3]),
        ({"a": 1, "b": 2}, op("remove", "/a"), {"b": 2}),
        ([1, 2], op("remove", "/0"), [2]),
        ({"a": 1}, op("remove", ""), None),
        ({"a": {"b": 1}}, op("move", "/c", **{"from": "/a/b"}), {"a": {}, "c": 1}),
        ({"a": [1, 2]}, op("move", "/a/1", **{"from": "/a/0"}), {"a": [2, 1]}),
        ({"a": [1]}, op("copy", "/b", **{"from": "/a"}), {"a": [1], "b": [1]}),
        ({"a/b": 1, "~": 2}, op("remove", "/a~1b"), {"~": 2}),
        ({"a": [1]}, op("test", "/a", value=[1]), {"a": [1]}),
    ],
)
def test_each_operation_changes_what_it_says(value: Any, operation: Any, expected: Any) -> None:
    before = copy.deepcopy(value)
    assert patched(value, operation) == expected
    assert value == before


_KEYS = st.sampled_from(["a", "b", "0", "1", "-"])
_PATHS = st.lists(_KEYS, max_size=3).map(lambda keys: "".join(f"/{key}" for key in keys))
_VALUES = st.recursive(
    st.integers(0, 3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=6,
)
_PATCHES = st.lists(
    st.builds(
        lambda name, path, source, value: {
            "op": name,
            "path": path,
            "from": source,
            "value": value,
        },
        *(st.sampled_from(["add", "remove", "replace", "move", "copy"]), _PATHS, _PATHS, _VALUES),
    ),
    max_size=5,
)


@given(_VALUES, _PATCHES)
def test_a_patch_that_fails_at_its_end_leaves_everything_as_it_was(
    value: Any, patch: list[dict[str, Any]]
) -> None:
    document = Document(value)
    with pytest.raises(DoesNotApply):
        document.apply([*patch, op("test", "", value="something else")])
    assert document.value == value


@pytest.mark.parametrize(
    "operation",
    [
        op("add", "/a", value=2),
        op("add", "/c", value=2),
        op("add", "/l/0", value=2),
        op("add", "", value=2),
        op("replace", "/a", value=2),
        op("replace", "/l/0", value=2),
        op("replace", "", value=2),
        op("remove", "/a"),
        op("remove", "/l/0"),
        op("remove", ""),
        op("move", "/c", **{"from": "/a"}),
        op("move", "/l/1", **{"from": "/l/0"}),
        op("copy", "/c", **{"from": "/l"}),
    ],
    ids=lambda operation: f"{operation['op']} {operation['path']}",
)
def test_each_operation_is_undone_where_a_later_one_fails(operation: dict[str, Any]) -> None:
    before = {"a": {"b": 1}, "l": [0, 1]}
    document = Document(copy.deepcopy(before))
    with pytest.raises(DoesNotApply):
        document.apply([operation, op("remove", "/nowhere")])
    assert document.value == before


def test_a_document_does_not_grow_by_copies_of_itself() -> None:
    document = Document({"a": ["x"]})
    for number in range(100):
        try:
            document.apply([op("copy", f"/{number}", **{"from": ""})])
        except DoesNotApply:
            break
    assert number < 20  # each copy doubles the document
    assert len(orjson.dumps(document.value)) < 20 * MAX_COPIED


def test_one_patch_that_doubles_it_often_is_refused_whole() -> None:
    document = Document({"a": "x" * 100})
    with pytest.raises(DoesNotApply, match=str(MAX_COPIED)):
        document.apply([op("copy", f"/{number}", **{"from": ""}) for number in range(60)])
    assert document.value == {"a": "x" * 100}


def test_a_document_does_not_grow_without_end() -> None:
    document = Document({})
    large = "x" * (MAX_SIZE // 4)
    for number in range(3):
        document.apply([op("add", f"/{number}", value=large)])
    with pytest.raises(DoesNotApply, match=str(MAX_SIZE)):
        document.apply([op("add", "/more", value=large)])
    assert list(document.value) == ["0", "1", "2"]


@pytest.mark.parametrize("name", ["copy", "move"])
def test_a_document_does_not_get_deeper_than_can_be_written(name: str) -> None:
    document = Document({"a": {}, "b": {}})
    for number in range(2 * MAX_LEVELS):
        target = "/b" + "/b" * number
        patch = [op("add", f"{target}/b", value={}), op(name, f"{target}/x", **{"from": "/a"})]
        try:
            document.apply([*patch, op("add", "/a", value={})])
        except DoesNotApply:
            break
    assert number >= MAX_LEVELS - 5
    orjson.dumps(document.value)


@pytest.mark.parametrize("name", ["copy", "move"])
def test_what_is_moved_further_down_is_refused_where_it_would_get_too_deep(name: str) -> None:
    half = MAX_LEVELS // 2

    def nested(levels: int) -> Any:
        value: Any = {}
        for _ in range(levels - 1):
            value = {"x": value}
        return value

    before = {"a": nested(half + 10), "b": nested(half)}
    document = Document(copy.deepcopy(before))
    deep = op(name, "/b" + "/x" * half, **{"from": "/a"})
    with pytest.raises(DoesNotApply, match=f"deeper than {MAX_LEVELS} levels"):
        document.apply([deep])
    assert document.value == before
    # the copy fits in a place that is less deep
    document.apply([op(name, "/b" + "/x" * (half - 20), **{"from": "/a"})])
    orjson.dumps(document.value)
