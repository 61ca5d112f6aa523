"""Finds the texts that a condition requires.

With these texts, most evaluations can be skipped. Pure.

For example, `event.data.tool == "delete_file" && …` cannot hold for an event with another tool. The
rest of the condition does not matter, because in CEL `false && x` is false even if `x` fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from penstock.expressions.syntax import Call, Constant, Name, Node, Select

# The path of a field, beginning with the variable, and the text that the field must have.
RequiredText: TypeAlias = tuple[tuple[str, ...], str]


def required_texts(root: Node) -> tuple[RequiredText, ...]:
    """Return the texts that fields must have for the condition to hold, as far as found."""
    return tuple(_required(root))


def has_other_text(data: Mapping[str, Any], path: tuple[str, ...], text: str) -> bool:
    """Return whether the field exists and has a text other than `text`."""
    value: Any = data
    for name in path:
        if type(value) is not dict or name not in value:
            return False
        value = value[name]
    return type(value) is str and value != text


def _required(node: Node) -> Iterator[RequiredText]:
    match node:
        case Call(_, "_&&_", arguments):
            for each in arguments:
                yield from _required(each)
        case Call(_, "_==_", (Constant(_, str(text)), field) | (field, Constant(_, str(text)))):
            path = _path(field)
            if path is not None:
                yield path, text


def _path(node: Node) -> tuple[str, ...] | None:
    names: list[str] = []
    while isinstance(node, Select) and not node.is_test:
        names.append(node.field)
        node = node.operand
    if not isinstance(node, Name):
        return None
    return (node.name, *reversed(names))
