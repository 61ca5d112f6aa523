"""`penstock approvals`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from penstock_cli.commands.options import DATA, AsJson, Data, Nats, Url, connected, operate
from penstock_cli.terminal import approvals
from penstock_cli.terminal.api import DEFAULT_URL
from penstock_cli.terminal.output import Output
from penstock_cli.terminal.watch import Watch

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
    mine: Annotated[
        bool, typer.Option("--mine", help="Only those that wait for your decision.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="The largest number of approvals.")] = 100,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the approvals that wait for a decision."""
    with connected(url, as_json) as (api, output):
        filters = {"status": None if status == "all" else status, "run_id": run}
        if mine:
            filters["waits_for"] = "me"
        approvals.show_list(api, output, filters, limit)


@app.command("watch")
def watch(url: Url = DEFAULT_URL) -> None:
    """Ask you about each approval that waits for you, one after another.

    The keys are: a approve, r reject, s skip, e edit, i item by item, q quit. You can add a note
    after the key.
    """
    with connected(url, False) as (api, output):
        raise typer.Exit(Watch(api, output).run())


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
    """Approve all items of an approval. The run then continues, unless more people must approve."""
    try:
        values = approvals.parse_values(value or [])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--value") from None
    with connected(url, as_json) as (api, output):
        approval = api.approval(approval_id)
        items = approvals.decided(approval, "approve", values, rejected=reject or [])
        approvals.show_decision(output, api.decide(approval, items, note), items)


@app.command("reject")
def reject(
    approval_id: ApprovalId, note: Note = None, url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Reject all items of an approval. The run then continues without them."""
    with connected(url, as_json) as (api, output):
        approval = api.approval(approval_id)
        items = approvals.decided(approval, "reject")
        approvals.show_decision(output, api.decide(approval, items, note), items)


@app.command("audit")
def audit(
    approval_id: Annotated[
        str | None,
        typer.Argument(help="The approval whose audit is shown. Leave it out with --verify."),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Verify the chains of all runs and the anchors. Exit code 1 if anything was "
            "changed, removed or inserted. Speaks with NATS.",
        ),
    ] = False,
    run: Annotated[
        str | None, typer.Option("--run", help="With --verify: only this run's chain.")
    ] = None,
    anchor: Annotated[
        str | None,
        typer.Option(
            "--anchor",
            metavar="HASH",
            help="With --verify: the hash of an anchor that you kept elsewhere, and that must be "
            "in the chain of anchors.",
        ),
    ] = None,
    take_anchor: Annotated[
        bool,
        typer.Option(
            "--take-anchor",
            help="Write an anchor over everything until now, and print its hash, to keep it "
            "elsewhere. Speaks with NATS.",
        ),
    ] = False,
    url: Url = DEFAULT_URL,
    nats: Nats = None,
    data: Data = DATA,
    as_json: AsJson = False,
) -> None:
    """Show the audit of an approval, or verify that nobody has changed the audit."""
    if sum([approval_id is not None, verify, take_anchor]) != 1:
        raise typer.BadParameter("name an approval, or say --verify, or --take-anchor")
    if not verify and (run or anchor):
        raise typer.BadParameter("--run and --anchor go with --verify")
    if approval_id is not None:
        with connected(url, as_json) as (api, output):
            raise typer.Exit(approvals.show_audit(output, api.audit(approval_id)))
    from penstock_cli.operations import audit as operations  # noqa: PLC0415 - needs NATS

    output = Output(as_json)
    # The key comes from the environment and is no option, because other users of this machine can
    # read a command line.
    key = os.environ.get("PENSTOCK_AUDIT_KEY")
    if take_anchor:
        operate(lambda bus: operations.take_anchor(bus, output, key), output, nats, data)
    operate(lambda bus: operations.verify(bus, output, key, run, anchor), output, nats, data)
