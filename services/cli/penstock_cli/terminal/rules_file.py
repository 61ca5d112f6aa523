"""Reads a YAML file of rules, and finds the line of each field. Pure.

The value of the environment variable NAME replaces `${NAME}`, so that the file needs no secrets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from penstock import yaml_lines
from penstock.yaml_lines import repeated_keys


class InvalidFile(ValueError):
    """The error for a text that is no valid file of rules. The error's text names the line."""


@dataclass(frozen=True, slots=True)
class FileRule:
    """A rule in a file, with its value, its node and the lines of the file. `unset` are the fields
    that name a variable which is not set."""

    value: dict[str, Any]
    node: yaml.Node
    lines: Sequence[str]
    unset: frozenset[str]

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


def read_rules(text: str, variables: Mapping[str, str]) -> tuple[list[FileRule], list[str]]:
    """Return the rules of a file, and its mistakes, each as `LINE: REASON`.

    The mistakes are those of the file, such as an unknown variable. A rule is checked by
    `rules_check` or by the server. Raises InvalidFile if the text is no YAML, or has no list of
    rules.
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
    found: list[FileRule] = []
    wrong = [f"{line}: {key}: {yaml_lines.REPEATED_KEY}" for key, line in repeated_keys(root)]
    for value, node in zip(listed, nodes, strict=True):
        if not isinstance(value, dict) or not isinstance(value.get("id"), str):
            wrong.append(f"{node.start_mark.line + 1}: a rule is a mapping with an `id`")
            continue
        rule, unset = _rule(value, node, variables, lines)
        wrong += unset
        if rule.id in {each.id for each in found}:
            wrong.append(f"{rule.location_of('id')}: the id {rule.id} is used twice")
        found.append(rule)
    return found, wrong


def _rule(
    value: dict[str, Any], node: yaml.Node, variables: Mapping[str, str], lines: Sequence[str]
) -> tuple[FileRule, list[str]]:
    unset: dict[yaml_lines.Place, list[str]] = {}
    expanded: dict[str, Any] = yaml_lines.expanded(value, variables, unset)
    wrong = [
        f"{yaml_lines.line_of(node, path)}: the variable {name} is not set"
        for path, names in unset.items()
        for name in names
    ]
    if "owner" in value:
        line = yaml_lines.line_of(node, ["owner"])
        wrong.append(f"{line}: a rule that is applied belongs to the caller: remove `owner`")
        del expanded["owner"]
    return FileRule(
        expanded, node, lines, frozenset(".".join(map(str, each)) for each in unset)
    ), wrong


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
