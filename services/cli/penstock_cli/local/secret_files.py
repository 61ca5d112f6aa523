"""Write files that only their owner may read."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

_PASSWORD_BYTES = 32


def private_folder(folder: Path) -> None:
    """Make a folder that only its owner can use, or take others' rights away."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)


def write_private(file: Path, text: str) -> None:
    """Write a file that no other user can read at any moment."""
    # mkstemp makes the file with mode 0600
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w") as new:
            new.write(text)
            new.flush()
            os.fsync(new.fileno())
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def password(file: Path) -> str:
    """Return the password in the file; make a missing one."""
    try:
        kept = file.read_text().strip()
    except FileNotFoundError:
        kept = ""
    if kept:
        file.chmod(0o600)
        return kept
    made = secrets.token_urlsafe(_PASSWORD_BYTES)
    write_private(file, f"{made}\n")
    return made
