"""`penstock token`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock_cli.commands.options import AsJson, configuration
from penstock_cli.terminal.output import Output


def make_token(
    user: Annotated[
        str, typer.Option(help="The user (`sub`) whose runs the token starts and reads.")
    ] = "me",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="start, read, raw, decide, automate, workflow, act-as, administer; several by "
            "commas. Without any: what the services give to a token that names none.",
        ),
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(help="A role of the user, for the policy of approvals; may be repeated."),
    ] = None,
    lifetime: Annotated[
        str, typer.Option(help="How long the token is valid: 15m, 2h or 3d.", metavar="TIME")
    ] = "1d",
    as_json: AsJson = False,
) -> None:
    """Make a token for development, with PENSTOCK_AUTH_JWT_SECRET from the environment."""
    from penstock_cli.terminal import token  # noqa: PLC0415 - the client needs no cryptography

    try:
        lifetime_s = token.parse_lifetime(lifetime)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--lifetime") from None
    try:
        scopes = token.parse_scopes(scope or [])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--scope") from None
    output = Output(as_json)
    with configuration(output):
        token.make(output, user, scopes, lifetime_s, role or [])
