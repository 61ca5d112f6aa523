"""The types of the tables: statements, the documents' examples, and the tests that show them.

A test is named `part/module::name`, without the folders below the part:
`edge/run_sse::snake_case_is_accepted` is `test_snake_case_is_accepted` in
`edge/surfaces/adk/test_run_sse.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """Whether Penstock fulfils a statement."""

    HOLDS = "holds"
    OTHERWISE = "otherwise, on purpose"
    ELSEWHERE = "out of scope"
    NOT_YET = "not built yet"


@dataclass(frozen=True, slots=True)
class Row:
    """One statement. `note` says what Penstock does besides or instead, or why there is no test."""

    id: str
    statement: str
    verdict: Verdict
    tests: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Example:
    """One example of the document, named by its heading there."""

    name: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """One contract. The ids of `rows` are `prefix` and a number, from 1 on without a gap."""

    name: str
    prefix: str
    about: str
    rows: tuple[Row, ...]
    examples: tuple[Example, ...]


def holds(id: str, statement: str, *tests: str, note: str = "") -> Row:
    """Return a row whose statement holds, as these tests show."""
    return Row(id, statement, Verdict.HOLDS, tests, note)


def otherwise(id: str, statement: str, note: str, *tests: str) -> Row:
    """Return a row whose statement does not hold on purpose.

    `note` says why, and the tests show what Penstock does instead.
    """
    return Row(id, statement, Verdict.OTHERWISE, tests, note)


def elsewhere(id: str, statement: str, note: str) -> Row:
    """Return a row whose statement no server can fulfil."""
    return Row(id, statement, Verdict.ELSEWHERE, (), note)


def not_yet(id: str, statement: str, note: str, *tests: str) -> Row:
    """Return a row whose statement does not hold today; `tests` show the part that does."""
    return Row(id, statement, Verdict.NOT_YET, tests, note)


def example(name: str, *tests: str) -> Example:
    """Return an example with the tests that use it."""
    return Example(name, tests)
