"""What the ADK surfaces have in common: which agent an app is, and how a refusal looks."""

from __future__ import annotations

from typing import Any, Final

import orjson
from pydantic import ValidationError
from starlette.responses import Response

from penstock.settings import AgentConfig, Config
from penstock.web.problems import Problem
from penstock_edge.edge import Edge

ADK: Final = "adk"
NOT_ENABLED: Final = (
    "ADK canonical streaming not enabled. "
    "Set ENABLE_ADK_CANONICAL_STREAM=true to use this endpoint."
)


def app_of(config: Config, name: str) -> AgentConfig:
    """The agent that an ADK client calls so. Raises Problem 404.

    An ADK agent by its upstream's name alone, since requests go on as they are; any other by our
    id for it, else by its upstream's name.
    """
    agent = config.by_app_name(name)
    if agent is not None:
        return agent
    others = [each for each in config.agents if each.protocol != ADK]
    found = [each for each in others if each.id == name] or [
        each for each in others if each.agent == name
    ]
    if not found:
        raise Problem(404, f"there is no agent with the appName {name[:128]}")
    return found[0]


def require_enabled(edge: Edge) -> None:
    """Raises Problem 501 unless the contract's flag is set."""
    if not edge.settings.enable_adk_canonical_stream:
        raise Problem(501, NOT_ENABLED)


def detail_shape(problem: Problem) -> Response:
    """`{detail}`: a text, or of a body that is not valid FastAPI's list of errors."""
    detail: Any = problem.more.get("errors", problem.detail)
    return json_response({"detail": detail}, problem.status)


def json_response(body: Any, status: int = 200) -> Response:
    """`application/json`."""
    return Response(orjson.dumps(body), status, media_type="application/json")


def unfit(error: ValidationError) -> Problem:
    """422 with FastAPI's list of errors."""
    errors: list[dict[str, Any]] = [
        {"type": e["type"], "loc": ["body", *e["loc"]], "msg": e["msg"]} for e in error.errors()
    ]
    return Problem(422, "; ".join(str(e["msg"]) for e in errors), errors=errors)
