"""Read a policy from YAML or JSON, and name each mistake with its line. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import yaml
from pydantic import ValidationError
from yaml.nodes import Node

from penstock.expressions import ExpressionError
from penstock.validation import reason_of
from penstock.yaml_lines import REPEATED_KEY, line_of, repeated_keys
from penstock_approvals.policy.model import BUILTIN, Document, Source
from penstock_approvals.policy.rulings import CONDITIONS, Policy

MAX_BYTES: Final = 512 * 1024


class Mistake(NamedTuple):
    """A mistake in a policy. `line` counts from 1; it is 0 for a policy without a text."""

    field: str
    reason: str
    line: int = 0

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line else ""
        return f"{place}{self.field}: {self.reason}" if self.field else f"{place}{self.reason}"


class InvalidPolicy(ValueError):
    """The error for a policy with mistakes. The text names each mistake."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("; ".join(map(str, mistakes)))
        self.mistakes = list(mistakes)


def parse(text: str, source: Source = "file") -> Policy:
    """Return the policy that a text in YAML (or JSON) describes. Raises InvalidPolicy."""
    if len(text.encode(errors="replace")) > MAX_BYTES:
        raise InvalidPolicy([Mistake("", f"a policy has at most {MAX_BYTES} bytes")])
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if twice := list(repeated_keys(root)):
            raise InvalidPolicy([Mistake(key, REPEATED_KEY, line) for key, line in twice])
        value = yaml.safe_load(text)
    except InvalidPolicy:
        raise
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 0
        mistake = Mistake("", f"not YAML: {error.problem or error.context}", line)
        raise InvalidPolicy([mistake]) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InvalidPolicy([Mistake("", f"not YAML: {error}")]) from None
    return from_value(value, source, root)


def from_value(value: Any, source: Source, root: Node | None = None) -> Policy:
    """Return the policy that a value describes; `root` is its YAML node. Raises InvalidPolicy."""
    mistakes: list[tuple[Sequence[int | str], str]] = []
    try:
        document = Document.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        mistakes = [(each["loc"], reason_of(each)) for each in found]
        document = BUILTIN
    for number, rule in enumerate(document.rules):
        if rule.when is None:
            continue
        try:
            CONDITIONS.compile(rule.when)
        except ExpressionError as error:
            mistakes.append((("rules", number, "when"), str(error)))
    if mistakes:
        lines = [Mistake(_name(path), reason, line_of(root, path)) for path, reason in mistakes]
        raise InvalidPolicy(lines)
    return Policy(document, source)


def _name(path: Sequence[int | str]) -> str:
    """Return a path as `rules[2].deadline`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")
