"""`python -m penstock.contract FOLDER [--release]`: write the generated documents.

The documents are written into a folder beside FOLDER first, and replace those in FOLDER only when
all of them were made. `--release` also keeps the schemas as those of this version, under
`released/`; later versions are compared with them.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from penstock.contract import VERSION, asyncapi, catalogue, typescript
from penstock.contract.schemas import schemas, text


def documents() -> dict[str, str]:
    """Return the content by path; it is the same every time, so that a test can compare it."""
    return {
        "asyncapi.json": text(asyncapi.document()),
        "catalogue.md": catalogue.page(),
        "penstock.d.ts": typescript.declarations(),
        **{f"schemas/{name}.json": text(schema) for name, schema in schemas().items()},
    }


_SCHEMAS = "schemas"


def main() -> None:
    """Write the documents; schemas of types that no longer exist are removed."""
    parser = argparse.ArgumentParser(prog="python -m penstock.contract")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--release", action="store_true", help="keep the schemas as released")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    released = folder / "released" / VERSION
    if arguments.release and released.exists():
        parser.error(f"{released} is there: a released schema is never written over")
    folder.mkdir(parents=True, exist_ok=True)
    # on the same disk as the folder, so that each replacement is a rename
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".contract-") as made:
        write(Path(made))
        replace(folder, Path(made))
    if arguments.release:
        shutil.copytree(folder / _SCHEMAS, released)


def write(folder: Path) -> None:
    """Write every document into an empty folder."""
    for path, content in documents().items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")


def replace(folder: Path, made: Path) -> None:
    """Move everything from `made` into the folder, over what has the same name there."""
    shutil.rmtree(folder / _SCHEMAS, ignore_errors=True)
    for each in made.iterdir():
        each.replace(folder / each.name)


if __name__ == "__main__":
    main()
