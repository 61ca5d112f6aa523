"""Errors as RFC 9457 problem details."""

from __future__ import annotations

import http
import logging
from typing import Any

import orjson
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from penstock.redaction import redacted

log = logging.getLogger(__name__)


class Problem(Exception):
    """An answer that is an error: the HTTP status, and what is wrong and what to do.

    The words of a 5xx are often another server's or a library's, so credentials and internal
    addresses are taken out of them.
    """

    def __init__(self, status: int, detail: str, **more: Any) -> None:
        detail = redacted(detail) if status >= http.HTTPStatus.INTERNAL_SERVER_ERROR else detail
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.more = more


def problem_response(problem: Problem) -> Response:
    """`application/problem+json` with type, title, status, detail and what else there is."""
    body = {
        "type": "about:blank",
        "title": http.HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": problem.detail,
        **problem.more,
    }
    return Response(orjson.dumps(body), problem.status, media_type="application/problem+json")


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
    return problem_response(error)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = problem_response(Problem(error.status_code, error.detail))
    response.headers.update(error.headers or {})
    return response


async def _on_left(request: Request, error: Exception) -> Response:
    log.info("%s %s: the client has left in its body", request.method, request.url.path)
    return Response(status_code=400)  # for nobody: it cannot be sent


async def _on_any(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem_response(Problem(500, "an internal error; the log has the details"))


exception_handlers = {
    Problem: _on_problem,
    HTTPException: _on_http,
    ClientDisconnect: _on_left,
    Exception: _on_any,
}
