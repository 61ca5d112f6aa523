"""The words that people have written in the documents for readers."""

from __future__ import annotations

import fnmatch
from pathlib import Path

from readmes.generated import without_generated_parts
from support.drive.repository import ROOT, files

# The READMEs of the product. Those of `tests` and `deploy` and the pages in `docs` are for fewer
# readers. The records of decisions and the pages of the published contract are not counted.
READMES = ("README.md", "CONTRIBUTING.md", "services/*/README.md", "shared/*README.md")
DOCUMENTS = (*READMES, "docs/*.md", "tests/*README.md", "deploy/*README.md")
_NOT_COUNTED = "docs/decisions/*"


def counts(patterns: tuple[str, ...]) -> dict[str, int]:
    """The words of each document whose path matches one of the patterns, the longest first."""
    found = {
        name: words(path)
        for path in files()
        if any(fnmatch.fnmatch(name := str(path.relative_to(ROOT)), each) for each in patterns)
        and not fnmatch.fnmatch(name, _NOT_COUNTED)
    }
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def words(path: Path) -> int:
    """The words of a document, without its generated parts."""
    return len(without_generated_parts(path.read_text("utf-8")).split())
