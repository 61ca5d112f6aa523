"""Relative links of the documents lead to existing files and headings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.drive.repository import ROOT

FOLDERS = ("clients", "deploy", "docs", "services", "shared", "tests")
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md"))),
]
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings in GitHub's form."""
    text = re.sub(r"```.*?```", "", document.read_text("utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_its_heading(document: Path) -> None:
    text = CODE.sub("", document.read_text("utf-8"))
    missing = []
    for link, anchor in LINK.findall(text):
        target = document.parent / link if link else document
        if target.is_dir() and anchor:
            target /= "README.md"
        known = target.exists() and (not anchor or anchor in anchors(target))
        missing += [] if known else [f"{link}#{anchor}"]
    assert missing == []


def test_every_decision_that_code_names_is_there() -> None:
    known = {path.name[:4] for path in (ROOT / "docs/decisions").glob("[0-9]*.md")}
    named = {
        (str(path.relative_to(ROOT)), number)
        for folder in ("services", "shared", "tests")
        for path in (ROOT / folder).rglob("*.py")
        for number in re.findall(r"\bdecisions?[\s/]+(0\d{3})\b", path.read_text("utf-8"))
    }
    assert len(named) > 40
    assert [each for each in sorted(named) if each[1] not in known] == []
