"""Reads the YAML files of the operator: rules, and secrets for calls of workflows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from penstock.settings import ConfigurationError
from penstock.yaml_lines import Place, expanded


def read_list(path: Path, name: str) -> list[Any]:
    """Return the list that a YAML file has under its only key, with environment variables in place
    of `${NAME}`.

    Raises:
        ConfigurationError: the file cannot be read, or has another form.
    """
    unset: dict[Place, list[str]] = {}
    try:
        content = expanded(yaml.safe_load(path.read_text()) or {}, os.environ, unset)
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(f"the {name} in {path} cannot be read: {error}") from None
    for [variable, *_] in unset.values():
        reason = f"the variable {variable} is not set"
        raise ConfigurationError(f"the {name} in {path} cannot be read: {reason}")
    listed = content.get(name) if isinstance(content, dict) else None
    if not isinstance(listed, list) or set(content) != {name}:
        raise ConfigurationError(f"{path} must have one key, `{name}`, with a list of {name}")
    return listed
