"""Reads the syntax tree of a compiled expression. Pure.

The CEL runtime serializes the tree as a protobuf message, `cel.expr.CheckedExpr`. So this module
reads the same tree that the runtime evaluates. The module needs only a few fields, and reads them
without a protobuf library.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from penstock.expressions.errors import ExpressionError, Position

MAX_NODES: Final = 4000
MAX_DEPTH: Final = 150

Macro = Literal["all", "exists", "exists_one", "map"]


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal: null, a boolean, a number or a text."""

    id: int
    value: bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Name:
    """A variable."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class Select:
    """An access to a field of an object. With `is_test`, the expression only tests whether the
    object has the field."""

    id: int
    operand: Node
    field: str
    is_test: bool


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function or an operator. In the call of a method, the first argument is the
    method's target."""

    id: int
    function: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Listed:
    """A list literal."""

    id: int
    elements: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Mapped:
    """A map literal."""

    id: int
    entries: tuple[tuple[Node, Node], ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """A macro.

    The expressions in `each` are evaluated for each element of `range`. All these expressions are
    conditions, except that the last expression of a `map` gives a value.

    The macro `filter` becomes a `map` whose value is the variable.
    """

    id: int
    macro: Macro
    variable: str
    range: Node
    each: tuple[Node, ...]


Node: TypeAlias = Constant | Name | Select | Call | Listed | Mapped | Loop

_Fields: TypeAlias = list[tuple[int, Any]]


@dataclass(frozen=True, slots=True)
class Tree:
    """The root of the tree, and the position of each node."""

    root: Node
    positions: Mapping[int, Position]

    def position(self, node: Node) -> Position | None:
        return self.positions.get(node.id)


def read_tree(serialized: bytes, text: str) -> Tree:
    """Return the tree of an expression from the bytes of the runtime's `serialize`.

    Raises:
        ExpressionError: the expression has a part that values may not have, or too many parts.
    """
    [checked] = (value for number, value in _fields(serialized) if number == 2)
    parts = dict(_fields(checked))
    positions = _positions(parts.get(5, b""), text)
    reader = _Reader(positions)
    return Tree(reader.node(parts[4]), positions)


@dataclass(slots=True)
class _Reader:
    positions: Mapping[int, Position]
    count: int = 0
    depth: int = 0

    def node(self, data: bytes) -> Node:
        self.count += 1
        self.depth += 1
        fields = _fields(data)
        node_id = next((value for number, value in fields if number == 2), 0)
        if self.count > MAX_NODES:
            raise self._refused(node_id, f"the expression has more than {MAX_NODES} parts")
        if self.depth > MAX_DEPTH:
            raise self._refused(node_id, f"the expression is nested more than {MAX_DEPTH} deep")
        for number, value in fields:
            if number in _KINDS:
                found = _KINDS[number](self, node_id, value)
                self.depth -= 1
                return found
        raise self._refused(node_id, "this is not allowed in an expression")

    def _refused(self, node_id: int, reason: str) -> ExpressionError:
        return ExpressionError(reason, self.positions.get(node_id))

    def _constant(self, node_id: int, data: bytes) -> Node:
        [(number, value)] = _fields(data) or [(1, None)]
        match number:
            case 1:
                return Constant(node_id, None)
            case 2:
                return Constant(node_id, bool(value))
            case 3:
                return Constant(node_id, value - 2**64 if value >= 2**63 else value)
            case 5:
                return Constant(node_id, float(struct.unpack("<d", value)[0]))
            case 6:
                return Constant(node_id, value.decode())
        raise self._refused(node_id, "unsigned numbers and bytes are not allowed")

    def _name(self, node_id: int, data: bytes) -> Node:
        return Name(node_id, _text(_fields(data), 1))

    def _select(self, node_id: int, data: bytes) -> Node:
        fields = _fields(data)
        operand = self.node(_one(fields, 1))
        return Select(node_id, operand, _text(fields, 2), any(number == 3 for number, _ in fields))

    def _call(self, node_id: int, data: bytes) -> Node:
        fields = _fields(data)
        arguments = [value for wanted in (1, 3) for number, value in fields if number == wanted]
        return Call(node_id, _text(fields, 2), tuple(self.node(each) for each in arguments))

    def _list(self, node_id: int, data: bytes) -> Node:
        return Listed(
            node_id, tuple(self.node(value) for number, value in _fields(data) if number == 1)
        )

    def _struct(self, node_id: int, data: bytes) -> Node:
        fields = _fields(data)
        if any(number == 1 for number, _ in fields):
            raise self._refused(
                node_id, "messages are not allowed; write a map, as in {'name': value}"
            )
        entries = [_fields(value) for number, value in fields if number == 2]
        return Mapped(
            node_id,
            tuple((self.node(_one(each, 3)), self.node(_one(each, 4))) for each in entries),
        )

    def _loop(self, node_id: int, data: bytes) -> Node:
        fields = _fields(data)
        found = _body(self.node(_one(fields, 6)), _text(fields, 3))
        if found is None or any(number == 8 for number, _ in fields):
            raise self._refused(node_id, "this macro is not allowed in an expression")
        macro, each = found
        return Loop(node_id, macro, _text(fields, 1), self.node(_one(fields, 2)), each)


_KINDS: Final[Mapping[int, Callable[[_Reader, int, bytes], Node]]] = {
    3: _Reader._constant,
    4: _Reader._name,
    5: _Reader._select,
    6: _Reader._call,
    7: _Reader._list,
    8: _Reader._struct,
    9: _Reader._loop,
}


def _body(step: Node, accumulator: str) -> tuple[Macro, tuple[Node, ...]] | None:
    """Return the macro that CEL has expanded into this step, and what it evaluates for each
    element."""
    match step:
        case Call(_, "_&&_", (Name(_, name), condition)) if name == accumulator:
            return "all", (condition,)
        case Call(_, "_||_", (Name(_, name), condition)) if name == accumulator:
            return "exists", (condition,)
        case Call(_, "_?_:_", (condition, Call(_, "_+_", (Name(), Constant())), Name(_, name))):
            return ("exists_one", (condition,)) if name == accumulator else None
        case Call(_, "_?_:_", (condition, appended, Name(_, name))) if name == accumulator:
            inner = _body(appended, accumulator)
            return ("map", (condition, *inner[1])) if inner is not None else None
        case Call(_, "_+_", (Name(_, name), Listed(_, (element,)))) if name == accumulator:
            return "map", (element,)
    return None


def _fields(data: bytes) -> _Fields:
    """Return the fields of a protobuf message. Numbers are int, and all other values are bytes."""
    found: _Fields = []
    at, end = 0, len(data)
    while at < end:
        tag = data[at]
        at += 1
        if tag >= 0x80:
            tag, at = _varint(data, at - 1)
        kind = tag & 7
        if kind in (0, 2):
            value = data[at]
            at += 1
            if value >= 0x80:
                value, at = _varint(data, at - 1)
            if kind == 0:
                found.append((tag >> 3, value))
                continue
            size = value
        else:  # the wire types fixed64 (1) and fixed32 (5)
            size = 8 if kind == 1 else 4
        found.append((tag >> 3, data[at : at + size]))
        at += size
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _one(fields: _Fields, wanted: int) -> bytes:
    return next((value for number, value in fields if number == wanted), b"")


def _text(fields: _Fields, wanted: int) -> str:
    return _one(fields, wanted).decode()


def _positions(source: bytes, text: str) -> dict[int, Position]:
    """Return the position of each node by its id. The source information contains the nodes'
    offsets in characters."""
    starts = [0, *(at + 1 for at, sign in enumerate(text) if sign == "\n")]
    found = {}
    for number, value in _fields(source):
        if number == 4:
            entry = dict(_fields(value))
            found[entry.get(1, 0)] = _position(starts, entry.get(2, 0))
    return found


def _position(starts: Sequence[int], offset: int) -> Position:
    line = bisect.bisect_right(starts, offset)
    return Position(max(line, 1), offset - starts[max(line, 1) - 1] + 1)
