"""`penstock approvals`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock_cli.commands.options import AsJson, Url, connected
from penstock_cli.terminal import approvals
from penstock_cli.terminal.api import DEFAULT_URL

app = typer.Typer(help="List, show and decide approvals.", no_args_is_help=True)

ApprovalId = Annotated[
    str, typer.Argument(help="The approval's id, see `penstock approvals list`.")
]
Note = Annotated[
    str | None, typer.Option("--note", help="The reason of the decision; the agent gets it, too.")
]


@app.command("list")
def list_approvals(
    status: Annotated[
        str | None, typer.Option(help="pending, decided, withdrawn, expired, or all.")
    ] = "pending",
    run: Annotated[str | None, typer.Option(help="Approvals of this run only.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The largest number of approvals.")] = 100,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the approvals that wait for a decision."""
    with connected(url, as_json) as (api, output):
        approvals.show_list(api, output, None if status == "all" else status, run, limit)


@app.command("show")
def show_approval(approval_id: ApprovalId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show one approval."""
    with connected(url, as_json) as (api, output):
        approvals.show(output, api.approval(approval_id))


@app.command("approve")
def approve(
    approval_id: ApprovalId,
    value: Annotated[
        list[str] | None,
        typer.Option(help="ITEM=VALUE (JSON or text), for an item that asks for a value."),
    ] = None,
    reject: Annotated[
        list[str] | None,
        typer.Option(help="An ITEM to reject, while the others are approved."),
    ] = None,
    note: Note = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Approve all that it asks; the run goes on."""
    try:
        values = approvals.parse_values(value or [])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--value") from None
    with connected(url, as_json) as (api, output):
        approval = api.approval(approval_id)
        items = approvals.decided(approval, "approve", values, rejected=reject or [])
        approvals.show(output, api.decide(approval, items, note))


@app.command("reject")
def reject(
    approval_id: ApprovalId, note: Note = None, url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Reject all that it asks; the run goes on without it."""
    with connected(url, as_json) as (api, output):
        approval = api.approval(approval_id)
        approvals.show(output, api.decide(approval, approvals.decided(approval, "reject"), note))
