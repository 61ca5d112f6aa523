"""Field types for the request bodies of several surfaces."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator


def not_blank(text: str) -> str:
    """Return the text; raise ValueError if the text is empty or has only white space."""
    if not text.strip():
        raise ValueError("must not be empty or only white space")
    return text


# The user's message, with which a run starts.
Message = Annotated[str, AfterValidator(not_blank)]
