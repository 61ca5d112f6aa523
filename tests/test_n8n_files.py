"""The workflow files of deploy/n8n can be imported, and have no secrets and no addresses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.drive.repository import ROOT

FILES = sorted(
    file for file in (ROOT / "deploy" / "n8n").glob("*.json") if file.name != "package.json"
)
PAGE = (ROOT / "docs" / "n8n.md").read_text()
_ADDRESS = re.compile(r"(?:https?|wss?|nats)://([^/\s\"']+)|\b\d{1,3}(?:\.\d{1,3}){3}\b|localhost")
_SECRET = re.compile(r"whsec_[A-Za-z0-9+/]{8}|ps[tv]_[A-Za-z0-9_-]{8}|eyJ[A-Za-z0-9]")


def read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def named(file: Path) -> list[str]:
    """Return the types of nodes that the page names for the file."""
    row = next(line for line in PAGE.splitlines() if line.startswith("|") and file.name in line)
    return re.findall(r"`([A-Za-z]+)`", row.split("|")[3])


def test_there_are_workflows() -> None:
    assert [file.name for file in FILES] == [
        "ask-a-person.json",
        "decide-by-rule.json",
        "receive-webhook.json",
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_workflow_can_be_imported(file: Path) -> None:
    flow = read(file)
    nodes = {node["name"]: node for node in flow["nodes"]}
    assert len(nodes) == len(flow["nodes"]), "n8n finds nodes by their names"
    assert flow["active"] is False, "a workflow without its credentials must not begin to work"
    for start, connections in flow["connections"].items():
        targets = [each["node"] for output in connections["main"] for each in output]
        assert {start, *targets} <= nodes.keys()
    for node in nodes.values():
        assert {"id", "name", "type", "typeVersion", "position", "parameters"} <= node.keys()
        for used in re.findall(r"\$\('([^']+)'\)", json.dumps(node["parameters"])):
            assert used in nodes, f"{node['name']} reads the node {used}, which does not exist"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_workflow_has_no_secret_and_no_address(file: Path) -> None:
    text = file.read_text()
    hosts = {match[1] or match[0] for match in _ADDRESS.finditer(text)}
    assert hosts <= {"penstock.example"}
    assert _SECRET.search(text) is None
    for node in read(file)["nodes"]:
        for credential in node.get("credentials", {}).values():
            assert credential["id"].startswith("penstock-")
            assert credential["name"] in PAGE, "the page says what the credential holds"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_page_names_the_types_of_a_workflow_s_nodes(file: Path) -> None:
    types = {node["type"].removeprefix("n8n-nodes-base.") for node in read(file)["nodes"]}
    assert sorted(named(file)) == sorted(types - {"stickyNote", "noOp"})
    assert all(node["type"].startswith("n8n-nodes-base.") for node in read(file)["nodes"])


def test_the_page_and_the_packages_name_the_same_n8n() -> None:
    packages = json.loads((ROOT / "deploy" / "n8n" / "package.json").read_text())
    assert f"n8n {packages['dependencies']['n8n']}" in PAGE
