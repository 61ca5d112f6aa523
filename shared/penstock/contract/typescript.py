"""TypeScript declarations, made from the JSON Schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from penstock.contract.schemas import Schema, envelope, of_type, of_unified, unified_root
from penstock.contract.unified import UNIFIED
from penstock.events import CATALOGUE, TERMINAL

_HEAD = """\
// Made by `make contract` from the models in penstock.events: do not edit.
//
// A reader must accept what it does not know: later versions add types and fields. So treat what
// arrives as an `Envelope`, and narrow it by its type:
//
//   const isType = <T extends EventType>(event: Envelope, type: T): event is EventOf<T> =>
//     `${event.event.category}.${event.event.action}` === type;
"""
_CANONICAL = "Every canonical event that this version knows."
_SCALARS = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
}
_ENVELOPE = frozenset({"event", "data"})
_UNIFIED_ROOT = frozenset({"type", "payload"})


def declarations() -> str:
    """Return the content of `penstock.d.ts`."""
    events = {name: of_type(row) for name, row in CATALOGUE.items()}
    unified = {name: of_unified(row) for name, row in UNIFIED.items()}
    documents = [envelope(), unified_root(), *events.values(), *unified.values()]
    terminal = _union(json.dumps(name) for name in sorted(TERMINAL))
    return "\n".join(
        [
            _HEAD,
            *_shared(documents),
            _interface("Envelope", envelope()),
            *(_extension(_name(name), "Envelope", doc, _ENVELOPE) for name, doc in events.items()),
            _map("EventMap", _CANONICAL, {name: _name(name) for name in events}),
            "export type EventType = keyof EventMap;\n",
            "export type EventOf<T extends EventType> = EventMap[T];\n",
            "export type PenstockEvent = EventMap[EventType];\n",
            f"/** A run ends at the first of these. */\nexport type TerminalType = {terminal};\n",
            "/** The message on the bus in place of an event over 512 KiB. */\n"
            "export interface LargeEvent {\n  penstock_object: string;\n}\n",
            _interface("UnifiedEnvelope", unified_root()),
            *(
                _extension(_unified(name), "UnifiedEnvelope", doc, _UNIFIED_ROOT)
                for name, doc in unified.items()
            ),
            "/** The unified events; `type` tells them apart. */\n"
            f"export type UnifiedEvent =\n{_lines(_unified(name) for name in unified)};\n",
            'export type UnifiedType = UnifiedEvent["type"];',
            "",
        ]
    )


def records(parts: dict[str, Schema]) -> str:
    """Return the content of `records.d.ts`: the records of the HTTP API, by their names."""
    head = "// Made by `make contract` from the OpenAPI document: do not edit.\n"
    return "\n".join([head, *(_interface(name, parts[name]) for name in sorted(parts))])


def _shared(documents: Iterable[Schema]) -> list[str]:
    """Return the parts that several events share, each once."""
    parts: dict[str, Schema] = {}
    for document in documents:
        for name, schema in document.get("$defs", {}).items():
            if parts.setdefault(name, schema) != schema:
                raise ValueError(f"two different parts of the contract are named {name}")
    return [_interface(name, parts[name]) for name in sorted(parts)]


def _interface(name: str, schema: Schema) -> str:
    return f"{_comment(schema)}export interface {name} {_fields(schema, '')}\n"


def _extension(name: str, base: str, schema: Schema, narrowed: frozenset[str]) -> str:
    own = {field: part for field, part in schema["properties"].items() if field in narrowed}
    body = _fields({**schema, "properties": own}, "")
    return f"{_comment(schema)}export interface {name} extends {base} {body}\n"


def _fields(schema: Schema, indent: str) -> str:
    required = schema.get("required", ())
    inner = indent + "  "
    lines = [
        f"{_comment(part, inner)}{inner}{field}{'' if field in required else '?'}: "
        f"{_type(part, inner)};\n"
        for field, part in schema["properties"].items()
    ]
    return "{\n" + "".join(lines) + indent + "}" if lines else "{}"


def _type(schema: Schema, indent: str) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    if "const" in schema:
        return json.dumps(schema["const"])
    if "properties" in schema:
        return _fields(schema, indent)
    if "anyOf" in schema:
        return _union(_type(part, indent) for part in schema["anyOf"])
    return _plain(schema, indent)


def _plain(schema: Schema, indent: str) -> str:
    kind = schema.get("type")
    if kind == "array":
        item = _type(schema["items"], indent)
        return f"({item})[]" if " | " in item else f"{item}[]"
    if kind == "object":
        return "Record<string, unknown>"
    return _SCALARS[kind] if kind else "unknown"


def _map(name: str, description: str, members: dict[str, str]) -> str:
    lines = "".join(f"  {json.dumps(key)}: {value};\n" for key, value in members.items())
    return f"/** {description} */\nexport interface {name} {{\n{lines}}}\n"


def _union(types: Iterable[str]) -> str:
    return " | ".join(types)


def _lines(types: Iterable[str]) -> str:
    return "\n".join(f"  | {each}" for each in types)


def _comment(schema: dict[str, Any], indent: str = "") -> str:
    description = schema.get("description")
    return f"{indent}/** {description} */\n" if description else ""


def _name(event_type: str) -> str:
    return "".join(word.capitalize() for word in re.split(r"[._]", event_type))


def _unified(name: str) -> str:
    return f"Unified{_name(name)}"
