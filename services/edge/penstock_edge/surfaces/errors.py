"""Errors in the shape that FastAPI gives them, which the clients of Agno and ADK read."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from penstock.web.problems import Problem


def invalid_body(error: ValidationError) -> Problem:
    """422 with FastAPI's list of errors."""
    errors: list[dict[str, Any]] = [
        {"type": e["type"], "loc": ["body", *e["loc"]], "msg": e["msg"]} for e in error.errors()
    ]
    return Problem(422, "; ".join(str(e["msg"]) for e in errors), errors=errors)
