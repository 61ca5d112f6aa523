"""`penstock agents`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from penstock.settings import (
    AgentConfig,
    Config,
    ConfigurationError,
    WorkflowAgent,
    load_config,
)
from penstock_cli.commands.options import AsJson, Url, configuration, connected
from penstock_cli.terminal.output import Output, Record
from penstock_client import DEFAULT_URL

DONE, WRONG = 0, 1

app = typer.Typer(help="List agents, or check their servers.", invoke_without_command=True)


@app.command("list")
@app.callback()
def list_agents(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", help="List the agents of this file instead.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the agents of the Penstock at --url. With --config, list the agents of a file."""
    if context.invoked_subcommand is not None:
        return
    if config is None:
        with connected(url, as_json) as (api, output):
            columns = ("id", "name", "protocol", "kind", "answers")
            output.listing(
                api.call("GET", "/v1/agents")["agents"],
                ("agent", *columns[1:]),
                partial(_row, columns),
            )
        return
    output = Output(as_json)
    with configuration(output):
        _show_configured(output, _configured(config))


@app.command("check")
def check_agents(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Agents of the file. Default: all of them.")
    ] = None,
    config: Annotated[
        Path, typer.Option(envvar="PENSTOCK_CONFIG", help="The file with your agents.")
    ] = Path("penstock.yaml"),
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How long one request may take.")
    ] = 5.0,
    as_json: AsJson = False,
) -> None:
    """Check from this machine whether each agent's server speaks the right protocol and has the
    agent.

    The check starts no run. The exit code is 1 if something is wrong.
    """
    output = Output(as_json)
    with configuration(output):
        asked = _chosen(_configured(config), ids or [])
        raise typer.Exit(_check(output, asked, timeout))


def _show_configured(output: Output, config: Config) -> None:
    if output.as_json:
        for agent in config.agents:
            output.json_line(agent.model_dump(mode="json", exclude={"headers"}))
        return
    rows = [
        (each.id, each.protocol, each.kind, each.agent, getattr(each, "url", ""))
        for each in config.agents
    ]
    output.table(("agent", "protocol", "kind", "upstream's id", "url"), rows)


def _configured(path: Path) -> Config:
    if not path.exists():
        raise ConfigurationError(
            f"there is no {path} here: name your agents' file with --config (PENSTOCK_CONFIG)"
        )
    return load_config(path)


def _chosen(config: Config, ids: Sequence[str]) -> list[AgentConfig]:
    for agent_id in ids:
        if config.agent(agent_id) is None:
            raise ConfigurationError(config.no_agent(agent_id))
    return [agent for agent in config.agents if not ids or agent.id in ids]


def _check(output: Output, agents: Sequence[AgentConfig], timeout_s: float) -> int:
    """Check the server of each agent, show the findings, and return the exit code. An agent that
    starts a workflow has no server, so such an agent is not checked."""
    from penstock_connector.checks import check_all  # noqa: PLC0415 - the client needs no service

    servers = [agent for agent in agents if not isinstance(agent, WorkflowAgent)]
    findings = asyncio.run(check_all(servers, timeout_s))
    for finding in findings:
        if output.as_json:
            verdict = {"agent": finding.agent, "verdict": finding.verdict, "said": finding.text}
            output.json_line(verdict)
        else:
            output.text(f"{finding.agent}: {finding.verdict.replace('_', ' ')}: {finding.text}")
    if not findings:
        output.notice("no agent of an agent server is configured")
    return DONE if all(finding.is_fine for finding in findings) else WRONG


def _row(columns: Sequence[str], agent: Record) -> list[str]:
    shown = {**agent, "answers": "is being set up"} if agent.get("starting") else agent
    return [_cell(shown.get(column)) for column in columns]


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
