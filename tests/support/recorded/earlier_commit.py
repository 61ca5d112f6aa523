"""The services of an earlier commit, taken from the repository's history."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from support.drive.repository import ROOT

RELEASE_0_1 = "2c0f51c"


def former(commit: str, folder: Path) -> str:
    """Return the PYTHONPATH of that commit's services; skip if the history lacks the commit."""
    archive = subprocess.run(
        ["git", "-C", ROOT, "archive", commit, "shared", "services"],
        capture_output=True,
        check=False,
    )
    if archive.returncode != 0:
        pytest.skip(f"no commit {commit} here: a shallow clone")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    members = [folder / "shared", *sorted((folder / "services").iterdir())]
    return os.pathsep.join(map(str, members))
