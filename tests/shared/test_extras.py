"""What an extra of the package `penstock` installs is all that its modules import."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import packages_distributions, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Refuses the modules of argv[1], and then imports argv[2].
IMPORT = """
import importlib, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"{name} is not in the extra", name=name)
sys.meta_path.insert(0, Refuse())
importlib.import_module(sys.argv[2])
"""


def installed_with(extra: str) -> set[str]:
    """Return the distributions that `pip install penstock[extra]` installs."""
    found: set[tuple[str, str]] = set()
    waiting = [("penstock", ""), ("penstock", extra)]
    while waiting:
        name, of_extra = each = waiting.pop()
        if each in found:
            continue
        found.add(each)
        for line in requires(name) or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": of_extra}):
                waiting += [(needed.name, word) for word in ("", *needed.extras)]
    return {canonicalize_name(name) for name, _ in found}


@pytest.mark.parametrize(
    ("extra", "module"),
    [("", "penstock.events"), ("bus", "penstock.bus"), ("subscribe", "penstock.subscribe")],
)
def test_an_extra_installs_all_that_its_package_imports(extra: str, module: str) -> None:
    installed = installed_with(extra)
    others = [
        name
        for name, owners in packages_distributions().items()
        if not {canonicalize_name(each) for each in owners} & installed
    ]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, ",".join(others), module],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
