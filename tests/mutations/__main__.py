"""`python -m mutations [WORD…]`: make each fault in a copy and check that its tests catch it.

With words, only the faults whose sentence contains one of the words are made. A test that fails
with the fault must pass without it: a test that always fails catches nothing. The exit code is 1 if
a fault is not caught, if the code that it changes is not found, or if its tests cannot run.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, Literal

from mutations.table import Mutation, NotInPlace, mutations
from support.drive.repository import ROOT, files

Result = Literal["caught", "NOT CAUGHT", "NO RESULT"]

PASSED: Final = 0
FAILED: Final = 1
TIMEOUT_S: Final = 900.0
MEMORY_BYTES: Final = 4 * 1024**3  # of each process; a fault may let a queue grow without end
# Things that the tests need and that are made only once: environments and Node packages. The copy
# links to them.
LINKED: Final = (".venv", ".penstock")


def _copy(folder: Path) -> None:
    for path in files():
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)


def _limit_memory() -> None:
    """Let a process of the tests fail when a fault makes it take more memory than it may."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))


def _run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run pytest; return its exit code and the last lines of its output."""
    packages = [folder / "shared", folder / "clients/python"]
    members = [*packages, *sorted((folder / "services").iterdir())]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, members)),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-o", f"cache_dir={folder}/.cache"]
    done = subprocess.run(
        [*command, "--no-header", "--tb=line", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        preexec_fn=_limit_memory,
    )
    return done.returncode, "\n".join(done.stdout.splitlines()[-5:])


def _result(folder: Path, mutation: Mutation) -> tuple[Result, str]:
    try:
        path = mutation.file(folder)
    except NotInPlace as error:
        return "NO RESULT", str(error)
    if missing := mutation.missing_tests(folder):
        return "NO RESULT", f"there is no {', '.join(missing)}"
    text = path.read_text()
    path.write_text(text.replace(mutation.old, mutation.new))
    try:
        code, output = _run(folder, *mutation.tests)
    finally:
        path.write_text(text)
    if code == PASSED:
        return "NOT CAUGHT", output
    if code != FAILED:
        return "NO RESULT", output
    code, again = _run(
        folder, "--last-failed", "--last-failed-no-failures", "none", *mutation.tests
    )
    if code != PASSED:
        return "NO RESULT", f"the test fails without the fault, too:\n{again}"
    return "caught", output


def main(words: list[str]) -> int:
    """Go through the table; return the exit code."""
    chosen = [each for each in mutations() if not words or any(w in each.what for w in words)]
    results = []
    with tempfile.TemporaryDirectory(prefix="mutations-") as name:
        folder = Path(name).resolve()
        _copy(folder)
        for mutation in chosen:
            begun = time.monotonic()
            result, output = _result(folder, mutation)
            results.append(result)
            took_s = time.monotonic() - begun
            print(f"{result:10} {took_s:5.1f} s  {mutation.what}", flush=True)
            if result != "caught":
                print(output, flush=True)
    print(f"{results.count('caught')} of {len(results)} faults are caught")
    return 0 if results.count("caught") == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
