"""Reads the fields of a request body on the Agno surface: a form in one of two encodings, or
JSON."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

import orjson
from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from penstock.web.bodies import read_body
from penstock.web.problems import Problem
from penstock_edge.surfaces.agno.request import error
from penstock_edge.surfaces.errors import InvalidBody, shortened

MAX_FIELDS: Final = 1000


async def fields_of(request: Request, limit_bytes: int) -> Mapping[str, Any]:
    # The fields of a form are texts; its empty fields are left out.
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == "multipart/form-data":
        body = await read_body(request, limit_bytes)
        return await _multipart(request.headers, body, limit_bytes)
    if media_type == "application/x-www-form-urlencoded":
        return _urlencoded(await read_body(request, limit_bytes))
    if media_type == "application/json" or media_type.endswith("+json"):
        return _json(await read_body(request, limit_bytes))
    if not media_type and not await read_body(request, limit_bytes):
        return {}  # what HTTP clients send for a form without fields
    raise Problem(415, f"the body is {media_type or 'of no type'}; send a form, or JSON")


def _urlencoded(body: bytes) -> Mapping[str, str]:
    try:
        given = parse_qsl(body.decode(), errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError as cause:
        raise InvalidBody([error("form_invalid", (), f"the form: {cause}")]) from cause
    return _once(given)


def _json(body: bytes) -> Mapping[str, Any]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as cause:
        raise InvalidBody([error("json_invalid", (), f"no JSON: {cause}")]) from cause
    if not isinstance(fields, dict):
        raise InvalidBody([error("dict_type", (), "must be a JSON object")])
    return fields


async def _multipart(headers: Headers, body: bytes, limit_bytes: int) -> Mapping[str, str]:
    async def whole() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(
        headers, whole(), max_fields=MAX_FIELDS, max_files=MAX_FIELDS, max_part_size=limit_bytes
    )
    try:
        form = await parser.parse()
    except MultiPartException as cause:
        raise Problem(400, cause.message) from cause
    try:
        texts = []
        for name, value in form.multi_items():
            if isinstance(value, str):
                texts.append((name, value))
            elif value.filename or value.size:
                raise InvalidBody([error("files_unsupported", (name,), "takes no files")])
    finally:
        await form.close()
    return _once((name, value) for name, value in texts if value)


def _once(given: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """Refuse a name given twice: the edge would check one value, and the server could read the
    other."""
    fields: dict[str, str] = {}
    for name, value in given:
        if name in fields:
            raise InvalidBody([error("given_twice", (shortened(name),), "is given more than once")])
        fields[name] = value
    return fields
