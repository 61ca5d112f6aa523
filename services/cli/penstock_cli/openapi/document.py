"""The OpenAPI 3.1 document: the table of the surfaces in the specification's form."""

from __future__ import annotations

import http
import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from penstock.contract import VERSION
from penstock.contract.schemas import DIALECT
from penstock.web.auth.credentials import STREAM_PATHS
from penstock_cli.openapi.operation import (
    JSON,
    SSE,
    TEXT,
    Answer,
    Json,
    Operation,
    Parameter,
    Schema,
    Shape,
    an_object,
)
from penstock_cli.openapi.parameters import IDS
from penstock_cli.openapi.surfaces import OPERATIONS

_DESCRIPTION: Final = """\
Starts, follows and cancels runs of AI agents, in the protocol that the client speaks.

Readers must accept fields that they do not know: later versions add them. Frames of the streams \
are described in catalogue.md and asyncapi.json, and by each surface's own contract."""

# What any request may be answered: contradicting credentials or a bad cursor, no or a bad
# credential, a right that is missing, an address that is wrong, too much of one user, a head that
# is too large, and a bus or an issuer that does not answer.
_ALWAYS: Final = (400, 401, 403, 422, 429, 431, 503)
_WITH_BODY: Final = (413, 415)
_PASSES: Final = frozenset({429, 503})  # they say when to try again
_RETRY_HEADER: Final[Json] = {
    "Retry-After": {
        "description": "After so many seconds the request may be sent again.",
        "schema": {"type": "integer"},
    }
}

_ERRORS: Final[Mapping[Shape, tuple[str, Json]]] = {
    "problem": (
        "application/problem+json",
        an_object(type=TEXT, title=TEXT, status={"type": "integer"}, detail=TEXT),
    ),
    "executions": (JSON, an_object(code=TEXT, message=TEXT, data={"type": "null"})),
    "detail": (JSON, an_object(detail={"type": ["string", "array", "object"]})),
}
_SECURITY: Final[Json] = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "A JSON Web Token; its scopes say what it may do.",
    },
    "cookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": "__Host-penstock_token",
        "description": "The same token, as POST /v1/login has set it.",
    },
    "csrf": {
        "type": "apiKey",
        "in": "header",
        "name": "X-CSRF-Token",
        "description": "From GET /v1/csrf; with the cookie, for what changes something.",
    },
    "stream_token": {
        "type": "apiKey",
        "in": "query",
        "name": "token",
        "description": "From POST /v1/tokens; for clients that can only be given a URL.",
    },
}
_RUN_ID_HEADER: Final[Json] = {
    "Penstock-Run-Id": {"description": "The run, where the answer is one's", "schema": TEXT}
}
_NAME: Final = re.compile(r"{(\w+)}")


def document() -> Json:
    """The whole document, as JSON."""
    schemas, references = _schemas()
    refusals = {(each.shape, status) for each in OPERATIONS for status in _statuses(each)}
    paths: dict[str, Json] = {}
    for each in OPERATIONS:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, references)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": VERSION,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "jsonSchemaDialect": DIALECT,
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas | {shape: schema for shape, (_, schema) in _ERRORS.items()},
            "responses": {
                f"{shape}_{status}": _refusal(shape, status) for shape, status in sorted(refusals)
            },
            "securitySchemes": _SECURITY,
        },
    }


def _schemas() -> tuple[Json, dict[type[BaseModel], Json]]:
    """Every model's schema by name, and a reference to each."""
    used = [
        schema
        for each in OPERATIONS
        for schema in (each.body, *(s for a in each.answers.values() for s in a.content.values()))
        if isinstance(schema, type)
    ]
    models = list(dict.fromkeys(used))
    found, defined = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    return defined["$defs"], {model: found[model, "validation"] for model in models}


def _operation(each: Operation, references: Mapping[type[BaseModel], Json]) -> Json:
    def media(schema: Schema) -> Json:
        return {"schema": references[schema] if isinstance(schema, type) else schema}

    def answer(told: Answer) -> Json:
        content = {type: media(schema) for type, schema in told.content.items()}
        headers = {"headers": _RUN_ID_HEADER} if SSE in content else {}
        return {"description": told.description, **headers} | (
            {"content": content} if content else {}
        )

    described: Json = {
        "operationId": each.id,
        "tags": [each.tag],
        "summary": each.summary,
        "security": _security(each),
        "parameters": [_in_path(name) for name in _NAME.findall(each.path)]
        + [_parameter(parameter) for parameter in each.parameters],
    }
    if each.body is not None:
        described["requestBody"] = {
            "required": each.body_required,
            "content": {type: media(each.body) for type in each.body_types},
        }
    told = {str(status): answer(told) for status, told in each.answers.items()}
    return described | {"responses": told | _refusals(each)}


def _refusals(each: Operation) -> Json:
    return {
        str(status): {"$ref": f"#/components/responses/{each.shape}_{status}"}
        for status in sorted(_statuses(each))
    }


def _statuses(each: Operation) -> set[int]:
    return {*_ALWAYS, *each.refusals, *(_WITH_BODY if each.body is not None else ())}


def _refusal(shape: Shape, status: int) -> Json:
    media_type, _ = _ERRORS[shape]
    again: Json = {"headers": _RETRY_HEADER} if status in _PASSES else {}
    return {
        "description": http.HTTPStatus(status).phrase,
        **again,
        "content": {media_type: {"schema": {"$ref": f"#/components/schemas/{shape}"}}},
    }


def _security(each: Operation) -> list[dict[str, Any]]:
    """Any of these; the lists are of scopes."""
    if each.needs is None:
        return []
    needs = list(each.needs)
    csrf: Json = {} if each.method == "GET" else {"csrf": []}
    allowed: list[dict[str, Any]] = [{"bearer": needs}, {"cookie": needs, **csrf}]
    streams = {_unnamed(path) for path in STREAM_PATHS}
    if each.method == "GET" and _unnamed(each.path) in streams:
        allowed.append({"stream_token": []})
    return allowed


def _unnamed(path: str) -> str:
    return _NAME.sub("{}", path)


def _in_path(name: str) -> Json:
    schema = {"type": "string", "minLength": 1}
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": IDS[name],
        "schema": schema,
    }


def _parameter(parameter: Parameter) -> Json:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.description,
        "schema": parameter.schema,
    }
