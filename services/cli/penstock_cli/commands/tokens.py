"""`penstock tokens`: service tokens, the credentials of machines."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from penstock_cli.commands.options import client, parse_lifetime, parser
from penstock_cli.terminal import render
from penstock_cli.terminal.api import Api
from penstock_cli.terminal.output import Output, Record
from penstock_client import path_of

app = typer.Typer(
    help="Make, list and revoke service tokens, the credentials of machines.",
    no_args_is_help=True,
)

MAX_LIFETIME_S = 366 * 86400
ROOT = path_of("service-tokens")
_LIMITS = ("roles", "agents", "tools", "rules", "on_behalf_of")
_SEVERAL = "; may be given several times."


@app.command("create")
@client
def create(
    api: Api,
    output: Output,
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
        Any,
        typer.Option(
            parser=parser(partial(parse_lifetime, MAX_LIFETIME_S)),
            metavar="TIME",
            help="How long the token is valid: 15m, 2h or 90d.",
        ),
    ] = "90d",
) -> None:
    """Make a token, and show the token once. You need the scope administer."""
    limits = {"roles": role, "agents": agent, "tools": tool, "rules": rule}
    body = {
        "name": name,
        "lifetime_s": lifetime,
        "scopes": [word for each in scope for word in each.split(",") if word],
        "on_behalf_of": "*" if "*" in (on_behalf_of or ()) else on_behalf_of or [],
        **{key: each for key, each in limits.items() if each},
    }
    # A failed request is not repeated, because each request may make a token.
    made = api.call("POST", ROOT, body=body, repeat=False)
    if output.as_json:
        output.json_line(made)
        return
    output.notice(
        f"{made['user_id']}, id {made['id']}, expires at {made['expires_at']}. "
        "The token is shown this once:"
    )
    output.text(made["token"])


@app.command("list")
@client
def list_tokens(api: Api, output: Output) -> None:
    """List the tokens with their rights and their last use. You need the scope administer."""
    columns = ("id", "name", "scopes", "limits", "last used", "expires")
    output.listing(api.call("GET", ROOT)["tokens"], columns, _row)


@app.command("revoke")
@client
def revoke(
    api: Api,
    output: Output,
    token_id: Annotated[str, typer.Argument(help="The token's id, see `penstock tokens list`.")],
) -> None:
    """Revoke a token.

    Every request with the token is then refused. You need the scope administer.
    """
    api.call("DELETE", path_of("service-tokens", token_id))
    output.notice(f"the token {token_id} is revoked")


def _row(token: Record) -> tuple[object, ...]:
    about = (token["id"], token["name"], " ".join(token["scopes"]), _limits(token))
    return (*about, token["last_used_at"] or "never", token["expires_at"])


def _limits(token: Record) -> str:
    limits = {name: token[name] for name in _LIMITS if token[name]}
    return " ".join(
        f"{name}={each if isinstance(each, str) else ','.join(map(render.short, each))}"
        for name, each in limits.items()
    )
