"""How the Agno decoder reads values, above all the results of tools, which come as text."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.agno.decode.tools import MAX_LITERAL_CHARS, tool_value
from penstock.dialects.json import loads, text


@pytest.mark.parametrize(
    ("result", "value"),
    [
        ('{"a": [1, null]}', {"a": [1, None]}),
        ("{'success': True, 'n': None}", {"success": True, "n": None}),
        ("[('a', 1)]", [["a", 1]]),
        ("{1: 'one'}", {"1": "one"}),
        ("True", True),
        ("None", None),
        ("42", 42),
        ("sent 'Hi' to a@b.c", "sent 'Hi' to a@b.c"),
        ("'quoted by the tool'", "'quoted by the tool'"),
        ("[see the attachment", "[see the attachment"),
        ("", ""),
        (None, None),
        ({"already": 1}, {"already": 1}),
    ],
)
def test_a_result_is_json_then_a_literal_then_text(result: Any, value: Any) -> None:
    assert tool_value(result) == value


@pytest.mark.parametrize(
    "result",
    [
        "{'at': datetime.datetime(2026, 1, 1)}",
        "{1, 2}",
        "[b'bytes']",
        "[1j]",
        "{'n': 123456789012345678901234567890}",
        "['\\ud800']",
        "{[]: 1}",
        "__import__('os').getcwd()",
    ],
)
def test_a_literal_that_is_no_json_value_stays_text(result: str) -> None:
    assert tool_value(result) == result


@pytest.mark.parametrize(
    "result",
    [
        "[" * 100_000,
        "[" * 5_000 + "]" * 5_000,
        "[" + "-" * 100_000 + "1]",
        "[" + "1+" * 50_000 + "1]",
        "{'a':" * 20_000,
        "[" + "'a'," * MAX_LITERAL_CHARS + "]",
    ],
)
def test_a_huge_or_deep_result_stays_text_and_costs_little(result: str) -> None:
    began = time.process_time()
    assert tool_value(result) == result
    assert time.process_time() - began < 2


@given(st.text())
def test_any_text_is_a_value(result: str) -> None:
    text(tool_value(result))


def test_json_that_could_not_be_written_again_is_refused() -> None:
    with pytest.raises(ValueError, match="deeper than 200 levels"):
        loads(b"[" * 300 + b"]" * 300)
    assert loads(b"[" + b"[]," * 300 + b"1]")[-1] == 1
