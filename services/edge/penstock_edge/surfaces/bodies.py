"""Parts of bodies that several surfaces have: fields of requests, and responses in JSON."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from pydantic import AfterValidator
from starlette.responses import Response

from penstock_edge.surfaces.errors import InvalidBody, body_error


def json_response(body: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")


def not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty or only white space")
    return text


# The user's message, with which a run starts.
Message = Annotated[str, AfterValidator(not_blank)]


def workflow_input(value: Any, *where: str) -> dict[str, Any] | None:
    """Return the workflow's input from the value at the path `where`; None if there is no input.

    If the request body is a form, the value is the text of a JSON object.
    """
    if value in (None, ""):
        return None
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            value = None
    if not isinstance(value, dict):
        text = "the input of a workflow must be an object"
        raise InvalidBody([body_error("wrong_type", where, text)])
    return value
