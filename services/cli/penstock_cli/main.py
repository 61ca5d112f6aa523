"""The command line, made of the commands that `penstock_cli.commands` declares.

Exit codes: 0 completed, 1 failed (or refused as too late), 2 wrong usage or no answer, 3 cancelled,
4 waits for an approval, 130 Ctrl-C.
"""

from __future__ import annotations

from importlib.metadata import version as version_of
from typing import Annotated

import typer

from penstock_cli.commands import (
    agents,
    approvals,
    automations,
    deadletters,
    policy,
    runs,
    streams,
    subscribers,
    token,
    tokens,
    up,
)

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"penstock {version_of('penstock-cli')}")
        raise typer.Exit


@app.callback()
def penstock(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """The event streams of AI agents, over NATS JetStream."""


app.command()(up.up)
app.command()(runs.run)
app.command()(runs.events)
app.command()(runs.cancel)
app.command("token")(token.make_token)
app.add_typer(runs.app, name="runs")
app.add_typer(approvals.app, name="approvals")
app.add_typer(tokens.app, name="tokens")
app.add_typer(automations.app, name="automations")
app.add_typer(agents.app, name="agents")
app.add_typer(policy.app, name="policy")
app.add_typer(deadletters.app, name="deadletters")
app.add_typer(streams.app, name="streams")
app.add_typer(subscribers.app, name="subscribers")
