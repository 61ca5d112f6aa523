"""Errors in the shape that FastAPI gives them, which the clients of Agno and ADK read."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from starlette.responses import Response

from penstock.web.problems import Problem
from penstock_edge.surfaces.responses import json_response


def detail_shape(problem: Problem) -> Response:
    """`{detail}`: a text, or FastAPI's list of errors where a body is not valid."""
    detail: Any = problem.more.get("errors", problem.detail)
    return json_response({"detail": detail}, problem.status)


def invalid_body(error: ValidationError) -> Problem:
    """422 with FastAPI's list of errors."""
    errors: list[dict[str, Any]] = [
        {"type": e["type"], "loc": ["body", *e["loc"]], "msg": e["msg"]} for e in error.errors()
    ]
    return Problem(422, "; ".join(str(e["msg"]) for e in errors), errors=errors)
