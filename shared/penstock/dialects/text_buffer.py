"""A text that comes in pieces, held in about its own size."""

from __future__ import annotations


def append_text(pieces: list[str], piece: str) -> None:
    """Append to the pieces of a text, and join those at the end that are no longer than it.

    A list of tokens takes twelve times what they are. So each piece that is kept is longer than
    the next one: there are few, and a character is copied a dozen times at the most.
    """
    at, size = len(pieces), len(piece)
    while at and len(pieces[at - 1]) <= size:
        at -= 1
        size += len(pieces[at])
    pieces[at:] = ["".join((*pieces[at:], piece))]
