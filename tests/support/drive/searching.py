"""Search all that a deployment leaves behind for planted texts: files, metrics, memory."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

_PLANTED = re.compile(rb"plant-([a-z]+)-[0-9a-f]{12}")
_CHUNK_BYTES = 16 * 1024 * 1024
_LONGEST_BYTES = 64  # a text that lies across two chunks is found, too


def planted_in(data: bytes) -> set[str]:
    """Return the planted texts in the bytes."""
    return {match[0].decode() for match in _PLANTED.finditer(data)}


def in_files(folder: Path, names: str = "*") -> dict[str, set[str]]:
    """Return the planted texts by the file in which they are, as a path below the folder."""
    found = {}
    for path in folder.rglob(names):
        try:
            texts = planted_in(path.read_bytes()) if path.is_file() else set()
        except FileNotFoundError:
            continue
        if texts:
            found[str(path.relative_to(folder))] = texts
    return found


def in_memory(pid: int) -> set[str]:
    """Return the planted texts in the memory of a process that it can write."""
    found: set[str] = set()
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, rights, *_ = line.split()
            if not rights.startswith("rw"):
                continue
            start, end = (int(each, 16) for each in place.split("-"))
            while start < end:
                memory.seek(start)
                try:
                    part = memory.read(min(_CHUNK_BYTES, end - start))
                except OSError:
                    break  # the process has given this part back
                found |= planted_in(part)
                if len(part) <= _LONGEST_BYTES:
                    break
                start += len(part) - (_LONGEST_BYTES if start + len(part) < end else 0)
    return found


def by_kind(texts: Iterable[str]) -> Mapping[str, int]:
    """Return how many texts of each kind there are; `plant-note-…` is of the kind `note`."""
    counts: dict[str, int] = defaultdict(int)
    for text in texts:
        counts[text.split("-")[1]] += 1
    return dict(sorted(counts.items()))
