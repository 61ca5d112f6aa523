"""Turns pydantic's errors into plain sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

UNKNOWN_FIELD: Final = "there is no such field"


def reason_of(error: Mapping[str, Any]) -> str:
    """Return the reason of one error of pydantic, without the field's name."""
    if error["type"] == "extra_forbidden":
        return UNKNOWN_FIELD
    return str(error["msg"]).removeprefix("Value error, ")
