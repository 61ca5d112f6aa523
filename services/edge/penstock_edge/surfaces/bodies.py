"""Parts of bodies that several surfaces have: fields of requests, and responses in JSON."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import orjson
from pydantic import AfterValidator, BaseModel, ValidationError
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from penstock.settings import AgentConfig, WorkflowAgent
from penstock.web.auth import identity_of
from penstock.web.bodies import is_deep, read_body, require_json
from penstock_edge.edge import Edge
from penstock_edge.sources.locate import StartPosition
from penstock_edge.stream.responses.pages import MAX_PAGE, NO_END, page
from penstock_edge.surfaces.errors import InvalidBody, body_error, invalid
from penstock_edge.surfaces.query import number
from penstock_edge.views.audience import seen_by
from penstock_edge.views.view import Source, View

Model = TypeVar("Model", bound=BaseModel)


async def json_body(edge: Edge, request: Request) -> bytes:
    """Return the body of a request that says that it has JSON; else 415."""
    require_json(request)
    return await read_body(request, edge.settings.max_body_bytes)


def json_response(body: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")


async def page_of(
    edge: Edge,
    request: HTTPConnection,
    view: View,
    position: StartPosition,
    *,
    source: Source | None = None,
    end: int = NO_END,
) -> dict[str, Any]:
    """Return the page of the size that the request names, as `pages.page` does."""
    limit = number(request.query_params.get("limit"), "limit", MAX_PAGE, MAX_PAGE)
    who, allowance = identity_of(request.scope), edge.allowance()
    view, turn = seen_by(who, view), edge.turns.for_caller(who)
    return await page(edge.bus, view, position, limit, allowance, turn, source=source, end=end)


def document_of(body: bytes) -> Any:
    """Raise InvalidBody for a body that is no JSON, or is nested too deeply."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise invalid("json_invalid", (), f"the body is not JSON: {error}") from error
    if is_deep(document):
        raise invalid("too_deep", (), "the body is nested too deeply")
    return document


def validated(model: type[Model], document: Any, *where: str | int) -> Model:
    """Raise InvalidBody, in FastAPI's form, if the part of the body at this path does not fit."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise InvalidBody(
            body_error(each["type"], (*where, *each["loc"]), each["msg"]) for each in error.errors()
        ) from error


def not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty or only white space")
    return text


# The user's message, with which a run starts.
Message = Annotated[str, AfterValidator(not_blank)]


def workflow_input(agent: AgentConfig, value: Any, *where: str) -> dict[str, Any] | None:
    """Read the value at the path `where`; in a form, it is the text of a JSON object. Return None
    for an agent that is no workflow."""
    if value in (None, "") or not isinstance(agent, WorkflowAgent):
        return None
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            value = None
    if not isinstance(value, dict):
        text = "the input of a workflow must be an object"
        raise invalid("wrong_type", where, text)
    return value
