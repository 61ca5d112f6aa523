"""Each workflow of docs/coming-from/workflows.md is one, and does what it is for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock_workflows.definition import load
from penstock_workflows.testing.carry_out import carry_out
from penstock_workflows.testing.document import read_tests
from support.drive.repository import ROOT

TEXT = (ROOT / "docs/coming-from/workflows.md").read_text("utf-8")
CASES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("coming_from.yaml").read_bytes())
PRODUCTS = ("temporal", "argo", "github", "n8n")


def of_product(name: str) -> dict[str, Any]:
    [block] = re.findall(rf"<!-- {name} -->\n```yaml\n(.*?)```", TEXT, re.DOTALL)
    found: dict[str, Any] = yaml.safe_load(block)
    return found


WORKFLOWS = {name: flow for product in PRODUCTS for name, flow in of_product(product).items()}


def test_the_page_has_ten_workflows_of_each_product_and_each_is_run() -> None:
    assert [len(of_product(product)) for product in PRODUCTS] == [10, 10, 10, 10]
    assert CASES.keys() == WORKFLOWS.keys()


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_of_the_page_does_what_it_is_for(name: str) -> None:
    head = {"dsl": "penstock/1", "name": name, "version": "1"}
    loaded = load(yaml.safe_dump({**head, **WORKFLOWS[name]}, sort_keys=False).encode())
    document = {"workflow": "x", "tests": {name: CASES[name]}}
    read = read_tests(yaml.safe_dump(document, sort_keys=False).encode())
    [test] = read.tests_of(loaded)
    assert list(map(str, carry_out(test, loaded))) == []
