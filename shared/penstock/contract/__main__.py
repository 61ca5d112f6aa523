"""`python -m penstock.contract FOLDER [--release]`: write the documents that are made.

`--release` also keeps the schemas as those of this version, under `released/`, which later ones
are held to.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from penstock.contract import VERSION
from penstock.contract.publish import documents


def main() -> None:
    """Write; what is not made any more goes."""
    parser = argparse.ArgumentParser(prog="python -m penstock.contract")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--release", action="store_true", help="keep the schemas as released")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    released = folder / "released" / VERSION
    if arguments.release and released.exists():
        parser.error(f"{released} is there: a released schema is never written over")
    shutil.rmtree(folder / "schemas", ignore_errors=True)
    for path, content in documents().items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    if arguments.release:
        shutil.copytree(folder / "schemas", released)


if __name__ == "__main__":
    main()
