"""The pages of docs/clients: their code runs as it is, against the demo."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from support.drive.repository import ROOT
from support.real.agui_client import INSTALLED
from support.real.node import absent, packages

pytestmark = pytest.mark.real

PAGES = ROOT / "docs" / "clients"
DONE = "Done: report.txt is gone."


def code(page: str, language: str) -> str:
    """Return all code of this language on the page, as one program."""
    found = re.findall(rf"```{language}\n(.*?)```", (PAGES / page).read_text("utf-8"), re.DOTALL)
    assert found, f"{page} has no {language}"
    return "\n".join(found)


def finished(demo: str, folder: Path, *command: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PENSTOCK": demo},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_for_curl(demo: str, tmp_path: Path) -> None:
    finished(demo, tmp_path, "bash", "-eu", "-o", "pipefail", "-c", code("curl.md", "sh"))
    events = (tmp_path / "events.txt").read_text()
    assert "event: lifecycle.completed" in events
    rest = (tmp_path / "rest.txt").read_text()
    ids, further = (re.findall("^id: (.*)$", text, re.MULTILINE) for text in (events, rest))
    assert ids[3:] == further


@pytest.mark.parametrize("page", ["eventsource.md", "ag-ui.md"])
def test_the_pages_for_javascript(demo: str, tmp_path: Path, page: str) -> None:
    modules = INSTALLED / "v1" / "node_modules" if page == "ag-ui.md" else packages("restart")
    if not modules.exists():
        absent(f"{modules} is not there: run `make agui-client`")
    (tmp_path / "node_modules").symlink_to(modules)
    (tmp_path / "page.mjs").write_text(code(page, "js"), "utf-8")
    said = finished(demo, tmp_path, "node", "page.mjs")
    assert "→ delete_file" in said
    assert DONE in said


def test_the_versions_that_were_tried_are_those_that_are_installed() -> None:
    index = (PAGES / "README.md").read_text("utf-8")
    table = index.partition("<!-- faces -->")[2].partition("<!-- end of faces -->")[0]
    tried = [row.rsplit("|", 2)[1] for row in table.splitlines()[3:] if row]
    versions = [version for cell in tried for version in re.findall(r"\d+\.\d[.\d]*", cell)]
    files = [*ROOT.glob("deploy/**/*.txt"), *ROOT.glob("deploy/upstreams/*.in")]
    files += [*ROOT.glob("tests/**/package.json"), *ROOT.glob("tests/**/package-lock.json")]
    pins = "\n".join(file.read_text("utf-8") for file in files)
    assert len(versions) > 10
    assert [each for each in versions if f"{each.rstrip('.')}" not in pins] == []


def test_the_index_names_every_page_and_is_named() -> None:
    index = (PAGES / "README.md").read_text("utf-8")
    pages = {page.name for page in PAGES.glob("*.md")} - {"README.md"}
    assert [name for name in sorted(pages) if f"({name})" not in index] == []
    assert "(clients/README.md)" in (ROOT / "docs" / "README.md").read_text("utf-8")
