"""Helpers of the routes of workflows: parameters, responses, and errors."""

from __future__ import annotations

from functools import partial
from typing import Final, TypeVar

from starlette.requests import Request

from penstock.off_loop import OFF_LOOP
from penstock.runs.workflows import NAME
from penstock.web.auth import identity_of
from penstock.web.bodies import read_body
from penstock.web.operation import Operation, in_path
from penstock.web.problems import Problem
from penstock_workflows.definition import InvalidDefinition, Loaded, load
from penstock_workflows.definition.document import MAX_BYTES

T = TypeVar("T")

YAML: Final = "application/yaml"
BODY_TYPES: Final = ("application/json", YAML)
_YAML_TYPES: Final = frozenset({YAML, "application/x-yaml", "text/yaml", "text/x-yaml"})

operation = partial(Operation, tag="workflows")
WORKFLOW: Final = in_path("name", "The name of the workflow")
VERSION: Final = in_path("version", "The version of the workflow")


def name_of(request: Request) -> str:
    """Return the workflow's name in the path. Raises Problem 404 for a text that can be no name."""
    name = str(request.path_params["name"])
    # A client can send any text, also one with characters that have a meaning in a bucket's key.
    if NAME.fullmatch(name) is None:
        raise Problem(404, f"there is no workflow {name[:64]!r}")
    return name


async def read_definition(request: Request) -> Loaded:
    """Return the definition in the body. Raises Problem 413, 415 or 422 (with each mistake and its
    line)."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = media_type == "application/json" or media_type.endswith("+json")
    if not is_json and media_type not in _YAML_TYPES and not media_type.endswith("+yaml"):
        kind = media_type or "of no type"
        raise Problem(415, f"the body is {kind}; send application/json or {YAML}")
    content = await read_body(request, MAX_BYTES)
    try:
        # Loading a hostile definition takes a second or two.
        return await OFF_LOOP.run(identity_of(request).tenant_user, partial(load, content))
    except InvalidDefinition as error:
        raise invalid_definition(error) from None


def invalid_definition(error: InvalidDefinition) -> Problem:
    return Problem(422, str(error), errors=[each.shown() for each in error.problems])
