"""The published schema and the tutorial of workflows are what the code says."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from penstock.runs.workflows import NAME, VERSION
from penstock_workflows.definition import InvalidDefinition, load
from penstock_workflows.definition.model import PATTERNS
from penstock_workflows.definition.schema import schema, text
from support.drive.repository import ROOT

TUTORIAL = (ROOT / "docs/workflows.md").read_text("utf-8")
BLOCKS = re.findall(r"```yaml\n(dsl: .*?)```", TUTORIAL, re.DOTALL)
DEFINITIONS = [
    *(path.read_text("utf-8") for path in sorted(ROOT.glob("tests/workflows/definitions/*.yaml"))),
    *(
        path.read_text("utf-8")
        for path in sorted(ROOT.glob("services/cli/penstock_cli/demo/workflows/*.yaml"))
    ),
    *BLOCKS,
]
FITS = Draft202012Validator(schema()).is_valid


def test_the_schema_is_published() -> None:
    published = (ROOT / "deploy/contract/workflow.schema.json").read_text("utf-8")
    assert published == text(), "run `make contract`"
    Draft202012Validator.check_schema(json.loads(published))


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_each_definition_in_the_repository_is_valid_and_fits_the_schema(definition: str) -> None:
    load(definition.encode())
    assert FITS(yaml.safe_load(definition))


def changed(**fields: Any) -> dict[str, Any]:
    step = {"run": {"agent": "x", "message": '"x"'}, **fields}
    return {"dsl": "penstock/1", "name": "w", "version": "1", "steps": {"a": step}}


@pytest.mark.parametrize(
    "fields",
    [
        {"set": "1"},
        {"run": None},
        {"output": 1},
        {"outptu": "1"},
        {"retry": {"attempts": 0}},
        {"retry": {}},
        {"for_each": {"in": "[1]", "limit": 101}},
        {"run": {"agent": "a b", "message": "'x'"}},
        {"needs": ["a-b"]},
    ],
)
def test_what_the_schema_refuses_is_refused(fields: dict[str, Any]) -> None:
    assert FITS(changed())
    value = changed(**fields)
    assert not FITS(value)
    with pytest.raises(InvalidDefinition):
        load(json.dumps(value).encode())


def test_the_mistake_in_the_tutorial_is_told_as_there() -> None:
    block = BLOCKS[0]
    wrong = block.replace("in ${input.city}", "in ${inptu.city}")
    with pytest.raises(InvalidDefinition) as refused:
        load(wrong.encode())
    [problem] = refused.value.problems
    where = problem.position
    assert where is not None
    told = f"trip.yaml:{where.line}:{where.column}: {problem.field}: {problem.reason}"
    assert told in TUTORIAL


def test_names_in_paths_and_in_definitions_are_the_same() -> None:
    for pattern, ours in ((NAME, "code_review"), (VERSION, "1.2")):
        assert pattern.fullmatch(ours)
    known = [re.compile(each) for each in PATTERNS]
    for name in ("a", "A-b_9", "x" * 64, "x" * 65, "a.b", "-a", "", "a b", "é"):
        assert bool(NAME.fullmatch(name)) == bool(known[1].search(name)), name
    for version in ("1", "1.2.3", "v1-rc_2", "1..2", ".1", "1.", "", "1 2"):
        assert bool(VERSION.fullmatch(version)) == bool(known[2].search(version)), version
