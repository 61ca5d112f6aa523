"""Read request bodies.

A body that is too large, has a wrong media type, or is invalid is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.web.body_memory import BODY_MEMORY, BodyMemory
from penstock.web.problems import Problem, invalid

MAX_BODY_BYTES = 10 * 1024 * 1024
MAX_LEVELS = 100
# The greatest number of values in a JSON body. Without this limit, a body of 10 MiB could contain
# 3.4 million empty lists. Parsing these lists takes 200 MiB and ten seconds, in which the process
# does nothing else.
MAX_VALUES: Final = 100_000
_FORMS: Final = ("multipart/form-data", "application/x-www-form-urlencoded")
# The greatest number of bytes that a route without a body reads and ignores. Some clients send `{}`
# to such a route.
MAX_IGNORED_BYTES: Final = 64 * 1024
# The greatest number of bytes of a refused body that are still read. The body is read so that the
# client finishes sending and then reads the answer.
DRAIN_BYTES: Final = 64 * 1024 * 1024
DRAIN_S: Final = 10.0

log = logging.getLogger(__name__)

Model = TypeVar("Model", bound=BaseModel)


def is_deep(value: object, levels: int = MAX_LEVELS) -> bool:
    """Return whether a JSON value has more than `levels` nested levels. Some libraries cannot
    encode such values."""
    if not isinstance(value, dict | list):
        return False
    if not levels:
        return True
    inner = value.values() if isinstance(value, dict) else value
    return any(is_deep(each, levels - 1) for each in inner)


def has_many_values(text: bytes, most: int = MAX_VALUES) -> bool:
    """Return whether a JSON text has more than about `most` values.

    The text is not parsed. Instead, the brackets and commas outside of strings are counted. So the
    number may be wrong by one for each object or list.
    """
    if _marks(text) <= most:
        return False
    bare = text.replace(rb"\\", b"").replace(rb"\"", b"")
    # a value has at most four quotes: two of a key, and two of a text
    if bare.count(b'"') > 4 * most:
        return True
    return _marks(b" ".join(bare.split(b'"')[::2])) > most


def _marks(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def require_few_values(text: bytes | str) -> None:
    """Raise Problem 422 for JSON with too many values, before it is parsed."""
    if has_many_values(text.encode() if isinstance(text, str) else text):
        raise Problem(422, f"the JSON has more than {MAX_VALUES} values; send less at a time")


async def read_body(request: Request, limit_bytes: int = MAX_BODY_BYTES) -> bytes:
    body = await read_pieces(request, limit_bytes, lambda _: None)
    if not request.headers.get("content-type", "").startswith(_FORMS):
        require_few_values(body)
    return body


async def read_pieces(
    request: Request, limit_bytes: int, look: Callable[[bytes], object], *, keeps: bool = True
) -> bytes:
    """Return the body, and call `look` with each of its pieces as soon as the piece arrives.

    As soon as the body exceeds the limit, reading stops and Problem 413 is raised. Raises Problem
    503 if the caller is not authenticated, and `BodyMemory` refuses the body. Without `keeps`, the
    result is empty, and the pieces take no memory.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit_bytes:
        raise _too_large(limit_bytes)
    memory: BodyMemory | None = request.scope.get("state", {}).get(BODY_MEMORY)
    address = request.client.host if request.client is not None else ""
    size = 0
    async with (memory or BodyMemory(limit_bytes, limit_bytes)).reading(address) as body:
        async for piece in request.stream():
            size += len(piece)
            if size > limit_bytes:
                raise _too_large(limit_bytes)
            look(piece)
            body.add(piece if keeps else b"")
        return body.content()


async def ignore_body(request: Request) -> None:
    """Read and ignore the body of a request that needs no body. Raises Problem 413 if the body is
    large. Handlers must call this function first, so that a refused request has no effect."""
    await read_body(request, MAX_IGNORED_BYTES)


def require_json(request: Request) -> None:
    """Raise Problem 415 unless the media type of the body is JSON.

    A request without a media type is refused, too. Otherwise a foreign page could send such a
    request, because the browser sends it without a CORS preflight.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise Problem(415, f"the body is {media_type or 'of no type'}; send application/json")


async def read_json(request: Request, limit_bytes: int = MAX_BODY_BYTES) -> object:
    """Return the body as JSON. Raises Problem 415 for another media type, 422 for invalid JSON."""
    require_json(request)
    body = await read_body(request, limit_bytes)
    try:
        document: object = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Problem(422, f"the body is not JSON: {error}") from error
    if is_deep(document):
        raise Problem(422, f"the body is nested deeper than {MAX_LEVELS} levels")
    return document


async def read_model(
    request: Request, model: type[Model], limit_bytes: int = MAX_BODY_BYTES
) -> Model:
    """Return the body as a value of this model. Raises Problem 413 or 415 as `read_json` does, and
    422 with the list of invalid fields."""
    document = await read_json(request, limit_bytes)
    try:
        return model.model_validate(document, strict=True)
    except ValidationError as error:
        raise invalid(error) from error


def read_query(request: Request, model: type[Model]) -> Model:
    """Return the query as a value of this model. Raises Problem 422 with the invalid fields."""
    try:
        return model.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise invalid(error) from error


def body_read_before_error(app: ASGIApp) -> ASGIApp:
    """Wrap an app so that an error is answered only after the client has sent the whole body.

    If the server closed the connection while the client was still sending, the connection would be
    reset, and the client would not get the answer.
    """

    async def reading_body_first(scope: Scope, receive: Receive, send: Send) -> None:
        # No middleware wraps `receive`, so `receive` is a method of uvicorn's request cycle, and
        # `receive.__self__` is the cycle. With another server than uvicorn, this wrapper does
        # nothing.
        cycle: Any = getattr(receive, "__self__", None)
        if scope["type"] != "http" or not getattr(cycle, "more_body", False):
            await app(scope, receive, send)
            return

        async def send_after(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                await _drain(cycle, receive)
            await send(message)

        await app(scope, receive, send_after)

    return reading_body_first


async def _drain(cycle: Any, receive: Receive) -> None:
    if cycle.waiting_for_100_continue:
        return  # the client waits for 100 Continue and sends no body
    size = 0
    try:
        async with asyncio.timeout(DRAIN_S):
            while cycle.more_body and size < DRAIN_BYTES:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return
                size += len(message.get("body", b""))
    except TimeoutError:
        log.debug("a client is still sending a body that was refused")


def _too_large(limit_bytes: int) -> Problem:
    return Problem(413, f"the body is larger than {limit_bytes} bytes")
