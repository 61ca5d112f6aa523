"""`penstock queue`: the starts that wait for their turn in a session."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock_cli.commands.options import RunId, client
from penstock_cli.terminal.api import Api
from penstock_cli.terminal.output import Output
from penstock_client import path_of

app = typer.Typer(
    help="List, move and withdraw the starts that wait in a session.", no_args_is_help=True
)

SessionId = Annotated[str, typer.Argument(help="The session's id.")]


@app.command("list")
@client
def list_queue(api: Api, output: Output, session: SessionId) -> None:
    """List the session's run that runs, and those that wait, in their order."""
    found = api.call("GET", path_of("sessions", session, "queue"))
    output.listing(
        [
            {"place": place, **run}
            for place, run in [
                *(("runs", run) for run in found["running"]),
                *((number, run) for number, run in enumerate(found["queue"], 1)),
            ]
        ],
        ("place", "run", "agent", "created", "message"),
        lambda run: [run[name] for name in ("place", "run_id", "agent", "created_at", "message")],
    )


@app.command("move")
@client
def move(
    api: Api,
    output: Output,
    session: SessionId,
    run_id: RunId,
    before: Annotated[
        str | None, typer.Option(help="The waiting run that is to follow. Default: none.")
    ] = None,
) -> None:
    """Move a waiting start before another one, or to the end."""
    path = path_of("sessions", session, "queue", run_id, "move")
    output.record(api.call("POST", path, body={"before": before}))


@app.command("withdraw")
@client
def withdraw(api: Api, output: Output, session: SessionId, run_id: RunId) -> None:
    """Withdraw a waiting start. A run that has begun is not stopped."""
    output.record(api.call("DELETE", path_of("sessions", session, "queue", run_id), repeat=False))
