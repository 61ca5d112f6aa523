"""Make the script `static/unseen.js`: `python -m penstock_console.unseen`.

The pages mark the same characters as the terminal and the page of a one-time link. So the script's
pattern is made from the table of `penstock.visible`, by names of categories: a browser and Python
may know different versions of Unicode.
"""

from __future__ import annotations

from typing import Final

from penstock.visible import IGNORABLE, UNSEEN

SPACES: Final = "Zs"
_SCRIPT: Final = """\
// Made by `make contract` from penstock/visible.py: do not edit.

// Characters that are invisible, or that change the order of visible characters.
export const UNSEEN = /[{unseen}]/u;
// The same, and all spaces except the ordinary space.
export const UNSEEN_OR_SPACE = /[{unseen}]|(?! )\\p{{{spaces}}}/u;
"""


def script() -> str:
    """Return the text of the script."""
    categories = "".join(f"\\p{{{each}}}" for each in sorted(UNSEEN - {SPACES}))
    return _SCRIPT.format(unseen=f"{categories}{_ranges()}", spaces=SPACES)


def _ranges() -> str:
    """Return the ignorable characters as ranges of a character class."""
    codes = sorted(map(ord, IGNORABLE))
    starts = [code for code in codes if code - 1 not in codes]
    ends = [code for code in codes if code + 1 not in codes]
    return "".join(
        f"\\u{{{start:x}}}" + (f"-\\u{{{end:x}}}" if end > start else "")
        for start, end in zip(starts, ends, strict=True)
    )


if __name__ == "__main__":
    print(script(), end="")
