"""The command line with all commands that `penstock_cli.commands` declares.

Exit codes: 0 for a completed run or command, 1 for a failure or a request that was refused as too
late, 2 for wrong usage or no answer, 3 for a cancelled run, 4 for a run that waits for an approval,
and 130 after Ctrl-C.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

# Maps each command to its module, and to the name in the module of a function or a Typer with
# commands.
_COMMANDS: Final = {
    "up": ("up", "up"),
    "run": ("runs", "run"),
    "events": ("runs", "events"),
    "cancel": ("runs", "cancel"),
    "erase": ("erase", "erase"),
    "token": ("token", "make_token"),
    "runs": ("runs", "app"),
    "queue": ("queue", "app"),
    "costs": ("costs", "costs"),
    "approvals": ("approvals", "app"),
    "tokens": ("tokens", "app"),
    "automations": ("automations", "app"),
    "workflow": ("workflow", "app"),
    "workflows": ("workflow", "app"),
    "agents": ("agents", "app"),
    "policy": ("policy", "app"),
    "budget": ("budget", "app"),
    "redaction": ("redaction", "app"),
    "doctor": ("doctor", "doctor"),
    "deadletters": ("deadletters", "app"),
    "streams": ("streams", "app"),
    "subscribers": ("subscribers", "app"),
    "replay-server": ("replays", "replay_server"),
}


class _Commands(TyperGroup):
    """Imports a command only when it is used, because importing all commands takes a second."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        # A mistyped command gets suggestions from these names.
        names: dict[str, Any] = dict.fromkeys(_COMMANDS)
        self.commands = names

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name]
        found = getattr(import_module(f"penstock_cli.commands.{module}"), name)
        if isinstance(found, typer.Typer):
            group = get_command(found)
            group.name = cmd_name
            return group
        alone = typer.Typer(add_completion=False)
        alone.command(cmd_name)(found)
        return get_command(alone)


app = typer.Typer(cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False)


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
    ca: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="Trust the certificate authorities in this PEM file, as SSL_CERT_FILE does.",
        ),
    ] = None,
) -> None:
    """Carry the event streams of AI agents over NATS JetStream."""
    if ca is not None:
        os.environ["SSL_CERT_FILE"] = str(ca)  # all HTTP clients of this process read it
