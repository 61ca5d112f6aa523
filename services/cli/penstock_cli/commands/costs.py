"""`penstock costs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from penstock_cli.commands.options import client
from penstock_cli.terminal.api import Api
from penstock_cli.terminal.output import Output
from penstock_cli.terminal.render import money

_COUNTS = {
    "calls": "calls",
    "tool calls": "tool_calls",
    "read": "input_tokens",
    "written": "output_tokens",
}


@client
def costs(
    api: Api,
    output: Output,
    by: Annotated[
        str, typer.Option(help="agent, user, tenant, model, tool, day or session.")
    ] = "agent",
    since: Annotated[str | None, typer.Option(help="The first day (UTC), as 2026-11-01.")] = None,
    until: Annotated[
        str | None, typer.Option(help="The first day (UTC) that no longer counts.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Runs of this agent only.")] = None,
    user: Annotated[str | None, typer.Option(help="Runs of this user only.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Runs of this tenant only.")] = None,
    model: Annotated[str | None, typer.Option(help="This model only.")] = None,
    tool: Annotated[str | None, typer.Option(help="Calls of this tool only.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The largest number of lines.")] = 100,
) -> None:
    """Show what runs used and cost: your own, or all of them for an administrator."""
    days = {"since": since, "until": until}
    chosen = days | {"agent": agent, "user": user, "tenant": tenant, "model": model, "tool": tool}
    found, more = api.costs(limit, by=by, **chosen)
    output.listing(
        found,
        (by, *_COUNTS, "cost", "without price"),
        lambda sums: [
            sums[by] or "(none)",
            *(sums[name] for name in _COUNTS.values()),
            _amounts(sums),
            sums["without_price"] or "",
        ],
        more=more,
    )


def _amounts(sums: Mapping[str, Any]) -> str:
    amounts = sums["cost_micros"].items()
    return ", ".join(f"{money(micros)} {currency}" for currency, micros in amounts)
