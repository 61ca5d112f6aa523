"""Stores a text that grows in pieces, in about as much memory as the text itself needs."""

from __future__ import annotations


def append_text(pieces: list[str], piece: str) -> None:
    """Append a piece, and joins the new piece with earlier pieces that are not longer.

    A list of single tokens takes twelve times the memory of its text. After the joins, each piece
    is longer than the next piece, so the list is short. Each character is copied about a dozen
    times at most.
    """
    at, size = len(pieces), len(piece)
    while at and len(pieces[at - 1]) <= size:
        at -= 1
        size += len(pieces[at])
    pieces[at:] = ["".join((*pieces[at:], piece))]
