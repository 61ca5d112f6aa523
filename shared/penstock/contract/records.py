"""`python -m penstock.contract.records OPENAPI FOLDER`: the HTTP API's records for its clients.

It writes `models.py`, TypedDicts of Python, and `records.d.ts`, interfaces of TypeScript.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from penstock.contract import typescript
from penstock.contract.schemas import Schema

_HEAD: Final = '''\
"""The records of Penstock's API. Made by `make contract` from the OpenAPI document: do not edit.

A later server may send further fields, and further words where a field has a list of words.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict
'''
_ROOTS: Final = ("RunRecord", "ApprovalRecord")
_REF: Final = "#/components/schemas/"
_SCALARS: Final = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
}


def module(parts: dict[str, Schema]) -> str:
    """Return the content of `models.py`."""
    return "\n\n".join([_HEAD, *(_class(name, parts[name]) for name in sorted(parts))])


def parts_of(document: dict[str, Any]) -> dict[str, Schema]:
    """Return the schemas of the records, with all that they refer to."""
    schemas: dict[str, Schema] = document["components"]["schemas"]
    names, found = list(_ROOTS), dict[str, Schema]()
    while names:
        name = names.pop()
        if name not in found:
            found[name] = schemas[name]
            names += _refs(schemas[name])
    return found


def _refs(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if (ref := schema.get("$ref")) is not None:
            yield ref.removeprefix(_REF)
        for part in schema.values():
            yield from _refs(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _refs(part)


def _class(name: str, schema: Schema) -> str:
    required = schema.get("required", ())
    fields = "".join(
        f"    {field}: {_type(part) if field in required else f'NotRequired[{_type(part)}]'}\n"
        for field, part in schema["properties"].items()
    )
    return f"class {name}(TypedDict):\n{fields}"


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(_REF)
    if "enum" in schema:
        return f"Literal[{', '.join(map(repr, schema['enum']))}]"
    if "anyOf" in schema:
        return " | ".join(map(_type, schema["anyOf"]))
    kind = schema.get("type")
    if kind == "array":
        return f"list[{_type(schema['items'])}]"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"dict[str, {_type(values) if isinstance(values, dict) else 'Any'}]"
    return _SCALARS[kind] if kind else "Any"


if __name__ == "__main__":
    _, openapi, folder = map(Path, sys.argv)
    parts = parts_of(json.loads(openapi.read_text("utf-8")))
    (folder / "models.py").write_text(module(parts), "utf-8")
    (folder / "records.d.ts").write_text(typescript.records(parts), "utf-8")
