"""The mistakes of a definition, each with its place and its reason. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from penstock.expressions import Position

Path: TypeAlias = tuple[str | int, ...]
MAX_PROBLEMS: Final = 100


@dataclass(frozen=True, slots=True)
class Problem:
    """A mistake in a definition.

    `path` is the place in the definition. If `is_key` is True, the last key of the path is wrong;
    otherwise the value is wrong. If the mistake is in an expression, `inside` is the place in this
    expression. If the definition comes from a document, `position` is the place in the document.
    """

    path: Path
    reason: str
    inside: Position | None = None
    is_key: bool = False
    position: Position | None = None

    def at(self, position: Position) -> Problem:
        """Return the problem with its position in the document; a known one stays."""
        return self if self.position is not None else replace(self, position=position)

    @property
    def field(self) -> str:
        return ".".join(map(str, self.path)) or "definition"

    def __str__(self) -> str:
        where = self.position or self.inside
        place = f"line {where.line}, column {where.column}: " if where is not None else ""
        return f"{place}{self.field}: {self.reason}"

    def shown(self) -> dict[str, Any]:
        where = self.position or self.inside
        place = {"line": where.line, "column": where.column} if where is not None else {}
        return {"field": self.field, "message": self.reason, **place}


class InvalidDefinition(ValueError):
    """A definition has mistakes, which `problems` lists, at most `MAX_PROBLEMS` of them."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        found = tuple(problems)
        if len(found) > MAX_PROBLEMS:
            reason = f"there are more mistakes than these {MAX_PROBLEMS}"
            found = (*found[:MAX_PROBLEMS], replace(found[MAX_PROBLEMS], reason=reason))
        self.problems = found
        super().__init__("; ".join(map(str, self.problems)))
