"""The OpenAPI 3.1 document of a set of operations."""

from __future__ import annotations

import http
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from penstock.contract import VERSION
from penstock.contract.schemas import DIALECT
from penstock.web.auth.grants import Permission
from penstock.web.operation import (
    SSE,
    TEXT,
    Answer,
    Json,
    Operation,
    Parameter,
    Schema,
)
from penstock.web.problems import ErrorShape

_DESCRIPTION: Final = """\
Starts, follows and cancels runs of AI agents, in the protocol that the client speaks.

Readers must accept fields that they do not know: later versions add them. Frames of the streams \
are described in catalogue.md and asyncapi.json, and by each surface's own contract."""

# Every request may be answered with these: credentials that contradict each other or a bad cursor,
# no credential or one that does not hold, a missing scope, a bad parameter, a limit for each user,
# a head that is too large, and a bus or an issuer that does not answer.
_ALWAYS: Final = (400, 401, 403, 422, 429, 431, 503)
_WITH_BODY: Final = (413, 415)
_RETRYABLE: Final = frozenset({429, 503})
_RETRY_HEADER: Final[Json] = {
    "Retry-After": {
        "description": "After so many seconds the request may be sent again.",
        "schema": {"type": "integer"},
    }
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
    "Penstock-Run-Id": {
        "description": "The run, where the stream is that of one run",
        "schema": TEXT,
    }
}


def document(operations: Iterable[Operation]) -> Json:
    """Return the whole document, as JSON, of the operations that are to be published.

    Raises:
        ValueError: two operations have the same id.
    """
    published = [each for each in operations if each.published]
    ids = [each.id for each in published]
    if twice := sorted({each for each in ids if ids.count(each) > 1}):
        raise ValueError(f"operations with the same id: {', '.join(twice)}")
    schemas, references = _schemas(published)
    shapes = {each.errors.name: each.errors for each in published}
    refusals = {(each.errors.name, status) for each in published for status in _statuses(each)}
    paths: dict[str, Json] = {}
    for each in published:
        paths.setdefault(each.template, {})[each.method.lower()] = _operation(each, references)
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
            "schemas": schemas | {name: dict(shape.schema) for name, shape in shapes.items()},
            "responses": {
                f"{name}_{status}": _refusal(shapes[name], status)
                for name, status in sorted(refusals)
            },
            "securitySchemes": _SECURITY,
        },
    }


def _schemas(operations: Sequence[Operation]) -> tuple[Json, dict[type[BaseModel], Json]]:
    """Every model's schema by name, and a reference to each."""
    used = [
        schema
        for each in operations
        for schema in (each.body, *(s for a in each.answers.values() for s in a.content.values()))
        if isinstance(schema, type)
    ]
    models = list(dict.fromkeys(used))
    found, defined = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    return defined.get("$defs", {}), {model: found[model, "validation"] for model in models}


def _operation(each: Operation, references: Mapping[type[BaseModel], Json]) -> Json:
    def media(schema: Schema) -> Json:
        return {"schema": references[schema] if isinstance(schema, type) else schema}

    def answer(declared: Answer) -> Json:
        content = {media_type: media(schema) for media_type, schema in declared.content.items()}
        headers = {"headers": _RUN_ID_HEADER} if SSE in content else {}
        return {"description": declared.description, **headers} | (
            {"content": content} if content else {}
        )

    described: Json = {"operationId": each.id, "tags": [each.tag], "summary": each.summary}
    if text := _description(each):
        described["description"] = text
    described["security"] = _security(each)
    described["parameters"] = [_parameter(parameter) for parameter in each.parameters]
    if each.body is not None:
        example: Json = {} if each.example is None else {"example": each.example}
        described["requestBody"] = {
            "required": each.body_required,
            "content": {media_type: media(each.body) | example for media_type in each.body_types},
        }
    answers = {str(status): answer(declared) for status, declared in each.answers.items()}
    return described | {"responses": answers | _refusals(each)}


def _description(each: Operation) -> str:
    further = [f"Needs the scope `{name}` {when}." for name, when in each.sometimes.items()]
    return " ".join(filter(None, [each.description, *further]))


def _refusals(each: Operation) -> Json:
    return {
        str(status): {"$ref": f"#/components/responses/{each.errors.name}_{status}"}
        for status in sorted(_statuses(each))
    }


def _statuses(each: Operation) -> set[int]:
    return {*_ALWAYS, *each.refusals, *(_WITH_BODY if each.body is not None else ())}


def _refusal(shape: ErrorShape, status: int) -> Json:
    headers: Json = {"headers": _RETRY_HEADER} if status in _RETRYABLE else {}
    schema = {"$ref": f"#/components/schemas/{shape.name}"}
    return {
        "description": http.HTTPStatus(status).phrase,
        **headers,
        "content": {shape.media_type: {"schema": schema}},
    }


def _security(each: Operation) -> list[dict[str, Any]]:
    if each.public:
        return []
    csrf: Json = {} if each.method == "GET" else {"csrf": []}
    allowed: list[dict[str, Any]] = []
    for scopes in _scopes(each):
        allowed += [{"bearer": scopes}, {"cookie": scopes, **csrf}]
    return allowed + ([{"stream_token": []}] if each.accepts_stream_token else [])


def _scopes(each: Operation) -> list[list[Permission]]:
    if not each.any_scope:
        return [[*each.scopes]]
    return [[*each.scopes, scope] for scope in each.any_scope]


def _parameter(parameter: Parameter) -> Json:
    required = {"required": True} if parameter.location == "path" else {}
    return {
        "name": parameter.name,
        "in": parameter.location,
        **required,
        "description": parameter.description,
        "schema": parameter.schema,
    }
