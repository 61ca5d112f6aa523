"""Links of the documents lead to files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.drive.repository import ROOT

FOLDERS = ("deploy", "docs", "services", "shared", "tests")
DOCUMENTS = [
    ROOT / "README.md",
    *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md"))),
]
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file(document: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", document.read_text(), flags=re.DOTALL)
    missing = [link for link in LINK.findall(text) if not (document.parent / link).exists()]
    assert missing == []
