"""Reads a document in YAML or JSON with the position of each value. Pure.

Scalars are read by YAML's core schema, in which `no` and `2026-11-22` are texts. A document has at
most `MAX_BYTES`, `MAX_NODES` values (an alias counts as all values that it repeats) and `MAX_DEPTH`
levels, and no tags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from penstock.expressions import Position
from penstock_workflows.definition.problems import InvalidDefinition, Path, Problem

MAX_BYTES: Final = 256 * 1024
MAX_NODES: Final = 20_000
MAX_DEPTH: Final = 40

_CONSTANTS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER: Final = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
# the line breaks of YAML
_BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a value in a document. `start` is the position where the value begins.

    If the value is a text whose lines are known, `text` is the position where the text's content
    begins. `indent` is the number of characters before each further line of the text.
    """

    start: Position
    text: Position | None = None
    indent: int = 0

    def inside(self, position: Position | None) -> Position:
        """Convert a position within the text to one in the document: the value's start, if
        unknown."""
        if position is None or self.text is None:
            return self.start
        column = position.column + (self.text.column - 1 if position.line == 1 else self.indent)
        return Position(self.text.line + position.line - 1, column)


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed document: its value, the places of all values and object keys in the text, and the
    keys that are there twice."""

    value: Any
    values: Mapping[Path, Place]
    keys: Mapping[Path, Place]
    problems: Sequence[Problem] = ()

    def located(self, problem: Problem) -> Problem:
        places = self.keys if problem.is_key else self.values
        path = problem.path
        while path not in places and path:
            path, places = path[:-1], self.values
        place = places.get(path, Place(Position(1, 1)))
        inside = problem.inside if path == problem.path else None
        return problem.at(place.inside(inside))


def read_document(content: bytes) -> Document:
    """Return the value of a document in YAML or JSON.

    Raises:
        InvalidDefinition: the document is no YAML or JSON, or is too large.
    """
    if len(content) > MAX_BYTES:
        raise _invalid(f"the document has more than {MAX_BYTES} bytes", None)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _invalid("the document is not UTF-8", None) from None
    if text.lstrip()[:1] == "{":
        try:
            json.loads(text)
        except RecursionError:
            raise _invalid(f"the document is nested more than {MAX_DEPTH} deep", None) from None
        except ValueError:
            pass  # the text may still be YAML, whose flow mappings begin with a brace, too
        else:
            text = _for_yaml(text)
    try:
        return _Reader(text).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = Position(mark.line + 1, mark.column + 1) if mark is not None else None
        reason = f"the document is not YAML: {error.problem or error.context}"
        raise _invalid(reason, where) from None
    except yaml.YAMLError as error:
        raise _invalid(f"the document is not YAML: {str(error).splitlines()[0]}", None) from None


# YAML accepts JSON, except for tabs between values and escapes of characters beyond 16 bits. These
# patterns find both, so that `_for_yaml` can replace them.
_JSON_PART: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\t')
_PAIR: Final = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)


def _for_yaml(text: str) -> str:
    def part(match: re.Match[str]) -> str:
        found = match[0]
        if found == "\t":
            return " "
        return _PAIR.sub(lambda pair: _character(pair[1], pair[2]), found).replace("\\/", "/")

    return _JSON_PART.sub(part, text)


def _character(high: str, low: str) -> str:
    code = 0x10000 + ((int(high, 16) - 0xD800) << 10) + (int(low, 16) - 0xDC00)
    return f"\\U{code:08x}"


@dataclass(slots=True)
class _Anchor:
    value: Any
    nodes: int


@dataclass(slots=True)
class _Reader:
    text: str
    values: dict[Path, Place] = field(default_factory=dict)
    keys: dict[Path, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    anchors: dict[str, _Anchor] = field(default_factory=dict)
    nodes: int = 0
    lines: Sequence[str] = ()

    def document(self) -> Document:
        self.lines = _BREAK.split(self.text)
        events = iter(yaml.parse(self.text, Loader=_LOADER))
        next(events)  # skip the start of the stream
        if isinstance(next(events), yaml.StreamEndEvent):
            raise _invalid("the document is empty", None)
        value = self._value(events, next(events), ())
        next(events)  # skip the end of the document
        after = next(events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise _invalid("a file has one document", _start(after))
        return Document(value, self.values, self.keys, self.problems)

    def _value(self, events: Iterator[Any], event: Any, path: Path) -> Any:
        where = _start(event)
        before = self.nodes
        self.values[path] = self._place(event)
        self._count(1, where)
        if len(path) > MAX_DEPTH:
            raise _invalid(f"the document is nested more than {MAX_DEPTH} deep", where)
        if isinstance(event, yaml.AliasEvent):
            anchor = self.anchors.get(str(event.anchor))
            if anchor is None:
                raise _invalid(f"there is no anchor &{event.anchor} before this", where)
            self._count(anchor.nodes, where)
            return anchor.value
        if event.tag is not None and not _is_own_tag(event):
            raise _invalid("tags are not allowed", where)
        value: Any
        if isinstance(event, yaml.ScalarEvent):
            value = _plain(event.value) if event.implicit[0] else event.value
        elif isinstance(event, yaml.SequenceStartEvent):
            value = []
            while not isinstance(inner := next(events), yaml.SequenceEndEvent):
                value.append(self._value(events, inner, (*path, len(value))))
        else:
            value = self._mapping(events, path)
        if event.anchor is not None:
            self.anchors[event.anchor] = _Anchor(value, self.nodes - before)
        return value

    def _mapping(self, events: Iterator[Any], path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(key := next(events), yaml.MappingEndEvent):
            where = _start(key)
            if not isinstance(key, yaml.ScalarEvent) or key.anchor or key.tag not in (None, "!"):
                raise _invalid("a key must be a plain text", where)
            name = key.value
            if name in found:
                first = self.keys[(*path, name)].start
                reason = f"the key {name[:64]!r} is here twice; it is in line {first.line}, too"
                self.problems.append(Problem((*path, name), reason, position=where))
            else:
                self.keys[(*path, name)] = self._place(key)
            found[name] = self._value(events, next(events), (*path, name))
        return found

    def _count(self, nodes: int, where: Position) -> None:
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            raise _invalid(f"the document has more than {MAX_NODES} values", where)

    def _place(self, event: Any) -> Place:
        start = _start(event)
        if not isinstance(event, yaml.ScalarEvent):
            return Place(start)
        if event.style == "|":
            return self._block(event, start)
        quotes = 1 if event.style in ("'", '"') else 0
        line = self._line(start.line)
        end_mark: Any = event.end_mark
        end = end_mark.column - quotes
        is_exact = end_mark.line + 1 == start.line and (
            line[start.column - 1 + quotes : end] == event.value
        )
        return Place(start, Position(start.line, start.column + quotes) if is_exact else None)

    def _block(self, event: Any, start: Position) -> Place:
        first = event.value.split("\n", 1)[0]
        line = self._line(start.line + 1)
        indent = len(line) - len(first)
        if not first or not line.endswith(first) or line[:indent].strip():
            return Place(start)
        return Place(start, Position(start.line + 1, indent + 1), indent)

    def _line(self, number: int) -> str:
        return self.lines[number - 1] if number <= len(self.lines) else ""


def _start(event: Any) -> Position:
    mark = event.start_mark
    return Position(mark.line + 1, mark.column + 1)


def _is_own_tag(event: Any) -> bool:
    """Return whether a tag is the mark that PyYAML gives to a quoted text."""
    return isinstance(event, yaml.ScalarEvent) and event.tag == "!" and not event.implicit[0]


def _plain(text: str) -> Any:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if len(text) <= 40 and _FLOAT.fullmatch(text) and abs(number := float(text)) < float("inf"):
        return number
    return text


def _invalid(reason: str, where: Position | None) -> InvalidDefinition:
    return InvalidDefinition([Problem((), reason, position=where or Position(1, 1))])
