"""Write errors as responses, either as RFC 9457 problem details or in the form that a surface's
contract requires.

A handler raises a `Problem`, and an `ErrorShape` writes the problem as a response.
"""

from __future__ import annotations

import http
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from penstock.log_fields import run_of
from penstock.redaction import redacted
from penstock.validation import reason_of

log = logging.getLogger(__name__)

# The least and the greatest number of seconds in the header Retry-After. The number is random, so
# that clients that were refused at the same time do not try again at the same time.
RETRY_AFTER_S: Final = (1, 5)


class Problem(Exception):
    """The error that becomes an HTTP response. The text says what is wrong and what to do.

    Credentials and internal addresses are removed from the text of a 5xx, because such a text often
    comes from another server or from a library. `headers` has further headers of the response, and
    `more` further members of the problem details.
    """

    def __init__(
        self, status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        detail = redacted(detail) if status >= http.HTTPStatus.INTERNAL_SERVER_ERROR else detail
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.more = more
        self.headers = headers or {}


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """The form in which a surface writes an error.

    `name` is the name of `schema` in the OpenAPI document. `body` makes the content of an error.
    `write` makes the bytes from this content, either JSON or a page for people. `headers` has
    further headers of the answer.
    """

    name: str
    media_type: str
    schema: Mapping[str, Any]
    body: Callable[[Problem], Mapping[str, Any]]
    write: Callable[[Mapping[str, Any]], bytes] = orjson.dumps
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self, problem: Problem) -> Response:
        body = self.write(self.body(problem))
        response = Response(body, problem.status, media_type=self.media_type)
        response.headers.update({**self.headers, **problem.headers})
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
    """Return the schema of an error in which all of these properties are required."""
    return {"type": "object", "properties": properties, "required": list(properties)}


_TEXT: Final = {"type": "string"}
PROBLEM: Final = ErrorShape(
    "problem",
    "application/problem+json",
    schema_of(type=_TEXT, title=_TEXT, status={"type": "integer"}, detail=_TEXT),
    _problem_details,
)
# The form of FastAPI's errors. `detail` is a text, or a list of the mistakes in the body.
DETAIL: Final = ErrorShape(
    "detail",
    "application/json",
    schema_of(detail={"type": ["string", "array", "object"]}),
    _detail,
)


def problem_response(problem: Problem) -> Response:
    return PROBLEM.response(problem)


def invalid(error: ValidationError) -> Problem:
    """Return a 422 that names every invalid field."""
    errors = [
        {"field": ".".join(map(str, e["loc"])) or "body", "message": reason_of(e)}
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
    path = request.url.path
    text = "%s %s: the client left while it sent its body"
    log.info(text, request.method, path, extra=run_of(path))
    return Response(status_code=400)  # the client has left and does not get this response


async def _on_any(request: Request, error: Exception) -> Response:
    path = request.url.path
    log.error("%s %s failed", request.method, path, exc_info=error, extra=run_of(path))
    return PROBLEM.response(Problem(500, "an internal error; the log has the details"))


exception_handlers = {
    Problem: _on_problem,
    HTTPException: _on_http,
    ClientDisconnect: _on_left,
    Exception: _on_any,
}


REALM = 'Bearer realm="penstock"'


def missing_credentials() -> Problem:
    """Return 401 for a request without credentials. The response has no error code (RFC 6750
    section 3)."""
    return Problem(401, "say who you are: Authorization: Bearer", {"www-authenticate": REALM})


def invalid_token(reason: str) -> Problem:
    """Return 401 for an invalid credential. `reason` must not contain a part of the token."""
    challenge = f'{REALM}, error="invalid_token", error_description="{reason}"'
    return Problem(401, reason, {"www-authenticate": challenge})


def invalid_request(reason: str) -> Problem:
    challenge = f'{REALM}, error="invalid_request", error_description="{reason}"'
    return Problem(400, reason, {"www-authenticate": challenge})


def unavailable(reason: str) -> Problem:
    return Problem(503, reason, {"retry-after": "1"})
