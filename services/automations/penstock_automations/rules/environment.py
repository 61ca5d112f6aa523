"""Puts environment variables into the operator's files."""

from __future__ import annotations

import os
import re
from typing import Any, Final

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def expanded(value: Any) -> Any:
    """Replace `${NAME}` in all texts. Raises LookupError for a variable that is not set."""
    if isinstance(value, dict):
        return {key: expanded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [expanded(each) for each in value]
    return _VARIABLE.sub(_variable, value) if isinstance(value, str) else value


def _variable(match: re.Match[str]) -> str:
    value = os.environ.get(match[1])
    if value is None:
        raise LookupError(f"the variable {match[1]} is not set")
    return value
