"""What the tables are made of: statements, the documents' own examples, and how each is shown.

A test is named `part/module::name`, whichever folder of the part it is in:
`edge/run_sse::snake_case_is_accepted` is `test_snake_case_is_accepted` in
`edge/surfaces/adk/test_run_sse.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """What became of a statement."""

    HOLDS = "holds"
    OTHERWISE = "otherwise, on purpose"
    ELSEWHERE = "out of scope"
    NOT_YET = "not built yet"


@dataclass(frozen=True, slots=True)
class Row:
    """One statement. `note` says what we do besides or instead, or why there is no test."""

    id: str
    statement: str
    verdict: Verdict
    tests: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Example:
    """One example of the document, under its heading there."""

    name: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A contract: `rows` from 1 on without a gap, their ids beginning with `prefix`."""

    name: str
    prefix: str
    about: str
    rows: tuple[Row, ...]
    examples: tuple[Example, ...]


def holds(id: str, statement: str, *tests: str, note: str = "") -> Row:
    """It is so, and these tests show it."""
    return Row(id, statement, Verdict.HOLDS, tests, note)


def otherwise(id: str, statement: str, note: str, *tests: str) -> Row:
    """It is not so on purpose: `note` says why, and the tests show what is done instead."""
    return Row(id, statement, Verdict.OTHERWISE, tests, note)


def elsewhere(id: str, statement: str, note: str) -> Row:
    """It is not for a server to fulfil."""
    return Row(id, statement, Verdict.ELSEWHERE, (), note)


def not_yet(id: str, statement: str, note: str, *tests: str) -> Row:
    """It does not hold today; `tests` show the part that does."""
    return Row(id, statement, Verdict.NOT_YET, tests, note)


def example(name: str, *tests: str) -> Example:
    """An example, and the tests that use it."""
    return Example(name, tests)
