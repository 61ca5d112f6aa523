"""JSON Schema 2020-12 of every message: one self-contained document for each event type."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from penstock.contract.unified import UNIFIED, Root, UnifiedType
from penstock.events import CATALOGUE, Event, EventType
from penstock.events.examples import example

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]

# An event over 512 KiB is in the object store; its message on the bus is this reference.
REFERENCE: Schema = {
    "$schema": DIALECT,
    "$id": "urn:penstock:reference",
    "title": "Reference to a large event",
    "description": "The message on the bus in place of an event over 512 KiB. The headers and "
    "the subject are those of the event.",
    "type": "object",
    "properties": {
        "penstock_object": {
            "description": "The object's name in the object store `payloads`: "
            "`<run_id>.<sequence>`. The object is the event's body.",
            "type": "string",
        }
    },
    "required": ["penstock_object"],
    "additionalProperties": True,
    "examples": [{"penstock_object": "0198c5a0-7b1e-7c3a-9d52-4f6e8a1b2c3d.13"}],
}


_ANY: Schema = {
    "title": "Canonical event",
    "description": "One canonical event, of a type that this version knows or of a later one.",
}


class _Plain(GenerateJsonSchema):
    """Leaves out titles that repeat field names, and `default: null`."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])


def of_model(model: type[BaseModel]) -> Schema:
    """Return the model's schema, with the names of the fields in JSON."""
    return model.model_json_schema(schema_generator=_Plain)


def envelope() -> Schema:
    """Return the schema of any canonical event, of a known type or not."""
    return _document("urn:penstock:event", of_model(Event) | _ANY)


def of_type(row: EventType) -> Schema:
    """Return the schema of one type: the envelope with its `event` and `data` narrowed."""
    category, action = row.name.split(".")
    return _narrowed(
        of_model(Event),
        f"urn:penstock:event:{row.name}",
        row.title,
        row.description,
        {"event": _constants(category=category, action=action), "data": _body(row.model)},
        example(row.name).model_dump(mode="json", exclude_unset=True),
    )


def unified_root() -> Schema:
    return _document("urn:penstock:unified", of_model(Root) | {"title": "Unified event"})


def of_unified(row: UnifiedType) -> Schema:
    return _narrowed(
        of_model(Root),
        f"urn:penstock:unified:{row.name}",
        row.name,
        row.description,
        {"type": {"const": row.name, "type": "string"}, "payload": _body(row.model)},
        unified_example(row),
    )


def unified_example(row: UnifiedType) -> dict[str, Any]:
    return {
        "event_id": "2b9a1f6e-6a3c-5f0e-9d55-0c8f3f1f7a10",
        "session_id": "abc",
        "timestamp": "2024-01-01T12:00:00Z",
        "type": row.name,
        "payload": row.example,
    }


def schemas() -> dict[str, Schema]:
    """Return every schema by its path under `schemas/`, without `.json`."""
    return {
        "envelope": envelope(),
        "reference": REFERENCE,
        **{name: of_type(row) for name, row in CATALOGUE.items()},
        "unified/envelope": unified_root(),
        **{f"unified/{name}": of_unified(row) for name, row in UNIFIED.items()},
    }


def text(document: Any) -> str:
    """Return the document as indented JSON, the same every time."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _body(model: type[BaseModel]) -> Schema:
    """Return the schema of the data, without the title and description that the message has."""
    schema = of_model(model)
    return {word: part for word, part in schema.items() if word not in {"title", "description"}}


def _constants(**values: str) -> Schema:
    return {
        "type": "object",
        "properties": {name: {"const": value, "type": "string"} for name, value in values.items()},
        "required": list(values),
        "additionalProperties": True,
    }


def _narrowed(
    base: Schema,
    id: str,
    title: str,
    description: str,
    properties: dict[str, Schema],
    sample: dict[str, Any],
) -> Schema:
    definitions = base.get("$defs", {})
    for schema in properties.values():
        definitions |= schema.pop("$defs", {})
    whole = {**base, "properties": {**base["properties"], **properties}}
    whole |= {"title": title, "description": description, "examples": [sample]}
    used = json.dumps(whole["properties"]) + json.dumps(definitions)
    whole["$defs"] = {
        name: definitions[name] for name in sorted(definitions) if f'"#/$defs/{name}"' in used
    }
    return _document(id, whole)


def _document(id: str, schema: Schema) -> Schema:
    definitions = schema.pop("$defs", None)
    document = {"$schema": DIALECT, "$id": id, **schema}
    return {**document, "$defs": definitions} if definitions else document
