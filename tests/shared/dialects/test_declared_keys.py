"""Decoders read no key of an upstream that its `frames.py` does not declare.

mypy finds a misspelt key where it is passed to a reader of `penstock.dialects.json`. It does not
find one that is only compared (`body.get("partail") is True`), so this check reads the source.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import is_typeddict

import pytest

from penstock.dialects.adk.decode import frames as adk
from penstock.dialects.agno.decode import frames as agno
from penstock.dialects.agui.decode import frames as agui
from support.drive.repository import ROOT

DECLARED = {"adk": adk, "agno": agno, "agui": agui}

# Keys of objects that are neither frames nor made by the decoder itself.
DECISION = {"decision", "note", "value", "args", "expired"}
SCHEMA = {"properties"}
ANSWER = {"approved", "editedArgs", "values"}  # what a client answers to an interrupt


def keys_read(source: str) -> Iterator[tuple[str, int]]:
    """Yield the literal keys that a module reads from objects, each with its line."""
    for node in ast.walk(ast.parse(source)):
        key: ast.expr | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            key = node.args[0] if node.func.attr in ("get", "pop") and node.args else None
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            key = node.slice
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            key = node.left
        if (
            isinstance(key, ast.Constant)
            and isinstance(key.value, str)
            and key.value.isidentifier()
        ):
            yield key.value, key.lineno


def keys_written(source: str) -> Iterator[str]:
    """Yield the keys of the objects that a module makes: drafts, snapshots and dataclasses."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict):
            yield from (str(key.value) for key in node.keys if isinstance(key, ast.Constant))
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            if isinstance(node.slice, ast.Constant):
                yield str(node.slice.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg


def undeclared(dialect: str, sources: dict[str, str]) -> list[str]:
    """Return each key that is read but neither declared nor written, with its place."""
    module = DECLARED[dialect]
    shapes = [each for each in vars(module).values() if is_typeddict(each)]
    known = {key for shape in shapes for key in shape.__annotations__}
    known |= DECISION | SCHEMA | ANSWER
    known |= {key for source in sources.values() for key in keys_written(source)}
    return [
        f"{name}:{line}: {key}"
        for name, source in sources.items()
        for key, line in keys_read(source)
        if key not in known
    ]


def sources_of(dialect: str) -> dict[str, str]:
    folder = ROOT / "shared/penstock/dialects" / dialect / "decode"
    return {path.name: path.read_text() for path in sorted(Path(folder).glob("*.py"))}


@pytest.mark.parametrize("dialect", DECLARED)
def test_every_key_that_a_decoder_reads_is_declared(dialect: str) -> None:
    assert undeclared(dialect, sources_of(dialect)) == []


@pytest.mark.parametrize(
    ("dialect", "module", "key"),
    [
        ("adk", "decoder.py", "partial"),
        ("agno", "messages.py", "reasoning_content"),
        ("agui", "messages.py", "delta"),
    ],
)
def test_a_misspelt_key_is_found(dialect: str, module: str, key: str) -> None:
    sources = sources_of(dialect)
    read = f'get("{key}")'
    assert read in sources[module]
    sources[module] = sources[module].replace(read, f'get("{key}x")')
    assert any(found.endswith(f": {key}x") for found in undeclared(dialect, sources))
