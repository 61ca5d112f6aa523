"""Find the lines of a YAML document's mistakes, its repeated keys, and its variables. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

Place = tuple[str | int, ...]  # the keys and indexes that lead to a value

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
REPEATED_KEY: Final = "the key is there twice"


def line_of(root: Node | None, path: Sequence[int | str]) -> int:
    """Return the line of the key at a path, or of the nearest node above it; 0 without nodes."""
    return 0 if root is None else node_at(root, path)[1]


def node_at(root: Node, path: Sequence[int | str]) -> tuple[Node, int]:
    """Return the node at a path, or the nearest node above it, and the line of its key. Lines count
    from 1."""
    node, line = root, root.start_mark.line
    for step in path:
        if isinstance(node, MappingNode):
            found = [(key, value) for key, value in node.value if _is_key(key, step)]
            if not found:
                break
            line, node = found[0][0].start_mark.line, found[0][1]
        elif isinstance(node, SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line
        else:
            break
    return node, int(line) + 1


def _is_key(key: Node, step: int | str) -> bool:
    return isinstance(key, ScalarNode) and key.value == str(step)


def repeated_keys(root: Node | None) -> Iterator[tuple[str, int]]:
    """Yield each repeated key and its line. The YAML parser itself would silently use the last
    value."""
    nodes, seen = [root] if root is not None else [], set[int]()
    while nodes:
        node = nodes.pop()
        if id(node) in seen:  # a YAML alias refers to a node that was checked already
            continue
        seen.add(id(node))
        if isinstance(node, SequenceNode):
            nodes += node.value
        elif isinstance(node, MappingNode):
            keys = set[str]()
            for key, value in node.value:
                if isinstance(key, ScalarNode):
                    if key.value in keys:
                        yield key.value, key.start_mark.line + 1
                    keys.add(key.value)
                nodes.append(value)


def expanded(
    value: Any, variables: Mapping[str, str], unset: dict[Place, list[str]], place: Place = ()
) -> Any:
    """Return the value with the variables in place of `${NAME}` in all its texts. A text that names
    unset variables stays as it is, and `unset` gets its place with these names."""
    if isinstance(value, str):
        missing = [name for name in _VARIABLE.findall(value) if name not in variables]
        if missing:
            unset[place] = list(dict.fromkeys(missing))
            return value
        return _VARIABLE.sub(lambda match: variables[match[1]], value)
    if isinstance(value, dict):
        return {k: expanded(each, variables, unset, (*place, k)) for k, each in value.items()}
    if isinstance(value, list):
        return [expanded(each, variables, unset, (*place, i)) for i, each in enumerate(value)]
    return value
