"""A JSON body with very many values is refused before it is parsed; a large text is not."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.web.bodies import MAX_VALUES, has_many_values

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(st.sampled_from('ab",[{\\\n')),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.sampled_from('k",{\\')), inner),
)


def values(document: Any) -> int:
    inner: list[Any] = []
    if isinstance(document, dict):
        inner = list(document.values())
    elif isinstance(document, list):
        inner = document
    return 1 + sum(map(values, inner))


def containers(document: Any) -> int:
    inner: list[Any] = []
    if isinstance(document, dict):
        inner = list(document.values())
    elif isinstance(document, list):
        inner = document
    return isinstance(document, list | dict) + sum(map(containers, inner))


@given(JSON, st.integers(1, 40))
def test_it_counts_what_is_a_value_and_nothing_that_stands_in_a_text(
    document: Any, most: int
) -> None:
    body = orjson.dumps(document)
    if has_many_values(body, most):
        texts = body.count(b'"')
        assert values(document) + containers(document) > most or texts > 4 * most
    else:
        assert values(document) <= 2 * most + 1


@pytest.mark.parametrize(
    "body",
    [b"[" + b"[]," * 3_000_000 + b"[]]", b'{"a":' * 200_000, b'["' + b'","' * 2_000_000 + b'"]'],
)
def test_millions_of_values_are_many(body: bytes) -> None:
    assert has_many_values(body)


def test_a_text_of_commas_and_brackets_is_one_value() -> None:
    text = 'a,b,[c],{"d"},\\' * 500_000
    assert not has_many_values(orjson.dumps({"message": text}))
    assert not has_many_values(orjson.dumps(list(range(MAX_VALUES - 1))))
