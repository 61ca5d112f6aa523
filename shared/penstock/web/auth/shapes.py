"""How each surface words an error, by the path it is under."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import orjson
from starlette.responses import Response

from penstock.web.problems import Problem, problem_response

Shape = Callable[[Problem], Response]

_EXECUTIONS_CODES: Final = {
    400: "INVALID_REQUEST",
    401: "UNAUTHORIZED",
    403: "FORBIDDEN",
    429: "TOO_MANY_REQUESTS",
    503: "UNAVAILABLE",
}


def detail_response(problem: Problem) -> Response:
    """`{detail}`: what Agno and ADK servers answer, and so their clients expect."""
    return _json({"detail": problem.detail}, problem.status)


def executions_response(problem: Problem) -> Response:
    """`{code, message, data: null}`: executions-sse.md."""
    code = _EXECUTIONS_CODES.get(problem.status, "ERROR")
    return _json({"code": code, "message": problem.detail, "data": None}, problem.status)


# A surface with a shape of its own registers it here; the longest prefix that fits decides.
ERROR_SHAPES: Final[dict[str, Shape]] = {
    "/v1": problem_response,
    "/api/service/v1/executions": executions_response,
    "/api/sse": detail_response,
    "/run_sse": detail_response,
    "/run": detail_response,
    "/apps": detail_response,
    "/config": detail_response,
    "/health": detail_response,
    "/list-apps": detail_response,
    "/version": detail_response,
    "/sessions": detail_response,
    "/agents": detail_response,
    "/teams": detail_response,
    "/workflows": detail_response,
    "/agui": detail_response,
}


def shape_of(path: str, shapes: Mapping[str, Shape] = ERROR_SHAPES) -> Shape:
    """The shape for this path: problem details where no surface says otherwise."""
    fitting = [prefix for prefix in shapes if path == prefix or path.startswith(f"{prefix}/")]
    return shapes[max(fitting, key=len)] if fitting else problem_response


def _json(body: dict[str, object], status: int) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")
