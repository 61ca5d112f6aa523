"""The OpenAPI document is up to date, has every published route, and has no broken reference."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from penstock.contract import openapi, records, typescript
from penstock.contract.schemas import text
from penstock.web.operation import Operation
from penstock.web.problems import Problem
from penstock_cli.openapi import OPERATIONS, document
from penstock_console.files import FOLDER
from support.drive.contract import CONTRACT
from support.drive.repository import ROOT

CLIENTS = ROOT / "clients"
OPENAPI: dict[str, Any] = json.loads((CONTRACT / "openapi.json").read_text())
PUBLISHED = [operation for operation in OPERATIONS if operation.published]


def unnamed(path: str) -> str:
    return re.sub(r"{\w+}", "{}", path)


def told() -> set[tuple[str, str]]:
    return {
        (method.upper(), unnamed(path))
        for path, item in OPENAPI["paths"].items()
        for method in item
    }


def test_what_is_committed_is_what_is_made() -> None:
    """If this fails after a change of the API, run `make contract` and review its changes."""
    assert (CONTRACT / "openapi.json").read_text() == text(document())


def test_the_records_of_the_clients_are_those_of_the_document() -> None:
    """If this fails after a change of the API, run `make contract` and review its changes."""
    parts = records.parts_of(OPENAPI)
    made = ast.parse(records.module(parts))
    models = (CLIENTS / "python/penstock_client/models.py").read_text()
    assert ast.dump(ast.parse(models)) == ast.dump(made)
    declared = (CLIENTS / "javascript/records.d.ts").read_text()
    assert declared == typescript.records(parts)
    events = (CLIENTS / "javascript/events.d.ts").read_text()
    assert events == (CONTRACT / "penstock.d.ts").read_text()


def test_the_published_document_is_the_file_that_the_console_serves() -> None:
    assert (CONTRACT / "openapi.json").resolve() == FOLDER / "openapi.json"


def test_every_operation_that_is_to_be_published_is_in_the_document() -> None:
    """The tests of access compare OPERATIONS with the services' own routes."""
    assert told() == {(each.method, unnamed(each.template)) for each in PUBLISHED}
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


@pytest.mark.parametrize("operation", PUBLISHED, ids=lambda each: each.id)
def test_the_document_names_the_scopes_of_an_operation(operation: Operation) -> None:
    described = OPENAPI["paths"][operation.template][operation.method.lower()]
    bearers = [each["bearer"] for each in described["security"] if "bearer" in each]
    tokens = [each for each in described["security"] if "stream_token" in each]
    choices = operation.any_scope or (None,)
    wanted = [{*operation.scopes, choice} - {None} for choice in choices]
    assert [set(each) for each in bearers] == ([] if operation.public else wanted)
    assert bool(tokens) == operation.accepts_stream_token
    for scope in operation.sometimes:
        assert f"`{scope}`" in described["description"]


@pytest.mark.parametrize(
    "operation", [each for each in PUBLISHED if each.example is not None], ids=lambda each: each.id
)
def test_an_example_is_a_body_that_the_operation_takes(operation: Operation) -> None:
    described = OPENAPI["paths"][operation.template][operation.method.lower()]
    for media in described["requestBody"]["content"].values():
        root = {**media["schema"], "components": OPENAPI["components"]}
        Draft202012Validator(root).validate(media["example"])


def test_two_operations_of_the_same_id_are_refused() -> None:
    with pytest.raises(ValueError, match="operations with the same id: get_v1_runs"):
        openapi.document([PUBLISHED[1], *OPERATIONS])


@pytest.mark.parametrize("operation", PUBLISHED, ids=lambda each: each.id)
def test_an_error_has_the_shape_that_its_surface_gives_it(operation: Operation) -> None:
    answer = operation.errors.response(Problem(401, "who are you?"))
    schema = OPENAPI["components"]["schemas"][operation.errors.name]
    if "json" not in operation.errors.media_type:  # a page for people
        assert schema == {"type": "string"}
        assert b"who are you?" in bytes(answer.body)
        return
    assert set(json.loads(bytes(answer.body))) == set(schema["required"])
