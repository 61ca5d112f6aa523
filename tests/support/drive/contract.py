"""Readers of the committed contract."""

from __future__ import annotations

import json
import re
from typing import Any

from support.drive.repository import ROOT

CONTRACT = ROOT / "deploy/contract"


def schemas(folder: str = "schemas") -> dict[str, dict[str, Any]]:
    """Return every schema under deploy/contract/<folder>, by its path without `.json`."""
    base = CONTRACT / folder
    return {
        path.relative_to(base).with_suffix("").as_posix(): json.loads(path.read_text())
        for path in sorted(base.rglob("*.json"))
    }


def section(heading: str) -> str:
    """Return the text under the heading `## …` of consuming.md."""
    document = (CONTRACT / "consuming.md").read_text()
    found = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", document, re.MULTILINE | re.DOTALL))
    return str(found[heading])


def block(heading: str, language: str) -> str:
    """Return the code block of `language` under the heading `## …` of consuming.md."""
    [code] = re.findall(rf"^```{language}\n(.*?)^```", section(heading), re.MULTILINE | re.DOTALL)
    return str(code)
