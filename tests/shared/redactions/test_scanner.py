"""A text is redacted in the same way however it is cut into pieces, and no longer held back than
needed."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.redactions.json_text import JsonScanner
from penstock.redactions.kinds import KINDS
from penstock.redactions.scanner import MAX_NUMBERED, PART, Redactor, Rules, Scanner, hides_less

ALL = Rules([{"kinds": list(KINDS), "action": "mask"}])
TEXT = (
    "Write to joe@example.com, or Joe@Example.com, or +49 30 1234567. Card 4111-1111 1111 1111, "
    "not 4111 1111 1111 1112; IBAN DE89 3704 0044 0532 0130 00 AND SO; (030) 123456; x@y; "
    "größe@ü.de sk-abcdefghijklmnop0123, 12@ 4111 1111"
)
CLEAN = (
    "Write to [EMAIL_1], or [EMAIL_1], or [PHONE_1]. Card [CARD_1], "
    "not 4111 1111 1111 1112; IBAN [IBAN_1] AND SO; [PHONE_2]; x@y; [EMAIL_2]"
    " [SECRET_1], 12@ 4111 1111"
)


def redactor(*kinds: str, action: str = "mask") -> Redactor:
    return Redactor(Rules([{"kinds": kinds, "action": action}]) if kinds else ALL, "run")


def cut(text: str, places: Sequence[int]) -> list[str]:
    ends = sorted({min(place, len(text)) for place in places} | {len(text)})
    return [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def scanned(by: Redactor, pieces: Sequence[str]) -> str:
    scanner = Scanner(by)
    return "".join([*map(scanner.feed, pieces), scanner.flush()])


def test_every_kind_is_found_and_what_only_looks_like_one_stays() -> None:
    assert redactor().text(TEXT) == CLEAN


def test_an_accent_that_is_a_sign_of_its_own_belongs_to_the_address() -> None:
    assert redactor().text("To jose\u0301@exa\u0308mple.com.") == "To [EMAIL_1]."


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 40])
def test_pieces_of_one_size_give_what_the_whole_text_gives(size: int) -> None:
    pieces = [TEXT[at : at + size] for at in range(0, len(TEXT), size)]
    assert scanned(redactor(), pieces) == CLEAN


def test_every_place_to_cut_the_text_in_two_gives_what_the_whole_text_gives() -> None:
    for place in range(len(TEXT)):
        assert scanned(redactor(), [TEXT[:place], TEXT[place:]]) == CLEAN


def test_a_long_text_is_searched_in_parts_with_the_result_of_the_whole() -> None:
    long = TEXT * (3 * PART // len(TEXT))
    value = {"key": [long, 4111111111111111], "json": json.dumps({"more": f"{TEXT}\n"})}
    assert redactor().text(long) == redactor().patterns(long)
    by, whole = redactor(), redactor()
    parts = by.value_in_parts(value)
    assert sum(1 for _ in parts) > 3
    assert whole.value(value)["key"] == [redactor().patterns(long), "[CARD_1]"]
    assert by.found == whole.found


LIKELY = "joe@example.com 4111111111111111 +49 30 sk-abcdefghijklmnop DE89370400440532013000 é☂,-_."
texts = st.lists(
    st.one_of(
        st.sampled_from(LIKELY.split(" ")),
        st.text(alphabet="a1@. -+é☂", max_size=6),
        st.text(max_size=4),
    ),
    max_size=8,
).map("".join)


@given(texts, st.lists(st.integers(0, 80), max_size=12))
@settings(max_examples=100)
def test_every_way_to_cut_a_text_gives_what_the_whole_text_gives(
    text: str, places: list[int]
) -> None:
    assert scanned(redactor(), cut(text, places)) == redactor().text(text)


OWN = [
    "aab", "a{1,3}", "(?i)Ab", r"\bab\b", r"a\Bb", "(ab|b){2,4}", "a.b", "[^a]b?a", "(a|ab)(c|bcd)",
    r"\b(a|b){1,3}c\b", "ab?c?", "a(b(c)?)?d",
]  # fmt: skip


SIZES = [4, pytest.param(6, marks=pytest.mark.chaos)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("pattern", OWN)
def test_an_own_pattern_gives_the_same_for_every_way_to_cut_every_short_text(
    pattern: str, size: int
) -> None:
    rules = Rules([{"kinds": [f"re:{pattern}"], "action": "mask"}])
    for letters in itertools.product("ab c" if size > 4 else "ab ", repeat=size):
        text = "".join(letters)
        whole = Redactor(rules, "run").text(text)
        for cuts in range(1, 2 ** (size - 1)):
            places = [place + 1 for place in range(size - 1) if cuts >> place & 1]
            assert scanned(Redactor(rules, "run"), cut(text, places)) == whole, (text, places)


@pytest.mark.parametrize("pattern", ["aab", "a{1,3}c", "(ab|b){2,4}", "a.b", "(a|ab)(c|bcd)"])
def test_only_text_that_may_still_become_a_match_is_held_back(pattern: str) -> None:
    rules = Rules([{"kinds": [f"re:{pattern}"], "action": "drop"}])
    longer = [
        "".join(each) for size in range(1, 5) for each in itertools.product("abcd", repeat=size)
    ]
    for letters in itertools.product("abc", repeat=4):
        text = "".join(letters)
        scanner = Scanner(Redactor(rules, "run"))
        scanner.feed(text)
        held = scanner._held.decode()
        assert not held or any(re.fullmatch(pattern, held + more) for more in longer), (text, held)


def test_words_are_held_back_until_they_end() -> None:
    scanner = Scanner(redactor("email", "card"))
    said = [scanner.feed(piece) for piece in ("I", " will", " look", " at", " it", ".", " Fine")]
    assert said == ["", "I ", "will ", "look ", "at ", "", "it. "]
    assert scanner.flush() == "Fine"


def test_a_secret_of_any_length_is_taken_out_whole_and_only_its_beginning_is_held_back() -> None:
    scanner, said, most = Scanner(redactor("secret")), "", 0
    for piece in ("key sk-", *["abcdefgh"] * 1000, " is it"):
        said += scanner.feed(piece)
        most = max(most, len(scanner._held))
    assert said + scanner.flush() == "key [SECRET_1] is it"
    assert most < 80


def test_a_match_that_is_dropped_leaves_nothing() -> None:
    assert redactor("email", action="drop").text("to joe@example.com!") == "to !"


def test_nothing_is_returned_from_a_match_that_blocks_on() -> None:
    for size in (1, 4, 100):
        blocking = redactor("email", action="block")
        scanner, text = Scanner(blocking), "Hi, joe@example.com is it. More"
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert "".join(map(scanner.feed, pieces)) + scanner.flush() == "Hi, "
        assert blocking.blocked == "email"


def test_of_two_rules_for_a_kind_the_first_counts() -> None:
    rules = [{"kinds": ["email"], "action": "drop"}, {"kinds": ["email", "card"], "action": "mask"}]
    assert Redactor(Rules(rules), "r").text("a@b.cd 4111111111111111") == " [CARD_1]"


def test_the_same_value_has_the_same_number_in_all_texts_of_a_run_also_after_a_snapshot() -> None:
    one = redactor()
    assert one.text("a@b.cd c@d.ef") == "[EMAIL_1] [EMAIL_2]"
    stored = one.snapshot()
    assert "a@b.cd" not in str(stored)
    other = redactor()
    other.restore(stored)
    assert other.text("C@D.EF x@y.zz 4111 1111 1111 1111 4111111111111111") == (
        "[EMAIL_2] [EMAIL_3] [CARD_1] [CARD_1]"
    )


def test_a_run_with_very_many_values_numbers_only_the_first() -> None:
    many = redactor("email")
    said = many.text(" ".join(f"u{number}@b.cd" for number in range(MAX_NUMBERED + 1)))
    assert said.endswith(f"[EMAIL_{MAX_NUMBERED}] [EMAIL]")


def test_all_texts_keys_and_numbers_of_a_json_value_are_searched() -> None:
    value: Any = {
        "to": ["a@b.cd", {"a@b.cd": 4111111111111111}],
        "n": 5,
        "whole": 4111111111111111.0,
        "fraction": 0.4111111111111111,
        "no": None,
    }
    assert redactor().value(value) == {
        "to": ["[EMAIL_1]", {"[EMAIL_1]": "[CARD_1]"}],
        "n": 5,
        "whole": "[CARD_1]",
        "fraction": 0.4111111111111111,
        "no": None,
    }
    assert scanned_json(["[0.4111111111111111]"]) == "[0.4111111111111111]"


def test_a_text_that_is_json_is_searched_without_its_escapes_and_stays_json() -> None:
    inner = {"note": "To:\nada@example.com\n4111 1111 1111 1111\tand"}
    clean = {"note": "To:\n[EMAIL_1]\n[CARD_1]\tand"}
    assert json.loads(redactor().value(json.dumps(inner))) == clean
    twice = json.loads(redactor().value([json.dumps({"args": json.dumps(inner)})])[0])
    assert json.loads(twice["args"]) == clean
    for other in ('{"a": "\\n"}', '{"a": "\\ud83d"}', '{"a": \\n'):
        assert redactor().value(other) == other


def test_what_a_repeated_key_hides_in_a_text_that_is_json_is_taken_out() -> None:
    assert redactor().value(r'{"to": "joe\u0040example.com", "to": "x"}') == '{"to":"x"}'


JSON = (
    r'{"to": "joe\u0040example.com", "é\n": [4111111111111111, -1.5e3, true], "x": "\ud83d\ude00 '
    r'a\"b\\ +49 30 1234567\/", "joe@example.com": null}'
)
CLEAN_JSON = (
    '{"to": "[EMAIL_1]", "é\\n": ["[CARD_1]", -1.5e3, true], "x": "\U0001f600 a\\"b\\\\ '
    '[PHONE_1]/", "[EMAIL_1]": null}'
)


def scanned_json(pieces: Sequence[str]) -> str:
    scanner = JsonScanner(redactor())
    return "".join([*map(scanner.feed, pieces), scanner.flush()])


def test_json_in_pieces_is_searched_without_its_escapes() -> None:
    assert scanned_json([JSON]) == CLEAN_JSON
    for size in (1, 2, 3, 7):
        assert (
            scanned_json([JSON[at : at + size] for at in range(0, len(JSON), size)]) == CLEAN_JSON
        )


@pytest.mark.chaos
@given(texts, st.lists(st.integers(0, 80), max_size=12))
@settings(max_examples=20_000, derandomize=False)
def test_every_way_to_cut_very_many_texts_gives_what_the_whole_text_gives(
    text: str, places: list[int]
) -> None:
    assert scanned(redactor(), cut(text, places)) == redactor().text(text)


@given(
    st.text(alphabet='{}[]":, \\u0d8@a1.é-', max_size=30), st.lists(st.integers(0, 30), max_size=8)
)
@settings(max_examples=100)
def test_what_is_no_json_is_searched_too_and_every_way_to_cut_it_gives_the_same(
    text: str, places: list[int]
) -> None:
    assert scanned_json(cut(text, places)) == scanned_json([text])


def searched_plainly(text: str) -> str:
    """Return what a scanner must return, by trying each kind at each character."""
    by, at, found = redactor(), 0, list[str]()
    encoded = text.encode()
    while at < len(encoded):
        ends = [
            (at + each.kind.check(match.group()), each)
            for each in by.rules.searches
            if (match := each.pattern.match(encoded, at)) is not None
        ]
        end, search = max(ends, key=lambda each: each[0], default=(at, None))
        if search is None or end == at:
            end = at + 1
            while end < len(encoded) and encoded[end] & 0xC0 == 0x80:
                end += 1
            found.append(encoded[at:end].decode())
        else:
            found.append(by.replace(search.kind, search.action, encoded[at:end].decode()))
            if search.kind.rest is not None:
                rest = search.kind.rest.match(encoded, end)
                assert rest is not None
                end = rest.end()
        at = end
    return "".join(found)


@given(st.lists(st.sampled_from(["4", "44 ", "1", "+49", "0", "DE89", "a@b.c", "-", " ", "é"])))
@settings(max_examples=60)
def test_where_many_places_have_the_form_of_a_match_the_same_is_found(parts: list[str]) -> None:
    text = "".join(parts)
    assert redactor().text(text) == searched_plainly(text)


def cpu_seconds(act: Callable[[], object]) -> float:
    began = time.process_time()
    act()
    return time.process_time() - began


def test_the_time_is_proportional_to_the_text_also_where_every_word_begins_a_match() -> None:
    def seconds(repeats: int) -> float:
        return min(cpu_seconds(lambda: scanned(redactor(), ["1 a@b -"] * repeats)) for _ in "123")

    seconds(500)
    assert seconds(4000) < 16 * seconds(1000)


def test_the_time_for_an_escape_does_not_grow_with_the_text_behind_it() -> None:
    def seconds(text: str) -> float:
        return min(cpu_seconds(lambda: scanned_json(['"' + text])) for _ in "123")

    escapes, plain = r"\n" * 3000, "x" * 2_000_000
    assert seconds(escapes + plain) < 4 * (seconds(escapes) + seconds(plain))


def luhn(digits: str) -> bool:
    doubled = (sum(divmod(int(each) * 2, 10)) for each in digits[-2::-2])
    return (sum(map(int, digits[-1::-2])) + sum(doubled)) % 10 == 0


def fits_97(signs: str) -> bool:
    return int("".join(str(int(each, 36)) for each in signs[4:] + signs[:4])) % 97 == 1


@pytest.mark.parametrize(
    ("kind", "fits", "least", "known"),
    [
        ("card", luhn, 13, "4111 1111 1111 1111"),
        ("iban", fits_97, 15, "DE89 3704 0044 0532 0130 00"),
    ],
)
def test_a_checksum_is_that_of_the_longest_text_that_ends_with_a_word(
    kind: str, fits: Callable[[str], bool], least: int, known: str
) -> None:
    rests = ["", "-", " 12", " 1 2 3", " 44-44 4", *(f" {number}" for number in range(10, 99))]
    for text in (known + rest for rest in (*rests, *(each.replace(" ", "") for each in rests))):
        ends = [match.end() for match in re.finditer(r"\w\b", text)]
        ends = [end for end in ends if len(re.sub(r"\W", "", text[:end])) >= least]
        wanted = max((end for end in ends if fits(re.sub(r"\W", "", text[:end]))), default=0)
        assert KINDS[kind][0].check(text.encode()) == wanted, text


def test_no_rules_find_nothing_and_hold_nothing_back() -> None:
    by = Redactor(Rules([]), "run")
    assert by.text(TEXT) == TEXT
    assert Scanner(by).feed("joe@exam") == "joe@exam"


def of(*kinds: str, masks: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    rules = [{"kinds": kinds, "action": "mask"}]
    rules.append({"kinds": masks, "action": "mask", "where": "egress"})
    return {"version": 1, "rules": rules, **more}


@pytest.mark.parametrize(
    ("redactions", "first", "less"),
    [
        (None, None, False),
        (of("email"), None, False),
        (None, of("email"), True),
        (None, of(masks=["email"]), True),
        (of("email", "card"), of("email"), False),
        (of("email"), of("email", "card"), True),
        (of(masks=["email", "card"]), of(masks=["email"]), False),
        (of(masks=["card"]), of(masks=["email"]), True),
        (of("email"), of(masks=["email"]), False),
        (of(masks=["email"]), of("email"), True),
        (of("card", masks=["card"]), of("card"), False),
        (of(), of(check={"url": "https://checker.example"}), True),
        (of(check={"url": "https://another.example"}), of(check={"url": "u"}), False),
    ],
)
def test_redactions_hide_less_if_a_kind_is_seen_by_somebody_who_did_not_see_it_before(
    redactions: dict[str, Any] | None, first: dict[str, Any] | None, less: bool
) -> None:
    assert hides_less(redactions, first) is less
