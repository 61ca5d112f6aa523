"""The table of faults, and where in a copy of the repository each of them belongs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

TABLE: Final = Path(__file__).with_name("mutations.toml")


class NotInPlace(LookupError):
    """The code that a fault changes is not there, or is there more than once."""


class Mutation(BaseModel):
    """One fault. `old` stands exactly once in the .py files below the folder `within`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    what: str
    within: str
    old: str
    new: str
    tests: list[str]

    def file(self, root: Path) -> Path:
        """The file that it changes. Raises `NotInPlace`."""
        found = {
            path: count
            for path in sorted((root / self.within).rglob("*.py"))
            if (count := path.read_text().count(self.old))
        }
        if sum(found.values()) != 1:
            places = ", ".join(str(path.relative_to(root)) for path in found) or "nowhere"
            raise NotInPlace(
                f"{self.what}\n  `old` must stand once below {self.within}, and stands in: "
                f"{places}. Adjust the entry in {TABLE.name} to the code as it is now."
            )
        return next(iter(found))

    def missing_tests(self, root: Path) -> list[str]:
        """The files of its tests that are not there."""
        return [name for name in self.tests if not (root / name.partition("::")[0]).exists()]


def mutations() -> list[Mutation]:
    """All faults, in the order of the table."""
    return [Mutation(**entry) for entry in tomllib.loads(TABLE.read_text())["mutation"]]
