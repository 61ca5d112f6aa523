"""`penstock agents`, `penstock agents check`, and what `penstock up` logs about agents."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock_cli.main import app
from support.drive.waiting import wait_for
from support.fakes.penstock_api import PenstockApi
from support.real.ports import free_port
from support.real.up import Up
from support.real.upstreams import Upstream


def penstock(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["agents", *arguments])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Write a configuration of two agents whose servers do not answer."""
    path = tmp_path / "agents.yaml"
    port = free_port()
    path.write_text(
        f"""
agents:
  - {{id: one, protocol: agno, url: "http://127.0.0.1:{port}", headers: {{X-Key: open-sesame}}}}
  - {{id: two, protocol: adk, url: "http://127.0.0.1:{port}", agent: app}}
"""
    )
    return path


def test_the_agents_of_a_file_are_listed_without_their_headers(config: Path) -> None:
    listed = penstock("--config", str(config))
    assert listed.exit_code == 0
    head, one, two = listed.stdout.splitlines()
    assert head.split()[:3] == ["agent", "protocol", "kind"]
    assert one.split()[:4] == ["one", "agno", "agent", "one"]
    assert two.split()[:4] == ["two", "adk", "agent", "app"]
    lines = penstock("--config", str(config), "--json").stdout
    assert [json.loads(line)["id"] for line in lines.splitlines()] == ["one", "two"]
    assert "open-sesame" not in listed.stdout + lines


def test_the_agents_of_a_server_are_listed(api_with_agents: PenstockApi) -> None:
    listed = penstock("--url", api_with_agents.url)
    assert [line.split() for line in listed.stdout.splitlines()] == [
        ["agent", "name", "protocol", "kind", "answers"],
        ["a", "A", "agno", "agent", "yes"],
        ["b", "B", "adk", "agent", "no"],
        ["c", "C", "adk", "agent", "is", "being", "set", "up"],
    ]
    lines = penstock("--url", api_with_agents.url, "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == api_with_agents.agents


@pytest.fixture
def api_with_agents() -> Iterator[PenstockApi]:
    """Serve an API that lists two agents."""
    api = PenstockApi([])
    api.agents = [
        {"id": "a", "name": "A", "protocol": "agno", "kind": "agent", "answers": True},
        {"id": "b", "name": "B", "protocol": "adk", "kind": "agent", "answers": False},
        {
            **{"id": "c", "name": "C", "protocol": "adk", "kind": "agent"},
            **{"answers": False, "starting": True},
        },
    ]
    api.start()
    yield api
    api.stop()


def test_a_check_says_what_is_wrong_with_each_and_ends_with_1(config: Path) -> None:
    checked = penstock("check", "--config", str(config))
    assert checked.exit_code == 1
    one, two = checked.stdout.splitlines()
    assert one.startswith("one: unreachable: cannot reach http://127.0.0.1:")
    assert two.startswith("two: unreachable: cannot reach http://127.0.0.1:")
    [line] = penstock("check", "two", "--config", str(config), "--json").stdout.splitlines()
    assert json.loads(line)["verdict"] == "unreachable"


def test_a_check_of_an_unknown_agent_or_file_is_an_error(config: Path) -> None:
    told = penstock("check", "on", "--config", str(config))
    assert told.exit_code == 2
    assert told.stderr == (
        'penstock: there is no agent on: did you mean "one"? (agents: one, two)\n'
    )
    told = penstock("check", "--config", str(config.with_name("none.yaml")))
    assert told.exit_code == 2
    assert "name your agents' file with --config (PENSTOCK_CONFIG)" in told.stderr


def test_up_warns_of_agents_that_cannot_work_and_a_failed_run_names_the_address(
    make_up: Callable[..., Up], config: Path
) -> None:
    up = make_up("--config", str(config))
    up.start()
    wait_for(lambda: "agent two: cannot reach http://" in up.log(), 30, "the warning")
    assert "agent one: cannot reach http://" in up.log()
    assert up.penstock("run", "hello", "--agent", "two")[0] == 1
    wait_for(lambda: "agent two was called at http://127.0.0.1:" in up.log(), 30, "the address")
    assert "set `url` to its address as seen from here" in up.log()


@pytest.mark.real
@pytest.mark.timeout(180)
def test_a_failed_run_says_in_the_log_what_to_change_and_to_its_client_no_address(
    make_up: Callable[..., Up], agno_server: Upstream, tmp_path: Path
) -> None:
    path = tmp_path / "agents.yaml"
    path.write_text(
        f"""
agents:
  - {{id: named, protocol: agno, url: "{agno_server.url}", agent: demoagent}}
  - {{id: swapped, protocol: adk, url: "{agno_server.url}"}}
"""
    )
    up = make_up("--config", str(path))
    up.start()
    changes = {"named": 'did you mean "demo-agent"?', "swapped": "set `protocol: agno`"}
    for agent, change in changes.items():
        for _ in range(2):
            code, events = up.penstock("run", "hello", "--agent", agent)
            assert code == 1
            assert agno_server.url not in json.dumps(events)
        called = f"agent {agent} was called at {agno_server.url}"
        wait_for(partial(said_with, up, called, change), 30, f"the advice for {agent}")
        assert up.log().count(called) == 1  # logged once, not for each run


def said_with(up: Up, called: str, change: str) -> bool:
    """Return whether one line of the log has both texts."""
    return any(called in line and change in line for line in up.log().splitlines())
    assert "open-sesame" not in up.log()
