"""The console's files: what they contain, and how large they are."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import unicodedata
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

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


def lanes_of(tmp_path: Path, items: list[dict[str, Any]], now: int) -> dict[str, Any]:
    """Return what `lanes.js` makes of these items of a transcript."""
    node.packages("console")  # skips without Node
    script = tmp_path / "lanes.mjs"
    script.write_text(
        f"import {{ lanes }} from {json.dumps((FOLDER / 'console/lanes.js').as_uri())};\n"
        "import { readFileSync } from 'node:fs';\n"
        "const { items, now } = JSON.parse(readFileSync(0, 'utf8'));\n"
        "console.log(JSON.stringify(lanes(items, now)));\n"
    )
    given = json.dumps({"items": items, "now": now})
    done = subprocess.run(["node", script], input=given, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_timeline_has_a_lane_for_each_source_and_no_room_for_long_waits(tmp_path: Path) -> None:
    def item(
        kind: str, begin_s: float, end_s: float | None = None, **fields: Any
    ) -> dict[str, Any]:
        at = datetime(2026, 1, 1, tzinfo=UTC)
        until = None if end_s is None else (at + timedelta(seconds=end_s)).isoformat()
        return {
            **{"kind": kind, "at": (at + timedelta(seconds=begin_s)).isoformat(), "until": until},
            **{"key": f"{kind} {begin_s}", **fields},
        }

    now_ms = int((datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=3610)).timestamp() * 1000)
    items = [
        item("note", 0, text="no lane"),
        item("message", 0, 2, who="Vana", role="worker"),
        item("tool", 1, 3, tool="search", state="ok"),
        item("tool", 2, 4, tool="search", state="ok"),  # beside the first one
        item("approval", 4, 3604),  # an hour without a change
        item("tool", 3604, 3606, tool="delete"),
        item("step", 3606, name="report"),  # it goes on
    ]
    found = lanes_of(tmp_path, items, now_ms)
    lanes = {(each["kind"], each["name"]): each["rows"] for each in found["lanes"]}
    assert [*lanes] == [
        *(("worker", "Vana"), ("tool", "search"), ("approval", "")),
        *(("tool", "delete"), ("step", "")),
    ]
    assert [len(row) for row in lanes["tool", "search"]] == [1, 1]
    [gap] = found["breaks"]
    assert gap["ms"] == 3_600_000
    # 4 s before the wait, 1 s for it, and 6 s after it.
    [[wait]] = lanes["approval", ""]
    assert (wait["from"], wait["to"]) == pytest.approx((4 / 11, 5 / 11))
    assert wait["took"] == 3_600_000
    [[step]] = lanes["step", ""]
    assert (step["from"], step["to"]) == pytest.approx((7 / 11, 1))
    assert step["state"] == "running"


def test_a_timeline_of_very_many_items_has_few_bars(tmp_path: Path) -> None:
    items = [
        {"kind": "tool", "tool": "t", "state": "ok", "key": str(n), "at": at, "until": at}
        for n in range(20_000)
        for at in [f"2026-01-01T00:{n // 1000:02d}:{n % 1000 * 0.06:06.3f}Z"]
    ] + [
        {"kind": "tool", "tool": f"{n}", "key": f"l{n}", "at": "2026-01-01T00:00:00Z"}
        for n in range(500)
    ]
    found = lanes_of(tmp_path, items, 0)
    assert len(found["lanes"]) <= 61
    bars = [bar for lane in found["lanes"] for row in lane["rows"] for bar in row]
    assert sum(bar["count"] for bar in bars) == len(items)
    assert len([bar for bar in bars if bar["item"]["tool"] == "t"]) < 1000
