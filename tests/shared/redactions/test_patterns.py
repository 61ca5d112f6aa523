"""A pattern has a greatest length, and its beginnings are the texts that may become a match."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.redactions.kinds import KINDS
from penstock.redactions.patterns import InvalidPattern, _Parser, parse
from penstock.redactions.scanner import compiled

LONGEST = 6
TEXTS = [
    "".join(each) for size in range(LONGEST + 1) for each in itertools.product("ab", repeat=size)
]
one = st.sampled_from(["a", "b", "[ab]", "."])
patterns = st.recursive(
    one,
    lambda inner: st.one_of(
        st.builds("".join, st.lists(inner, min_size=1, max_size=3)),
        st.builds("({}|{})".format, inner, inner),
        st.builds("({}){}".format, inner, st.sampled_from(["?", "{1,3}", "{2}", "{0,2}"])),
    ),
    max_leaves=5,
)


@given(patterns)
@settings(max_examples=150)
def test_the_beginnings_of_a_pattern_are_exactly_the_beginnings_of_its_matches(text: str) -> None:
    node = _Parser(text).choice(0)
    assume(node.least and node.most <= LONGEST)
    pattern = parse(text)
    matches = [each for each in TEXTS if re.fullmatch(pattern.whole, each)]
    beginnings = {match[:size] for match in matches for size in range(len(match))}
    begun = compiled(rf"\A(?:{pattern.beginnings})\z")
    assert {each for each in TEXTS if begun.search(each.encode())} == beginnings


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a+", "greatest number"),
        ("a*b", "greatest number"),
        ("a{2,}", "greatest number"),
        ("a?", "empty text"),
        ("(a|)", "empty text"),
        ("(ab", "no `)`"),
        ("ab)", "no `(`"),
        ("a{3,2}", "comes last"),
        ("a??", "may not follow"),
        ("^a", "not known"),
        ("a$", "not known"),
        (r"\Aa", "not known"),
        (r"(a)\1", "not known"),
        ("(?=a)b", "a group begins"),
        ("?a", "nothing before"),
        ("[ab", "not known"),
        ("a{999}b{2}", "at most"),
        ("a" * 2000, "at most"),
        ("(" * 50 + "a" + ")" * 50, "groups"),
    ],
)
def test_a_pattern_without_a_greatest_length_or_unknown_to_re2_is_refused_with_the_reason(
    pattern: str, reason: str
) -> None:
    with pytest.raises(InvalidPattern, match=re.escape(reason)):
        parse(pattern)


@pytest.mark.parametrize("kind", KINDS)
def test_re2_knows_each_kind_and_its_beginnings(kind: str) -> None:
    for each in KINDS[kind]:
        compiled(each.pattern.whole)
        compiled(rf"(?:{each.pattern.beginnings})\z")
