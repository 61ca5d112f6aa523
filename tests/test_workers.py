"""Tests run once each in the processes of `--workers`, and a process that ends is reported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.drive.repository import ROOT

FILES = {
    "test_good.py": "def test_one(): pass\ndef test_two(): print('said', end='')\n",
    "test_bad.py": "def test_wrong():\n    print('seen by its report')\n    assert 0\n",
    "test_dead.py": "import os\ndef test_dies(): os._exit(3)\ndef test_after(): pass\n",
    "test_torn.py": (
        "import pytest\n"
        "@pytest.fixture(scope='module')\n"
        "def made():\n    yield\n    raise KeyError('the end of a module')\n"
        "def test_last(made): pass\n"
    ),
}


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    for name, text in FILES.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "support.real.workers", "--workers", "2"]
    where = ["-c", os.devnull, "--rootdir", str(folder), "-p", "no:cacheprovider", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    return subprocess.run(
        [*command, *where, *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_each_test_is_run_and_reported_once_and_a_dead_process_fails_its_test(
    tmp_path: Path,
) -> None:
    done = run(tmp_path)
    assert done.returncode == 1, done.stdout
    assert "2 failed, 3 passed, 1 error in" in done.stdout
    assert "seen by its report" in done.stdout
    assert "ended with exit code 3 in this test" in done.stdout
    assert "KeyError: 'the end of a module'" in done.stdout
    assert "said" not in done.stdout


def test_the_first_failure_ends_all_processes_if_asked(tmp_path: Path) -> None:
    done = run(tmp_path, "-x")
    assert done.returncode == 1
    assert "stopping after 1 failures" in done.stdout
