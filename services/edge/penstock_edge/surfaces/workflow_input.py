"""Reads a workflow's input from requests of protocols that define no field for it. Pure."""

from __future__ import annotations

from typing import Any

import orjson

from penstock_edge.surfaces.errors import InvalidBody, body_error


def workflow_input(value: Any, *where: str) -> dict[str, Any] | None:
    """Return the workflow's input from the value at the path `where`; None if there is no input.

    If the request body is a form, the value is the text of a JSON object.

    Raises:
        InvalidBody: the value is not an object.
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
