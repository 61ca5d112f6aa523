"""Finds what rules name in the texts of a run, and puts something else in its place. Pure.

Of all matches that begin first, the longest counts; the search then goes on behind it. A piece of a
text is searched as far as further pieces cannot change the result: `Scanner` holds back the text
from the first character on that may still be the beginning of a match. So the result is the same
however the text was cut into pieces.

RE2 takes time proportional to the text, whatever the pattern. Texts are searched as UTF-8, because
RE2 counts in bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias, TypeVar

import orjson

from penstock.redactions.kinds import Kind, kinds_of
from penstock.redactions.patterns import InvalidPattern

T = TypeVar("T")
# A search that stops after each part, so that its caller may do other work meanwhile.
Parts: TypeAlias = Generator[None, None, T]
PART: Final = 8 * 1024  # the characters of a long text that are searched in one part
Action = Literal["mask", "drop", "block", "review"]
Where = Literal["ingest", "egress"]
# From this number on, further values of a kind have no number of their own in a run.
MAX_NUMBERED: Final = 10_000
MAX_LEVELS: Final = 200  # a value that is nested deeper is taken out whole
_UTF8: Final = ("utf-8", "surrogatepass")  # half of a surrogate pair must not raise an error here
_MAX_MEMORY_BYTES: Final = 32 * 1024 * 1024
# The greatest size of all patterns of a document, in RE2's instructions. RE2 compiles them as one,
# in a time that grows with the square of it, while the services that start and read runs wait.
MAX_INSTRUCTIONS: Final = 50_000
_NOTHING: Final = r"[^\x00-\x{10FFFF}]"  # matches nowhere


@dataclass(frozen=True, slots=True)
class _Search:
    kind: Kind
    action: Action
    pattern: Any  # an expression of RE2


class Rules:
    """The compiled rules of a run. The constructor raises InvalidPattern, also if the patterns are
    too large together, and KeyError for an unknown kind. Of rules that name the same kind, the
    first counts."""

    def __init__(self, rules: Sequence[Mapping[str, Any]]) -> None:
        actions: dict[str, Action] = {}
        for rule in rules:
            for name in rule["kinds"]:
                actions.setdefault(name, rule["action"])
        kinds = [(kind, action) for name, action in actions.items() for kind in kinds_of(name)]
        self.searches = [
            _Search(kind, action, compiled(kind.pattern.whole)) for kind, action in kinds
        ]
        size = sum(search.pattern.programsize for search in self.searches)
        if size > MAX_INSTRUCTIONS:
            raise InvalidPattern(
                f"the patterns have {size} instructions of RE2, and may have {MAX_INSTRUCTIONS} "
                "together; repeat less often, or name fewer signs"
            )
        self.first = compiled("|".join(kind.pattern.whole for kind, _ in kinds) or _NOTHING)
        beginnings = "|".join(kind.pattern.beginnings for kind, _ in kinds)
        # RE2 searches this from the end of the text, and stops where no match can have begun.
        self.open_end = compiled(rf"(?:{beginnings})\z")


class _Matches:
    """The next match of each pattern in a text. A pattern is searched again only behind its match,
    so that a text that has the form of a card at every third character takes no pattern longer."""

    def __init__(self, rules: Rules, text: bytes) -> None:
        self._searches, self._text = rules.searches, text
        self._starts, self._ends = [-1] * len(rules.searches), [-1] * len(rules.searches)

    def first(self, at: int) -> int:
        """Return where the next match begins, from this place on; behind the text if nowhere."""
        for number, start in enumerate(self._starts):
            if start < at:
                match = self._searches[number].pattern.search(self._text, at)
                span = match.span() if match is not None else (len(self._text) + 1, -1)
                self._starts[number], self._ends[number] = span
        return min(self._starts)

    def at(self, start: int) -> tuple[_Search | None, int]:
        """Return what begins at this place, and where it ends: the longest, and of equally long
        ones that of the earliest rule; None if nothing that a pattern matches passes its check."""
        found, end = None, start
        for number, each in enumerate(self._starts):
            if each == start:
                search = self._searches[number]
                length = search.kind.check(self._text[start : self._ends[number]])
                if start + length > end:
                    found, end = search, start + length
        return found, end


@lru_cache(maxsize=64)
def _rules_of(rules: bytes) -> Rules:
    # Runs with the same rules share them.
    return Rules(orjson.loads(rules))


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Any:
    """Return the expression of RE2. Raises InvalidPattern."""
    import re2  # noqa: PLC0415 - it takes 3 MiB, and most processes have no rules

    options = re2.Options()
    options.longest_match = True
    options.log_errors = False
    options.max_mem = _MAX_MEMORY_BYTES
    try:
        return re2.compile(pattern.encode(), options)
    except re2.error as error:
        text = error.args[0] if error.args else error
        reason = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        raise InvalidPattern(f"RE2 refuses it: {reason}") from None


@dataclass(slots=True)
class Redactor:
    """Takes out of a run's texts what its rules name.

    The same value has the same number in all texts of the run. `found` counts what was taken out,
    by kind, `blocked` is the kind of a match that stops the run, and `reviewed` are those about
    which people are asked: all are read and reset by the caller. The text before a match that stops
    the run is returned, and nothing from it on.
    """

    rules: Rules
    run_id: str
    found: dict[str, int] = field(default_factory=dict)
    blocked: str | None = None
    waiting: int = 0  # the characters outside of texts in open JSON, which are searched together
    reviewed: list[str] = field(default_factory=list)
    # By label: the digests of the values, in the order of their numbers. They hold no value, since
    # they are stored while the run waits.
    _known: dict[str, dict[str, int]] = field(default_factory=dict)

    def text(self, text: str) -> str:
        return result_of(self.text_in_parts(text))

    def text_in_parts(self, text: str) -> Parts[str]:
        return self.patterns_in_parts(text)

    def patterns(self, text: str) -> str:
        return Scanner(self).feed(text, last=True)

    def patterns_in_parts(self, text: str) -> Parts[str]:
        if len(text) <= PART:
            return self.patterns(text)
        scanner, clean = Scanner(self), list[str]()
        for at in range(0, len(text), PART):
            clean.append(scanner.feed(text[at : at + PART]))
            yield
        return "".join((*clean, scanner.flush()))

    def without_open_end(self, text: str) -> str:
        """Return a text up to where it may have the beginning of a match, unredacted."""
        encoded = text.encode(*_UTF8)
        return encoded[: self.rules.open_end.search(encoded).start()].decode(*_UTF8)

    def value(self, value: Any) -> Any:
        """Return a JSON value with all its texts, keys and whole numbers searched. A text that is
        JSON itself is searched for what it means, too: an escape would hide where a word begins."""
        return result_of(self.value_in_parts(value))

    def value_in_parts(self, value: Any, levels: int = MAX_LEVELS) -> Parts[Any]:
        match value:
            case str():
                text = yield from self._json_text(value, levels)
                return (yield from self.text_in_parts(text))
            case int() | float() if not isinstance(value, bool):
                # The digits of a fraction look like those of a card.
                text = str(int(value)) if value == value // 1 else ""
                return value if (clean := self.patterns(text)) == text else clean
            case list() if levels:
                items = []
                for each in value:
                    items.append((yield from self.value_in_parts(each, levels - 1)))
                    yield
                return items
            case dict() if levels:
                fields = {}
                for key, each in value.items():
                    name = yield from self.patterns_in_parts(key)
                    fields[name] = yield from self.value_in_parts(each, levels - 1)
                    yield
                return fields
            case list() | dict():
                return None
            case _:
                return value

    def _json_text(self, text: str, levels: int) -> Parts[str]:
        if "\\" not in text or text.lstrip()[:1] not in ("{", "["):
            return text
        try:
            value = orjson.loads(text)
            return _rewritten(text, value, (yield from self.value_in_parts(value, levels)))
        except ValueError:  # it is no JSON, or half of a surrogate pair
            return text

    def replace(self, kind: Kind, action: Action, match: str) -> str:
        """Return what comes in place of a match, and count it."""
        name = kind.label.lower()
        self.found[name] = self.found.get(name, 0) + 1
        if action == "block":
            self.blocked = self.blocked or name
        if action == "review":
            self.reviewed.append(name)
        elif action != "mask":
            return ""
        known = self._known.setdefault(kind.label, {})
        same = kind.same(match)
        digest = hashlib.sha256(f"{self.run_id} {kind.name} {same}".encode(*_UTF8)).hexdigest()[:24]
        if (number := known.get(digest)) is None:
            if len(known) >= MAX_NUMBERED:
                return f"[{kind.label}]"
            number = known[digest] = len(known) + 1
        return f"[{kind.label}_{number}]"

    def take_found(self) -> dict[str, int]:
        found, self.found = self.found, {}
        return found

    def snapshot(self) -> dict[str, list[str]]:
        return {label: list(known) for label, known in self._known.items()}

    def restore(self, state: Mapping[str, Sequence[str]]) -> None:
        self._known.clear()
        for label, digests in state.items():
            self._known[label] = {digest: number for number, digest in enumerate(digests, 1)}

    def number_as(self, other: Redactor) -> None:
        """Give each value the number that it has with the other, from here on."""
        self._known = other._known


def result_of(parts: Parts[T]) -> T:
    while True:
        try:
            next(parts)
        except StopIteration as end:
            result: T = end.value
            return result


def redactor_of(run_id: str, redactions: Mapping[str, Any]) -> Redactor:
    """Return what searches the texts of a run; `redactions` is from the run's record."""
    return Redactor(_rules_of(orjson.dumps(redactions["rules"])), run_id)


def rules_where(rules: Sequence[Mapping[str, Any]], where: Where) -> list[Mapping[str, Any]]:
    """Return the rules of a run that apply there, without the kinds that an earlier rule names."""
    named: set[str] = set()
    found: list[Mapping[str, Any]] = []
    for rule in rules:
        kinds = [kind for kind in rule["kinds"] if kind not in named]
        named.update(kinds)
        if kinds and rule.get("where", "ingest") == where:
            found.append({**rule, "kinds": kinds})
    return found


def kinds_where(redactions: Mapping[str, Any] | None, where: Where) -> set[str]:
    """Return the kinds that a run's redactions find there."""
    rules = rules_where(redactions["rules"], where) if redactions is not None else ()
    return {kind for rule in rules for kind in rule["kinds"]}


def hides_less(redactions: Mapping[str, Any] | None, first: Mapping[str, Any] | None) -> bool:
    """Return whether somebody reads in a run with these redactions what nobody, or not everybody,
    reads in the first one."""
    if first is None:
        return False
    if redactions is None or ("check" in first and "check" not in redactions):
        return True
    hidden = kinds_where(redactions, "ingest")
    masked = hidden | kinds_where(redactions, "egress")
    return not (kinds_where(first, "ingest") <= hidden and kinds_where(first, "egress") <= masked)


def masked_by(redactions: Mapping[str, Any] | None) -> Literal["all", "some"] | None:
    """Return whether all or some of a run's redactions only mask what callers read; None if none
    does."""
    if redactions is None or not kinds_where(redactions, "egress"):
        return None
    others = kinds_where(redactions, "ingest") or "check" in redactions
    return "some" if others else "all"


def rewritten(text: str, clean_of: Callable[[Any], Any]) -> str:
    """Return a JSON text with what `clean_of` makes of its value; the text itself, if that changes
    nothing and the text has nothing beside its value. Raises ValueError if it is no JSON."""
    value = orjson.loads(text)
    return _rewritten(text, value, clean_of(value))


def _rewritten(text: str, value: Any, clean: Any) -> str:
    if clean == value and not _repeats_a_key(text):
        return text
    return orjson.dumps(clean).decode()


def _repeats_a_key(text: str) -> bool:
    """Return whether an object of a JSON text has a key twice. Its value has only the last, so
    nobody would search the others."""
    try:
        json.loads(text, object_pairs_hook=_require_distinct)
    except (ValueError, RecursionError):
        return True
    return False


def _require_distinct(pairs: Sequence[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key is repeated")


@dataclass(slots=True)
class Scanner:
    """Searches one text that comes in pieces. After a match that blocks the run, it returns no
    further text."""

    redactor: Redactor
    _held: bytes = b""  # the end of the text so far, of which nothing is decided yet
    _before: bytes = b""  # the byte before it, by which RE2 knows where a word begins
    # What all bytes belong to that follow the last match, as long as it matches them.
    _rest: Any = None
    _has_ended: bool = False

    @property
    def held(self) -> str:
        """The end of the text so far, of which nothing is decided yet."""
        return self._held.decode(*_UTF8)

    @property
    def is_in_match(self) -> bool:
        """Whether what follows may belong to the last match, however long it is."""
        return self._rest is not None

    def feed(self, piece: str, *, last: bool = False) -> str:
        """Return the text up to where further pieces may change it; with `last`, up to its end."""
        if self._has_ended:
            return ""
        rules = self.redactor.rules
        text = self._before + self._held + piece.encode(*_UTF8)
        at = len(self._before)
        decided: list[bytes] = []
        # From `end` on, further pieces may change what is found.
        end = len(text) if last else -1
        matches: _Matches | None = None
        while True:
            if self._rest is not None:
                at = self._rest.match(text, at).end()
                if at == len(text):
                    break
                self._rest = None
            if end < at:
                end = rules.open_end.search(text, at).start()
            if matches is None and (match := rules.first.search(text, at)) is not None:
                matches = _Matches(rules, text) if match.start() < end else None
            start = matches.first(at) if matches is not None else end
            if matches is None or start >= end:
                decided.append(text[at:end])
                at = end
                break
            search, stop = matches.at(start)
            if search is None:
                stop = start + _character_bytes(text[start])
                decided.append(text[at:stop])
            else:
                found = text[start:stop].decode(*_UTF8)
                instead = self.redactor.replace(search.kind, search.action, found)
                decided += (text[at:start], instead.encode())
                if search.action == "block":
                    self._has_ended = True
                    return b"".join(decided).decode(*_UTF8)
                self._rest = search.kind.rest
            at = stop
        self._held, self._before = text[at:], text[max(0, at - 1) : at]
        return b"".join(decided).decode(*_UTF8)

    def flush(self) -> str:
        """Return what is held back, since the text has ended."""
        return self.feed("", last=True)


def _character_bytes(first: int) -> int:
    return 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
