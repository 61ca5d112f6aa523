"""The console's files: what they contain, and how large they are."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import unicodedata
from pathlib import Path

import pytest

from penstock.visible import visible
from penstock_console import unseen
from penstock_console.files import FOLDER, TYPES
from support.drive.repository import ROOT
from support.real import node

SCRIPTS = [path for path in sorted(FOLDER.rglob("*.js")) if path.parent.name != "vendor"]
VENDORED = FOLDER / "vendor/htm-preact-3.1.1.js"
MAX_GZIP_BYTES = 120_000


def served() -> list[Path]:
    return [path for path in FOLDER.rglob("*") if path.suffix in TYPES]


def test_all_files_but_the_apis_document_are_small() -> None:
    files = [path for path in served() if path.name != "openapi.json"]
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) < MAX_GZIP_BYTES


def test_the_vendored_library_is_the_published_one() -> None:
    published = node.packages("console") / "htm/preact/standalone.module.js"
    assert VENDORED.read_bytes() == published.read_bytes()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_writes_no_markup_and_names_no_other_host(script: Path) -> None:
    text = script.read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b", text)
    assert not re.search(r"https?://", text)


@pytest.mark.parametrize("script", sorted((FOLDER / "console").glob("*.js")), ids=lambda p: p.name)
def test_only_one_module_uses_the_library_whose_texts_are_not_marked(script: Path) -> None:
    assert ("vendor/" in script.read_text()) == (script.name == "view.js")


def test_the_scripts_have_no_mistake_that_the_type_checker_finds() -> None:
    compiler = node.packages("contract") / "typescript/bin/tsc"
    done = node.run(compiler, "-p", ROOT / "tests/console/tsconfig.json", cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_the_table_of_unseen_characters_is_the_one_of_the_terminal() -> None:
    assert (FOLDER / "unseen.js").read_text() == unseen.script(), "run `make contract`"


def test_a_page_marks_what_the_terminal_marks(tmp_path: Path) -> None:
    """Unassigned characters are left out: a browser may know a later Unicode than Python."""
    texts = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    assigned = [each for each in texts if unicodedata.category(each) != "Cn"]
    node.packages("console")  # skips without Node
    script = tmp_path / "marks.mjs"
    script.write_text(
        f"import {{ UNSEEN_OR_SPACE }} from {json.dumps((FOLDER / 'unseen.js').as_uri())};\n"
        "import { readFileSync } from 'node:fs';\n"
        "const all = JSON.parse(readFileSync(0, 'utf8'));\n"
        "console.log(JSON.stringify(all.filter((each) => UNSEEN_OR_SPACE.test(each))));\n"
    )
    done = subprocess.run(
        ["node", script], input=json.dumps(assigned), capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [each for each in assigned if visible(each) != each]
