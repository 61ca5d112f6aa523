"""List agents, and check the servers of agents."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from penstock.settings import (
    AgentConfig,
    Config,
    ConfigurationError,
    WorkflowAgent,
    load_config,
)
from penstock_cli.terminal.api import Api
from penstock_cli.terminal.output import Output

DONE, WRONG = 0, 1


def show_list(api: Api, output: Output) -> None:
    """Show the agents that the API lists."""
    agents = api.agents()["agents"]
    if output.as_json:
        for agent in agents:
            output.json_line(agent)
        return
    columns = ("id", "name", "protocol", "kind", "answers")
    rows = [[_cell(agent.get(column)) for column in columns] for agent in agents]
    output.table(("agent", *columns[1:]), rows)


def show_configured(output: Output, config: Config) -> None:
    """Show the agents of a configuration file with their URLs, but without their headers."""
    if output.as_json:
        for agent in config.agents:
            output.json_line(agent.model_dump(mode="json", exclude={"headers"}))
        return
    rows = [
        (each.id, each.protocol, each.kind, each.agent, getattr(each, "url", ""))
        for each in config.agents
    ]
    output.table(("agent", "protocol", "kind", "upstream's id", "url"), rows)


def configured(path: Path) -> Config:
    """Return the configuration in a file.

    Raises ConfigurationError if the file is missing or invalid.
    """
    if not path.exists():
        raise ConfigurationError(
            f"there is no {path} here: name your agents' file with --config (PENSTOCK_CONFIG)"
        )
    return load_config(path)


def chosen(config: Config, ids: Sequence[str]) -> list[AgentConfig]:
    """Return the agents with these ids; all agents if `ids` is empty.

    Raises ConfigurationError for an unknown id.
    """
    for id in ids:
        if config.agent(id) is None:
            raise ConfigurationError(config.no_agent(id))
    return [agent for agent in config.agents if not ids or agent.id in ids]


def check(output: Output, agents: Sequence[AgentConfig], timeout_s: float) -> int:
    """Check the server of each agent, show the findings, and return the exit code.

    An agent that starts a workflow has no server, so such an agent is not checked.
    """
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


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
