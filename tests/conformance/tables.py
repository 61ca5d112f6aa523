"""The tables, the index of all existing tests, and the page that is made from both."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from conformance import a2a, adk, agent_runs, agno, executions, openai, unified, vercel
from conformance.rows import Document, Example, Row, Verdict

DOCUMENTS: Final = tuple(
    module.DOCUMENT for module in (executions, unified, agno, adk, agent_runs, vercel, a2a, openai)
)
TESTS: Final = Path(__file__).resolve().parents[1]
PAGE: Final = TESTS.parent / "deploy/contract/conformance.md"

# `_ENCODERS` matches files that test encoders alone. `_DECODERS` matches files whose tests end at a
# decoder or at a model.
_ENCODERS: Final = re.compile(r"/shared/dialects/(?:\w+/)?test_(\w+_encode\w*|encoders_\w+)\.py$")
_DECODERS: Final = re.compile(
    r"/shared/dialects/(?:\w+/)?test_((?!\w*encode)\w+)\.py$|/conformance/test_examples\.py$"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Test:
    """One test, as its file defines it. `skipped` is true only if the test never runs.

    `by_hand` is true if the test feeds an encoder with canonical events that the test itself makes,
    and with no recorded run.
    """

    path: str  # relative to the repository's root
    name: str
    skipped: bool
    by_hand: bool = False


@cache
def known() -> dict[str, Test]:
    """Return every test by its name in the tables."""
    found: dict[str, Test] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        module = f"{_part(path)}/{path.stem.removeprefix('test_')}"
        where = path.relative_to(TESTS.parent).as_posix()
        for test in read_tests(where, path.read_bytes()):
            name = f"{module}::{test.name.removeprefix('test_')}"
            assert name not in found, f"two tests are named {name}"
            found[name] = test
    return found


def _part(path: Path) -> str:
    """Return the part of Penstock that a file tests: `edge`, `e2e`, `dialects`."""
    folders = path.relative_to(TESTS).parts[:-1]
    return (
        folders[1] if folders[:1] == ("shared",) and len(folders) > 1 else (*folders, TESTS.name)[0]
    )


def read_tests(path: str, source: bytes) -> Iterator[Test]:
    """Read the tests of a file from its source."""
    body = ast.parse(source).body
    none_runs = any(_skips(node) for node in body if _marks_the_module(node))
    for node in body:
        if isinstance(node, Function) and node.name.startswith("test_"):
            skipped = none_runs or any(
                _skips(each)
                for each in (*node.decorator_list, node.body[0])
                if not isinstance(each, ast.If)  # a condition, as that of `skipif`
            )
            yield Test(path, node.name, skipped, _is_by_hand(path, node))


def _is_by_hand(path: str, test: Function) -> bool:
    """Return whether this is a test of an encoder that names nothing recorded."""
    if not _ENCODERS.search(path):
        return False
    names = {
        *(each.id for each in ast.walk(test) if isinstance(each, ast.Name)),
        *(each.arg for each in ast.walk(test) if isinstance(each, ast.arg)),
    }
    return not any("recorded" in name for name in names)


def without_a_real_path(document: Document) -> list[str]:
    """Return the statements that are marked HOLDS without a test from an agent server's bytes on.

    The statements EX, UN and AR are about what clients read. For them, a test that ends at the
    decoder shows only half of the way.
    """
    return [
        row.id
        for row in document.rows
        if row.verdict is Verdict.HOLDS
        and not any(_is_real(known()[test], document.prefix) for test in row.tests)
    ]


def _is_real(test: Test, prefix: str) -> bool:
    if test.by_hand:
        return False
    return prefix in ("AG", "AD") or not _DECODERS.search(test.path)


def _marks_the_module(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
    )


def _skips(node: ast.AST) -> bool:
    """Return whether the node has a `skip` or `xfail` mark or call; `skipif` does not count."""
    return any(
        isinstance(each, ast.Attribute) and each.attr in ("skip", "xfail")
        for each in ast.walk(node)
    )


def unknown(named: Row | Example) -> list[str]:
    """Return the named tests that do not exist or never run."""
    return [test for test in named.tests if test not in known() or known()[test].skipped]


def page() -> str:
    """Return the text of deploy/contract/conformance.md."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    rows = [row for document in DOCUMENTS for row in document.rows]
    yield "# The statements of each contract, and the tests that show them"
    yield ""
    yield (
        f"The documents make {len(rows)} statements that can be tested. This page says of "
        "each statement whether it holds, and names the tests that show it. A statement that holds "
        "has at least one test from an agent server's bytes to the client's bytes, or a test of "
        "the running service. If the document leaves something open, the page says what Penstock "
        "does. `make contract` writes this page from tests/conformance, and a test fails if a "
        "named test does not exist."
    )
    yield ""
    yield f"| document | statements | {' | '.join(each.value for each in Verdict)} |"
    yield f"|---|---|{'---|' * len(Verdict)}"
    for document in DOCUMENTS:
        yield _counts(f"[{document.name}](#{_anchor(document)})", document.rows)
    yield _counts("all", rows)
    for document in DOCUMENTS:
        yield from _section(document)


def _counts(name: str, rows: Sequence[Row]) -> str:
    counted = Counter(row.verdict for row in rows)
    cells = [str(counted[verdict] or "") for verdict in Verdict]
    return f"| {name} | {len(rows)} | {' | '.join(cells)} |"


def _anchor(document: Document) -> str:
    """Return the heading's anchor on GitHub."""
    return re.sub(r"[^\w -]", "", document.name.lower()).replace(" ", "-")


def _section(document: Document) -> Iterator[str]:
    yield ""
    yield f"## {document.name}"
    yield ""
    yield f"The document describes {document.about}."
    yield ""
    yield "| | statement | | shown by |"
    yield "|---|---|---|---|"
    for row in document.rows:
        statement = f"{row.statement}. {row.note}" if row.note else row.statement
        yield f"| {row.id} | {_cell(statement)} | {row.verdict.value} | {_links(row.tests)} |"
    if document.examples:
        yield ""
        yield "These are the document's own examples:"
        yield ""
        yield "| example | used by |"
        yield "|---|---|"
    for each in document.examples:
        yield f"| {_cell(each.name)} | {_links(each.tests)} |"
    if document is DOCUMENTS[-1]:
        yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _links(tests: Sequence[str]) -> str:
    return "<br>".join(_link(known()[test]) for test in tests)


def _link(test: Test) -> str:
    words = test.name.removeprefix("test_").replace("_", " ")
    return f"[{words}](../../{test.path})"
