"""Services of an earlier commit, as they were, from the repository's own history."""

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
    """The PYTHONPATH of that commit's services; skips where the history does not go so far."""
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
