"""`penstock policy`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from penstock_cli.commands.options import AsJson, Url, connected
from penstock_cli.terminal import policy as policies
from penstock_cli.terminal.api import DEFAULT_URL
from penstock_cli.terminal.output import Output

app = typer.Typer(help="Check, show and replace the policy of approvals.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="A YAML file with a policy.")]


@contextmanager
def _files() -> Iterator[None]:
    """If a file has mistakes, print them and end the command with exit code 2."""
    try:
        yield
    except policies.InvalidFile as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


@app.command("check")
def check(
    file: File,
    case: Annotated[
        list[Path] | None,
        typer.Option(help="A JSON or YAML file with a pause, and what is expected. Repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a policy without a server, and explain each rule for each case.

    The exit code is 0 if the policy is valid and all rulings are as expected, 1 if a ruling is not
    as expected, and 2 if a file has a mistake.
    """
    with _files():
        policy, _ = policies.read_policy(file)
        cases = {str(path): policies.read_case(path) for path in case or []}
    if not policies.check(Output(as_json), policy, cases):
        raise typer.Exit(1)


@app.command("show")
def show(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the current policy, and why a newer policy was refused."""
    with connected(url, as_json) as (api, output):
        policies.show(output, api.call("GET", "/v1/policy"))


@app.command("apply")
def apply(file: File, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Replace the current policy.

    The version in the file must be higher than the current version.
    """
    with _files():
        _, content = policies.read_policy(file)
    with connected(url, as_json) as (api, output):
        policies.show(output, api.call("PUT", "/v1/policy", body=policies.plain(content)))
