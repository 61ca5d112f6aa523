"""The code of docs/clients/vercel.md as modules that a node process can load, as it is."""

from __future__ import annotations

import re
from pathlib import Path

from support.drive.repository import ROOT
from support.real.node import packages, run
from support.real.vercel_client import VERSIONS

PAGE = ROOT / "docs/clients/vercel.md"
_TO_JAVASCRIPT = """
import ts from 'typescript';
import { readFileSync, writeFileSync } from 'node:fs';
const { ESNext } = ts.ModuleKind;
const jsx = ts.JsxEmit.ReactJSX;
const compilerOptions = { jsx, module: ESNext, target: ts.ScriptTarget.ES2022 };
const made = ts.transpileModule(readFileSync('page.jsx', 'utf8'), { compilerOptions });
writeFileSync('page.mjs', made.outputText);
"""


def code(language: str, has: str) -> str:
    """Return the block of this language that contains a text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (found,) = (block for block in blocks if has in block)
    return str(found)


def transport(folder: Path, version: str) -> Path:
    """Write the transport, whose `ai` is of this version; return the module's path."""
    installed = packages("vercel")
    place = folder / VERSIONS[version]
    (place / "node_modules").mkdir(parents=True)
    (place / "node_modules/ai").symlink_to(installed / VERSIONS[version])
    module = place / "transport.mjs"
    module.write_text(code("js", "class ExactTransport"), "utf-8")
    return module


def page(folder: Path) -> Path:
    """Write the page as JavaScript; return the module's path."""
    (folder / "node_modules").symlink_to(packages("vercel"))
    (folder / "page.jsx").write_text(code("jsx", "useChat"), "utf-8")
    (folder / "make.mjs").write_text(_TO_JAVASCRIPT, "utf-8")
    made = run("make.mjs", cwd=folder)
    assert made.returncode == 0, made.stderr
    return folder / "page.mjs"
