"""Errors that are answers: RFC 9457 problem details, or the shape that a surface's contract gives.

`Problem` is what a handler raises. An `ErrorShape` writes it as a response.
"""

from __future__ import annotations

import http
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from penstock.redaction import redacted

log = logging.getLogger(__name__)

# Clients that were all refused at once must not all come back at once.
RETRY_AFTER_S: Final = (1, 5)


class Problem(Exception):
    """An answer that is an error: the HTTP status, and what is wrong and what to do.

    The text of a 5xx often comes from another server or from a library, so credentials and internal
    addresses are removed from it. `more` are further members of the problem details.
    """

    def __init__(self, status: int, detail: str, **more: Any) -> None:
        detail = redacted(detail) if status >= http.HTTPStatus.INTERNAL_SERVER_ERROR else detail
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.more = more
        self.headers: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """How a surface writes an error.

    `name` is the name of `schema` in the OpenAPI document; `body` makes the JSON document.
    """

    name: str
    media_type: str
    schema: Mapping[str, Any]
    body: Callable[[Problem], Mapping[str, Any]]

    def response(self, problem: Problem) -> Response:
        """The problem as a response, with its headers; a 503 says when to try again."""
        body = orjson.dumps(self.body(problem))
        response = Response(body, problem.status, media_type=self.media_type)
        response.headers.update(problem.headers)
        if problem.status == http.HTTPStatus.SERVICE_UNAVAILABLE:
            response.headers.setdefault("retry-after", str(random.randint(*RETRY_AFTER_S)))
        return response


def _problem_details(problem: Problem) -> Mapping[str, Any]:
    return {
        "type": "about:blank",
        "title": http.HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": problem.detail,
        **problem.more,
    }


def _detail(problem: Problem) -> Mapping[str, Any]:
    return {"detail": problem.more.get("errors", problem.detail)}


def schema_of(**properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of an error with all of these properties."""
    return {"type": "object", "properties": properties, "required": list(properties)}


_TEXT: Final = {"type": "string"}
PROBLEM: Final = ErrorShape(
    "problem",
    "application/problem+json",
    schema_of(type=_TEXT, title=_TEXT, status={"type": "integer"}, detail=_TEXT),
    _problem_details,
)
# What servers made with FastAPI answer: a text, or the list of what is wrong in the body.
DETAIL: Final = ErrorShape(
    "detail",
    "application/json",
    schema_of(detail={"type": ["string", "array", "object"]}),
    _detail,
)


def problem_response(problem: Problem) -> Response:
    """`application/problem+json` with type, title, status, detail and what else there is."""
    return PROBLEM.response(problem)


def invalid(error: ValidationError) -> Problem:
    """422 that names every field that is wrong."""
    errors = [
        {"field": ".".join(map(str, e["loc"])) or "body", "message": e["msg"]}
        for e in error.errors()
    ]
    detail = "; ".join(f"{e['field']}: {e['message']}" for e in errors)
    return Problem(422, detail, errors=errors)


async def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return PROBLEM.response(error)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = PROBLEM.response(Problem(error.status_code, error.detail))
    response.headers.update(error.headers or {})
    return response


async def _on_left(request: Request, error: Exception) -> Response:
    log.info("%s %s: the client left while it sent its body", request.method, request.url.path)
    return Response(status_code=400)  # it reaches nobody


async def _on_any(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return PROBLEM.response(Problem(500, "an internal error; the log has the details"))


exception_handlers = {
    Problem: _on_problem,
    HTTPException: _on_http,
    ClientDisconnect: _on_left,
    Exception: _on_any,
}
