"""Prints the JSON Schema of definitions: `python -m penstock_workflows.definition.schema`."""

from __future__ import annotations

import json
from typing import Any

from penstock_workflows.definition.model import KINDS, Definition


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a definition, for editors and other programs.

    It does not check expressions, the order of steps, or the names of agents, so a definition that
    fits may still be refused.
    """
    found = Definition.model_json_schema(by_alias=True)
    step = found["$defs"]["StepDefinition"]
    # In the document, a step has one action; `null` stands for a missing field only in the model.
    step["oneOf"] = [{"required": [kind]} for kind in KINDS]
    for part in [found, *found["$defs"].values()]:
        for name, field in part.get("properties", {}).items():
            part["properties"][name] = _without_null(field)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Penstock workflow",
        **{name: each for name, each in found.items() if name != "title"},
    }


def _without_null(field: dict[str, Any]) -> dict[str, Any]:
    options = [each for each in field.get("anyOf", ()) if each != {"type": "null"}]
    rest = {name: each for name, each in field.items() if name not in ("anyOf", "title")}
    if rest.get("default", ...) is None:
        del rest["default"]
    if len(options) == 1:
        return {**options[0], **rest}
    return rest if not options else {"anyOf": options, **rest}


def text() -> str:
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(text(), end="")
