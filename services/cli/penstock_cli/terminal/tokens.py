"""Show service tokens on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock_cli.terminal import render
from penstock_cli.terminal.output import Output

_LIMITS = ("roles", "agents", "tools", "rules", "on_behalf_of")


def rights(
    given: Mapping[str, Sequence[str] | None], on_behalf_of: Sequence[str]
) -> dict[str, object]:
    """Return the rights of a new token in the form of the API. Scopes may be joined by commas."""
    lists: dict[str, object] = {name: list(each) for name, each in given.items() if each}
    scopes = [word for each in given["scopes"] or () for word in each.split(",") if word]
    for_whom: object = "*" if "*" in on_behalf_of else list(on_behalf_of)
    return {**lists, "scopes": scopes, "on_behalf_of": for_whom}


def show_made(output: Output, made: Mapping[str, Any]) -> None:
    """Show a new token.

    Only the token itself is written to stdout; its rights are written to stderr.
    """
    if output.as_json:
        output.json_line(made)
        return
    output.notice(
        f"{made['user_id']}, id {made['id']}, expires at {made['expires_at']}. "
        "The token is shown this once:"
    )
    output.text(made["token"])


def show_list(output: Output, tokens: Sequence[Mapping[str, Any]]) -> None:
    """Show all tokens with their rights, one in each row."""
    if output.as_json:
        for token in tokens:
            output.json_line(token)
        return
    rows = [
        (
            each["id"],
            each["name"],
            " ".join(each["scopes"]),
            _limits(each),
            each["last_used_at"] or "never",
            each["expires_at"],
        )
        for each in tokens
    ]
    output.table(("id", "name", "scopes", "limits", "last used", "expires"), rows)


def _limits(token: Mapping[str, Any]) -> str:
    given = {name: token[name] for name in _LIMITS if token[name]}
    return " ".join(
        f"{name}={each if isinstance(each, str) else ','.join(map(render.short, each))}"
        for name, each in given.items()
    )
