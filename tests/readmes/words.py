"""Count the words of the documents for readers, without the generated words."""

from __future__ import annotations

import fnmatch
from pathlib import Path

from readmes.generated import without_generated_parts
from support.drive.repository import ROOT, files

# The READMEs of the product. The READMEs of `tests` and `deploy` and the pages in `docs` have fewer
# readers. The records of decisions and the pages of the published contract are not counted.
READMES = ("README.md", "CONTRIBUTING.md", "services/*/README.md", "shared/*README.md")
DOCUMENTS = (*READMES, "docs/*.md", "tests/*README.md", "deploy/*README.md")
_NOT_COUNTED = "docs/decisions/*"


def counts(patterns: tuple[str, ...]) -> dict[str, int]:
    """Return the number of words of each document whose path matches a pattern.

    The longest document comes first.
    """
    found = {
        name: words(path)
        for path in files()
        if any(fnmatch.fnmatch(name := str(path.relative_to(ROOT)), each) for each in patterns)
        and not fnmatch.fnmatch(name, _NOT_COUNTED)
    }
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def words(path: Path) -> int:
    """Return the number of words of a document, without its generated parts."""
    return len(without_generated_parts(path.read_text("utf-8")).split())
