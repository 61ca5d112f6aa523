"""Reads the YAML files of the operator: rules, and secrets for calls of workflows."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

import yaml

from penstock.settings import ConfigurationError

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def read_list(path: Path, name: str) -> list[Any]:
    """Return the list that a YAML file has under its only key, with environment variables in place
    of `${NAME}`.

    Raises:
        ConfigurationError: the file cannot be read, or has another form.
    """
    try:
        content = expanded(yaml.safe_load(path.read_text()) or {})
    except (OSError, yaml.YAMLError, LookupError) as error:
        raise ConfigurationError(f"the {name} in {path} cannot be read: {error}") from None
    listed = content.get(name) if isinstance(content, dict) else None
    if not isinstance(listed, list) or set(content) != {name}:
        raise ConfigurationError(f"{path} must have one key, `{name}`, with a list of {name}")
    return listed


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
