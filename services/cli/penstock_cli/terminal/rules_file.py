"""Reads a YAML file of rules, and finds the line of each field. Pure.

The value of the environment variable NAME replaces `${NAME}`, so that the file needs no secrets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from penstock import yaml_lines


class InvalidFile(ValueError):
    """The error for a text that is no valid file of rules. The error's text names the line."""


@dataclass(frozen=True, slots=True)
class FileRule:
    """A rule in a file, with its value, its node and the lines of the file."""

    value: dict[str, Any]
    node: yaml.Node
    lines: Sequence[str]

    @property
    def id(self) -> str:
        return str(self.value["id"])

    def location_of(self, field: str, line: int | None = None, column: int | None = None) -> str:
        """Return `LINE` or `LINE:COLUMN` of a field such as `action.webhook.url`. `line` and
        `column` give a place within the field's text, for example within a condition."""
        path = [int(step) if step.isdecimal() else step for step in field.split(".")]
        node, key_line = yaml_lines.node_at(self.node, path)
        text = _text_of(node, self.lines)
        if line is None or column is None or text is None:
            return str(key_line)
        return f"{text[0] + line - 1}:{text[1] + column - 1}"


def read_rules(text: str, variables: Mapping[str, str]) -> list[FileRule]:
    """Return the rules of a file.

    Raises:
        InvalidFile: the text is no YAML, has no list of rules, or names an unknown variable.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{mark.line + 1}: " if mark is not None else ""
        raise InvalidFile(f"{where}not YAML: {getattr(error, 'problem', error)}") from None
    listed = content.get("rules") if isinstance(content, dict) else None
    if root is None or not isinstance(listed, list) or set(content) != {"rules"}:
        raise InvalidFile("1: the file must have one key, `rules`, with a list of rules")
    nodes = yaml_lines.node_at(root, ["rules"])[0].value
    lines = text.splitlines()
    rules = [
        _rule(value, node, variables, lines) for value, node in zip(listed, nodes, strict=True)
    ]
    seen: set[str] = set()
    for rule in rules:
        if rule.id in seen:
            raise InvalidFile(f"{rule.location_of('id')}: the id {rule.id} is used twice")
        seen.add(rule.id)
    return rules


def _rule(
    value: Any, node: yaml.Node, variables: Mapping[str, str], lines: Sequence[str]
) -> FileRule:
    if not isinstance(value, dict) or not isinstance(value.get("id"), str):
        line = node.start_mark.line + 1
        raise InvalidFile(f"{line}: a rule is a mapping with an `id`")
    if "owner" in value:
        line = yaml_lines.line_of(node, ["owner"])
        raise InvalidFile(f"{line}: a rule that is applied belongs to the caller: remove `owner`")
    unset: dict[yaml_lines.Place, list[str]] = {}
    expanded: dict[str, Any] = yaml_lines.expanded(value, variables, unset)
    for path, [name, *_] in unset.items():
        line = yaml_lines.line_of(node, path)
        raise InvalidFile(f"{line}: the variable {name} is not set")
    return FileRule(expanded, node, lines)


def _text_of(node: yaml.Node, lines: Sequence[str]) -> tuple[int, int] | None:
    """Return the line and the column where a text begins; None if YAML has folded its lines."""
    if not isinstance(node, yaml.ScalarNode):
        return None
    begin, end = node.start_mark, node.end_mark
    if node.style == "|":  # the text begins in the next line, after the indentation
        following = lines[begin.line + 1] if begin.line + 1 < len(lines) else ""
        return begin.line + 2, len(following) - len(following.lstrip()) + 1
    if node.style == ">" or begin.line != end.line:
        return None
    is_quoted = node.style is not None
    return begin.line + 1, begin.column + 1 + is_quoted
