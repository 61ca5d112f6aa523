"""`python -m penstock.contract.threads ASYNC_CLIENT FILE`: the Python client for threads.

It is made from the client for asyncio. The two differ in these words alone, so a fix of one is a
fix of both.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

WORDS = {
    r"for asyncio\. `make contract` makes client\.py from this module\.": (
        "for threads: made from async_client.py by `make contract`."
    ),
    r"\basync (def|for|with) ": r"\1 ",
    r"\bawait ": "",
    r"\basyncio\b": "time",
    r"\bAsyncGenerator\[(.+), None\]": r"Generator[\1, None, None]",
    r"\bAsync(Client|Generator|Iterator|Run|Token)\b": r"\1",
    r"\ba(closing|close|read|iter_bytes)\b": r"\1",
    r"\b__a(enter|exit|iter)__": r"__\1__",
    r"for (\w+) in (.+):\n +yield \1\n": r"yield from \2\n",
}


def for_threads(text: str) -> str:
    """Return the module for threads, before it is formatted."""
    for pattern, word in WORDS.items():
        text = re.sub(pattern, word, text)
    return text


if __name__ == "__main__":
    _, source, target = map(Path, sys.argv)
    target.write_text(for_threads(source.read_text("utf-8")), "utf-8")
