"""A text that grows in pieces, in about as much memory as the text itself."""

from __future__ import annotations


def append_text(pieces: list[str], piece: str) -> None:
    """Appends a piece, and joins it with the last pieces that are no longer than it.

    A list of single tokens takes twelve times the memory of its text. Here each piece is longer
    than the next one, so there are few pieces, and a character is copied about a dozen times at
    most.
    """
    at, size = len(pieces), len(piece)
    while at and len(pieces[at - 1]) <= size:
        at -= 1
        size += len(pieces[at])
    pieces[at:] = ["".join((*pieces[at:], piece))]
