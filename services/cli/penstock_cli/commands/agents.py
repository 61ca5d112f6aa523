"""`penstock agents`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock_cli.commands.options import AsJson, Url, configuration, connected
from penstock_cli.terminal import agents
from penstock_cli.terminal.api import DEFAULT_URL
from penstock_cli.terminal.output import Output

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
            agents.show_list(api, output)
        return
    output = Output(as_json)
    with configuration(output):
        agents.show_configured(output, agents.configured(config))


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
        asked = agents.chosen(agents.configured(config), ids or [])
        raise typer.Exit(agents.check(output, asked, timeout))
