"""The files and the services of the repository."""

from __future__ import annotations

import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]

_MADE = {".git", ".venv", ".penstock", ".hypothesis", "__pycache__", "build", "dist"}


@cache
def files() -> tuple[Path, ...]:
    """Return the files that git tracks or would track, as they were at the first call.

    Outside a git checkout, return all files except generated ones.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        paths = [ROOT / name.decode() for name in listed.stdout.split(b"\0") if name]
    else:
        paths = [path for path in ROOT.rglob("*") if not _MADE & set(path.parts)]
    return tuple(sorted(path for path in paths if path.is_file()))


def toml(path: str) -> dict[str, Any]:
    """Read a TOML file of the repository."""
    return tomllib.loads((ROOT / path).read_text())


def services() -> list[str]:
    """Return the services' names, which are the names of their folders."""
    return sorted(path.parent.name for path in ROOT.glob("services/*/pyproject.toml"))
