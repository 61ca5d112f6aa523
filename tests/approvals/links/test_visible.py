"""Foreign text on a link's page: nothing is markup, nothing is hidden, nothing is left out."""

from __future__ import annotations

import html
import re
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.visible import TooLarge
from penstock_approvals.links.page import LONG, MAX_CHARS, tree, visible


def read_back(shown: str) -> str:
    """Return the original of a text that `visible` has written."""
    pieces = re.split(r"<mark>\\u\{([0-9a-f]+)\}</mark>", shown)
    return "".join(
        chr(int(each, 16)) if number % 2 else html.unescape(each)
        for number, each in enumerate(pieces)
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("a\u202ecod.exe", "a<mark>\\u{202e}</mark>cod.exe"),
        ("zero\u200bwidth", "zero<mark>\\u{200b}</mark>width"),
        ("\u2066isolate\u2069", "<mark>\\u{2066}</mark>isolate<mark>\\u{2069}</mark>"),
        ("bell\x07", "bell<mark>\\u{7}</mark>"),
        ("tab\t", "tab<mark>\\u{9}</mark>"),
        ("a\r\nb", "a<mark>\\u{d}</mark>\nb"),
        ("no\u00a0break", "no<mark>\\u{a0}</mark>break"),
        ("\ufeffbom", "<mark>\\u{feff}</mark>bom"),
        ("\u3164", "<mark>\\u{3164}</mark>"),
        ("\U000e0041tag", "<mark>\\u{e0041}</mark>tag"),
        ("\ud800", "<mark>\\u{d800}</mark>"),
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ("\"'&", "&quot;&#x27;&amp;"),
        ("<mark>\\u{202e}</mark>", "&lt;mark&gt;\\u{202e}&lt;/mark&gt;"),
        ("Grüße, 東京 ✓", "Grüße, 東京 ✓"),
    ],
)
def test_what_cannot_be_seen_is_named_and_markup_is_text(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_key_has_no_line_break() -> None:
    assert visible("a\nb", lines=False) == "a<mark>\\u{a}</mark>b"


@given(st.text(st.characters(), max_size=60))
def test_any_text_is_shown_whole_and_without_hidden_characters(text: str) -> None:
    shown = visible(text)
    assert read_back(shown) == text
    shown.encode()
    bare = html.unescape(re.sub("</?mark>", "", shown))
    hidden = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}
    assert not [each for each in bare if unicodedata.category(each) in hidden and each != "\n"]
    assert re.sub("</?mark>", "", shown).count("<") == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@given(JSON)
def test_a_tree_has_every_key_and_value(value: Any) -> None:
    shown = tree(value)

    def check(each: Any) -> None:
        if isinstance(each, dict):
            for key, inner in each.items():
                assert f'<bdi class="key">{visible(key, lines=False)}</bdi>' in shown
                check(inner)
        elif isinstance(each, list):
            for inner in each:
                check(inner)
        elif isinstance(each, str):
            assert visible(f'"{each}"') in shown

    check(value)
    assert shown.count("<ul>") == shown.count("</ul>")


def test_keys_are_sorted_and_kinds_of_values_differ() -> None:
    shown = tree({"b": "true", "a": True, "c": None, "d": {}, "e": [1, {"z": "x"}]})
    plain = html.unescape(re.sub(r"<[^>]+>", "", shown))
    assert plain == 'a trueb "true"c nulld {}e [0] 1[1] z "x"'


def test_a_long_text_is_folded_and_whole() -> None:
    text = "x" * (LONG + 1)
    shown = tree({"query": text})
    assert "<details>" in shown
    assert text in shown


@pytest.mark.parametrize(
    "value", [{"query": "x" * (MAX_CHARS + 1)}, [0] * MAX_CHARS, {"a": "<" * MAX_CHARS}]
)
def test_what_cannot_be_shown_whole_is_not_shown_in_part(value: Any) -> None:
    with pytest.raises(TooLarge):
        tree(value)


def test_deep_nesting_is_shown_as_json_or_not_at_all() -> None:
    deep: Any = "bottom"
    for _ in range(60):
        deep = {"in": [deep]}
    assert "bottom" in tree(deep)
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(TooLarge):
        tree(deep)
