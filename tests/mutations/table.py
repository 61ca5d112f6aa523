"""The table of faults, and the place in a copy of the repository where each fault belongs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

TABLE: Final = Path(__file__).with_name("mutations.toml")


class NotInPlace(LookupError):
    """The code that a fault changes does not exist, or exists more than once."""


class Mutation(BaseModel):
    """One fault. Exactly one .py file below the folder `within` contains `old`, exactly once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    what: str
    within: str
    old: str
    new: str
    tests: list[str]

    def file(self, root: Path) -> Path:
        """Return the file that the fault changes. Raises `NotInPlace`."""
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
        """Return the paths of its test files that do not exist."""
        return [name for name in self.tests if not (root / name.partition("::")[0]).exists()]


def mutations() -> list[Mutation]:
    """Return all faults, in the order of the table."""
    return [Mutation(**entry) for entry in tomllib.loads(TABLE.read_text())["mutation"]]
