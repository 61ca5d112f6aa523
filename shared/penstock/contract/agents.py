"""The JSON Schema of a configured agent, which the chart checks `agents` with.

`python -m penstock.contract.agents FILE` writes it into FILE, the schema of the chart's values.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from penstock.settings.agents import MODELS


def schema() -> dict[str, Any]:
    """Return the schema of one agent (draft 7). The protocol decides which fields there are: `if`
    and `then` name the wrong field, where `oneOf` would only say that no protocol fits."""
    return {
        "type": "object",
        "required": ["id", "protocol"],
        "properties": {"protocol": {"enum": list(MODELS)}},
        "allOf": [
            {
                "if": {"properties": {"protocol": {"const": protocol}}, "required": ["protocol"]},
                "then": _without_titles(model.model_json_schema()),
            }
            for protocol, model in MODELS.items()
        ],
    }


def _without_titles(found: Any) -> Any:
    if isinstance(found, dict):
        return {
            key: _without_titles(value)
            for key, value in found.items()
            if key != "title" or not isinstance(value, str)
        }
    return [_without_titles(each) for each in found] if isinstance(found, list) else found


def main() -> None:
    """Write the schema into the file that the command line names."""
    file = Path(sys.argv[1])
    values = json.loads(file.read_text())
    values["properties"]["agents"]["items"] = schema()
    file.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
