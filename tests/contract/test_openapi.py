"""The OpenAPI document is what is made, tells of every route, and leads nowhere that is not."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from penstock.contract.schemas import text
from penstock.web.problems import Problem
from penstock_cli.openapi import document
from penstock_cli.openapi.document import OPERATIONS
from penstock_edge.surfaces.page.files import FOLDER
from support.drive.access import ROWS
from support.drive.contract import CONTRACT

OPENAPI: dict[str, Any] = json.loads((CONTRACT / "openapi.json").read_text())
PUBLISHED = [operation for operation in OPERATIONS if operation.published]
# a WebSocket is opened by a GET; ROWS has those that answer HTTP
SOCKET = ("GET", "/v1/sessions/{}/events/ws")


def unnamed(path: str) -> str:
    return re.sub(r"{\w+}", "{}", path)


def told() -> set[tuple[str, str]]:
    return {
        (method.upper(), unnamed(path))
        for path, item in OPENAPI["paths"].items()
        for method in item
    }


def test_what_is_committed_is_what_is_made() -> None:
    """Run `make contract` after a change of the API, and look at what it changed."""
    assert (CONTRACT / "openapi.json").read_text() == text(document())


def test_the_edge_serves_what_is_committed() -> None:
    assert (FOLDER / "openapi.json").read_text() == (CONTRACT / "openapi.json").read_text()


def test_every_route_of_every_service_is_in_the_document() -> None:
    """ROWS is held to the services' own routes by the tests of access."""
    assert told() == {(row.method, unnamed(row.route)) for row in ROWS} | {SOCKET}
    assert len(PUBLISHED) == len(told())


def test_every_id_in_a_path_is_described() -> None:
    for path, item in OPENAPI["paths"].items():
        for operation in item.values():
            within = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert within == set(re.findall(r"{(\w+)}", path))


def test_every_operation_has_a_name_of_its_own() -> None:
    names = [operation.id for operation in PUBLISHED]
    assert len(names) == len(set(names))


def test_every_reference_leads_somewhere() -> None:
    for pointer in set(re.findall(r'"\$ref": "([^"]*)"', text(OPENAPI))):
        target = OPENAPI
        for token in pointer.removeprefix("#/").split("/"):
            target = target[token]


def test_every_schema_is_valid() -> None:
    for schema in OPENAPI["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_an_operation_needs_the_scopes_of_its_route(row: Any) -> None:
    [operation] = [
        each
        for each in PUBLISHED
        if (each.method, unnamed(each.path)) == (row.method, unnamed(row.route))
    ]
    # raw is asked of some agents' bytes only
    assert {*operation.scopes, *operation.any_scope} - {"administer"} == set(row.needs) - {"raw"}
    assert operation.public == row.public


@pytest.mark.parametrize("operation", PUBLISHED, ids=lambda each: each.id)
def test_an_error_has_the_shape_that_its_surface_gives_it(operation: Any) -> None:
    answer = operation.errors.response(Problem(401, "who are you?"))
    schema = OPENAPI["components"]["schemas"][operation.errors.name]
    assert set(json.loads(bytes(answer.body))) == set(schema["required"])
