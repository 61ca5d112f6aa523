"""Reads a policy from YAML or JSON, and names each mistake with its line. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from yaml.nodes import Node

from penstock.documents.reading import Found, checked, value_of
from penstock.documents.store import Source
from penstock.expressions import ExpressionError
from penstock_approvals.policy.model import Document
from penstock_approvals.policy.rulings import CONDITIONS, Policy


def parse(text: str, source: Source = "file") -> Policy:
    """Return the policy that a text in YAML (or JSON) describes. Raises InvalidDocument."""
    value, root = value_of(text)
    return from_value(value, source, root)


def from_value(value: Any, source: Source, root: Node | None = None) -> Policy:
    """Return the policy that a value describes; `root` is its YAML node. Raises
    InvalidDocument."""
    return Policy(checked(Document, value, _wrong_conditions, root), source)


def _wrong_conditions(document: Document) -> Iterator[Found]:
    for number, rule in enumerate(document.rules):
        if rule.when is not None:
            try:
                CONDITIONS.compile(rule.when)
            except ExpressionError as error:
                yield ("rules", number, "when"), str(error)
