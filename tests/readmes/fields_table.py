"""Write the fields of a part of a workflow's definition as a Markdown table."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from penstock.expressions.value import MAX_CHARACTERS

_PLAIN = {
    "string": "text",
    "integer": "number",
    "number": "number",
    "array": "list",
    "boolean": "true or false",
    "": "any value",
}


def table(model: type[BaseModel]) -> str:
    """Return the table of a model: name, type, default, meaning."""
    schema = model.model_json_schema(by_alias=True)
    required = set(schema.get("required", ()))
    lines = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for name, field in schema["properties"].items():
        default = "(required)" if name in required else _default(field.get("default"))
        cells = (f"`{name}`", _type(field), default, field.get("description", ""))
        lines.append("| " + " | ".join(cells).replace("|  |", "| |") + " |")
    return "\n".join(lines) + "\n"


def _default(value: Any) -> str:
    if value is False or value in (None, "", [], {}):
        return ""
    return "" if isinstance(value, dict) else f"`{value}`"


def _type(field: dict[str, Any]) -> str:
    [part] = [each for each in field.get("anyOf", [field]) if each.get("type") != "null"]
    kind = _PLAIN.get(part.get("type", ""), "object")
    bounds = [part.get("minimum"), part.get("maximum")]
    if "$ref" in part:
        name = str(part["$ref"]).rpartition("/")[2]
        kind = f"[{name}](#{name.lower()})"
    elif "enum" in part:
        kind = ", ".join(f"`{each}`" for each in part["enum"])
    elif "const" in part:
        kind = f"`{part['const']}`"
    elif part.get("examples"):
        kind = "duration"
    elif part.get("maxLength") == MAX_CHARACTERS and part.get("minLength") == 1:
        kind = "expression"
    elif None not in bounds:
        kind = f"{kind}, {bounds[0]:g} to {bounds[1]:g}"
    return kind
