"""The words that people have written in the READMEs."""

from __future__ import annotations

import fnmatch
from pathlib import Path

from readmes.generated import without_generated_parts
from support.drive.repository import ROOT, files

# The documents for readers. The records of decisions, the catalogues that are generated, and the
# page that is a part of the published contract are not among them.
_COUNTED = ("README.md", "CONTRIBUTING.md", "docs/*.md", "*/README.md")
_NOT_COUNTED = ("docs/decisions/*",)


def readmes() -> list[Path]:
    """The documents whose words are counted."""
    return [
        path
        for path in files()
        if _matches(path, _COUNTED) and not _matches(path, _NOT_COUNTED) and path.is_file()
    ]


def words(path: Path) -> int:
    """The words of a document, without its generated parts."""
    return len(without_generated_parts(path.read_text("utf-8")).split())


def _matches(path: Path, patterns: tuple[str, ...]) -> bool:
    name = str(path.relative_to(ROOT))
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
