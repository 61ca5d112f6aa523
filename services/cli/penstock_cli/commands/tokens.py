"""`penstock tokens`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock_cli.commands.options import AsJson, Url, connected
from penstock_cli.terminal import tokens
from penstock_cli.terminal.api import DEFAULT_URL

app = typer.Typer(
    help="Make, list and revoke service tokens, the credentials of machines.",
    no_args_is_help=True,
)

MAX_LIFETIME_S = 366 * 86400
_SEVERAL = "; may be given several times."


@app.command("create")
def create(
    name: Annotated[
        str, typer.Argument(help="Tokens of one name act as one user, service-token:NAME.")
    ],
    scope: Annotated[
        list[str], typer.Option(help=f"decide, read, start, raw or automate{_SEVERAL}")
    ],
    role: Annotated[list[str] | None, typer.Option(help=f"A role of the token{_SEVERAL}")] = None,
    agent: Annotated[
        list[str] | None, typer.Option(help=f"It decides approvals of this agent only{_SEVERAL}")
    ] = None,
    tool: Annotated[
        list[str] | None,
        typer.Option(help=f"It decides calls of this tool only, such as 'get_*'{_SEVERAL}"),
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(help=f"It decides only what this rule of the policy asks for{_SEVERAL}"),
    ] = None,
    on_behalf_of: Annotated[
        list[str] | None,
        typer.Option(help=f"A user for whom it may decide, or * for all{_SEVERAL}"),
    ] = None,
    lifetime: Annotated[
        str, typer.Option(help="How long the token is valid: 15m, 2h or 90d.", metavar="TIME")
    ] = "90d",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Make a token, and show the token once. You need the scope administer."""
    # Imported here, because no other command of the client needs the library for cryptography.
    from penstock_cli.terminal.token import parse_lifetime  # noqa: PLC0415

    try:
        lifetime_s = parse_lifetime(lifetime, MAX_LIFETIME_S)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--lifetime") from None
    given = {"scopes": scope, "roles": role, "agents": agent, "tools": tool, "rules": rule}
    rights = tokens.rights(given, on_behalf_of or [])
    with connected(url, as_json) as (api, output):
        made = api.make_service_token(name=name, lifetime_s=lifetime_s, **rights)
        tokens.show_made(output, made)


@app.command("list")
def list_tokens(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the tokens with their rights and their last use. You need the scope administer."""
    with connected(url, as_json) as (api, output):
        tokens.show_list(output, api.service_tokens())


@app.command("revoke")
def revoke(
    token_id: Annotated[str, typer.Argument(help="The token's id, see `penstock tokens list`.")],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Revoke a token.

    Every request with the token is then refused. You need the scope administer.
    """
    with connected(url, as_json) as (api, output):
        api.revoke_service_token(token_id)
        output.notice(f"the token {token_id} is revoked")
