"""Read the chart's values, check them with the chart's schema, and return the settings of streams
in them."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from penstock.json_schema import misfits, shown_path
from penstock.settings import ConfigurationError
from penstock_cli.operations.doctor.facts import Wanted


@dataclass(frozen=True, slots=True)
class Values:
    """What was found in the chart's values.

    `wrong` has the mistakes. If there are none, `wanted` has the settings of the streams.
    """

    wrong: list[str]
    wanted: Wanted | None = None
    jwks_url: str | None = None


def read(chart: Path, values: Path) -> Values:
    """Read a file of values, merge it into the chart's defaults, and check the result.

    Raises:
        ConfigurationError: a file cannot be read.
    """
    try:
        schema = json.loads((chart / "values.schema.json").read_text())
        defaults = yaml.safe_load((chart / "values.yaml").read_text())
        given = yaml.safe_load(values.read_text()) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigurationError(f"cannot read the chart's values: {error}") from error
    if not isinstance(given, dict):
        return Values([f"{values} has no mapping of values"])
    merged = _merged(defaults, given)
    if found := misfits(schema, merged):
        return Values([f"{shown_path(each.path, '$')}: {each.reason[:300]}" for each in found])
    streams = merged["streams"]
    wanted = Wanted(
        shards=streams["shards"],
        replicas=streams["replicas"],
        raw_max_age_s=streams["rawMaxAgeSeconds"],
        events_max_age_s=streams["eventsMaxAgeSeconds"],
    )
    return Values([], wanted, merged["auth"]["jwksUrl"] or None)


def _merged(defaults: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the values merged into the defaults, as Helm does.

    A value that is null removes the default.
    """
    merged = copy.deepcopy(defaults)
    for key, value in given.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merged(merged[key], value)
        elif value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged
