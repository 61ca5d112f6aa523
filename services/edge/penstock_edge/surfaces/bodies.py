"""Types of fields that the bodies of several surfaces have."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator


def not_blank(text: str) -> str:
    """The text. Raises ValueError where it has nothing but white space."""
    if not text.strip():
        raise ValueError("must not be empty or only white space")
    return text


# The text that a run is started with.
Message = Annotated[str, AfterValidator(not_blank)]
