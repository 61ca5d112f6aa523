"""Read the chart's values, check them with the chart's schema, and return the settings of streams
in them."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from penstock.doctor.facts import Wanted
from penstock.json_schema import misfits, shown_path
from penstock.settings import ConfigurationError
from penstock.settings.keep import parse_keep

# the values of the chart's section `streams` that say how the streams must be
_STREAMS: Final = ("shards", "replicas", "keep", "keepRuns")


@dataclass(frozen=True, slots=True)
class Values:
    """What was found in the chart's values.

    `wrong` has the mistakes. If there are none, `wanted` has the settings of the streams.
    """

    wrong: list[str]
    wanted: Wanted | None = None
    jwks_url: str | None = None
    oidc_issuer: str | None = None


def read(chart: Path, files: Sequence[Path]) -> Values:
    """Read files of values, merge them into the chart's defaults, and check the result.

    A later file replaces the values of an earlier one, as with Helm's `-f`.

    Raises:
        ConfigurationError: a file cannot be read.
    """
    try:
        schema = json.loads((chart / "values.schema.json").read_text())
        defaults = yaml.safe_load((chart / "values.yaml").read_text())
        parsed = {path: yaml.safe_load(path.read_text()) or {} for path in files}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigurationError(f"cannot read the chart's values: {error}") from error
    if wrong := [path for path, values in parsed.items() if not isinstance(values, dict)]:
        return Values([f"{path} has no mapping of values" for path in wrong])
    of_user: dict[str, Any] = {}
    for path in files:
        of_user = _merged(of_user, parsed[path], keeps_null=True)
    merged = _merged(defaults, of_user)
    if found := misfits(schema, merged):
        return Values([f"{shown_path(each.path, '$')}: {each.reason[:300]}" for each in found])
    streams = merged.get("streams", {})
    if removed := [name for name in _STREAMS if name not in streams]:
        text = "null removes the value, and the chart needs it"
        return Values([f"$.streams.{name}: {text}" for name in removed])
    words = [f"{kind}={age}" for kind, age in streams["keep"].items()]
    try:
        keep = parse_keep([*words, *streams["keepRuns"]])
    except ValueError as error:
        return Values([f"$.streams.keep: {error}"])
    wanted = Wanted(streams["shards"], streams["replicas"], keep.ages_s)
    auth = merged.get("auth", {})
    issuer = auth.get("oidc", {}).get("issuer")
    return Values([], wanted, auth.get("jwksUrl") or None, issuer or None)


def _merged(
    earlier: dict[str, Any], later: dict[str, Any], *, keeps_null: bool = False
) -> dict[str, Any]:
    """Return the later values merged into the earlier ones, as Helm does.

    A value that is null removes the earlier one. Between the files of a user, null is kept, because
    it must still remove the chart's default.
    """
    merged = copy.deepcopy(earlier)
    for key, value in later.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merged(merged[key], value, keeps_null=keeps_null)
        elif value is None and not keeps_null:
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged
