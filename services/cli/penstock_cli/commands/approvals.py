"""`penstock approvals`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock_cli.commands.options import (
    DATA,
    AsJson,
    Data,
    Limit,
    Nats,
    Since,
    Until,
    Url,
    client,
    connected,
    operate,
    parser,
)
from penstock_cli.terminal import approvals, render
from penstock_cli.terminal.api import Api
from penstock_cli.terminal.output import Output, Record
from penstock_cli.terminal.watch import Watch
from penstock_client import DEFAULT_URL, path_of

app = typer.Typer(help="List, show and decide approvals.", no_args_is_help=True)

ApprovalId = Annotated[
    str, typer.Argument(help="The approval's id, see `penstock approvals list`.")
]
Note = Annotated[
    str | None, typer.Option("--note", help="The reason of the decision; the agent gets it, too.")
]

Text = Annotated[str, typer.Argument(help="The text.")]


@app.command("list")
@client
def list_approvals(
    api: Api,
    output: Output,
    status: Annotated[
        str | None, typer.Option(help="pending, decided, withdrawn, expired, or all.")
    ] = "pending",
    run: Annotated[str | None, typer.Option(help="Approvals of this run only.")] = None,
    tool: Annotated[str | None, typer.Option(help="Those that ask for this tool only.")] = None,
    rule: Annotated[str | None, typer.Option(help="Those of this rule of the policy only.")] = None,
    user: Annotated[str | None, typer.Option(help="Those of this user's runs only.")] = None,
    since: Since = None,
    until: Until = None,
    mine: Annotated[
        bool, typer.Option("--mine", help="Only those that wait for your decision.")
    ] = False,
    limit: Limit = 100,
) -> None:
    """List the approvals that wait for a decision."""
    filters = {
        "status": None if status == "all" else status,
        **{"run_id": run, "tool": tool, "rule": rule, "user_id": user},
        **{"since": since, "until": until},
    }
    if mine:
        filters["waits_for"] = "me"
    found, more = api.approvals(limit, **filters)
    output.listing(found, ("approval", "status", "agent", "asks"), _row, more=more)


def _row(found: Record) -> tuple[str, ...]:
    asks = "; ".join(map(render.item, found["items"]))
    return found["approval_id"], found["status"], found["agent"], asks


@app.command("watch")
def watch(url: Url = DEFAULT_URL) -> None:
    """Ask you about each approval that waits for you, one after another.

    The keys are: a approve, r reject, s skip, e edit, i item by item, q quit. You can add a note
    after the key.
    """
    with connected(url, False) as (api, output):
        raise typer.Exit(Watch(api, output).run())


@app.command("show")
@client
def show_approval(api: Api, output: Output, approval_id: ApprovalId) -> None:
    """Show one approval."""
    approvals.show(output, api.approval(approval_id))


@app.command("approve")
@client
def approve(
    api: Api,
    output: Output,
    approval_id: ApprovalId,
    value: Annotated[
        list[Any] | None,
        typer.Option(
            parser=parser(approvals.parse_value_of),
            metavar="ITEM=VALUE",
            help="The value (JSON or text) of an item that asks for one.",
        ),
    ] = None,
    reject: Annotated[
        list[str] | None,
        typer.Option(help="An ITEM to reject, while the others are approved."),
    ] = None,
    note: Note = None,
) -> None:
    """Approve all items of an approval. The run then continues, unless more people must approve."""
    approval = api.approval(approval_id)
    items = approvals.decided(approval, "approve", dict(value or ()), rejected=reject or [])
    approvals.show_decision(output, api.decide(approval, items, note), items)


@app.command("reject")
@client
def reject(api: Api, output: Output, approval_id: ApprovalId, note: Note = None) -> None:
    """Reject all items of an approval. The run then continues without them."""
    approval = api.approval(approval_id)
    items = approvals.decided(approval, "reject")
    approvals.show_decision(output, api.decide(approval, items, note), items)


@app.command("take-back")
@client
def take_back(api: Api, output: Output, approval_id: ApprovalId) -> None:
    """Take back your vote, before the approval is decided. You may then vote again."""
    after = api.call("DELETE", path_of("approvals", approval_id, "decision"))
    approvals.show_waiting(output, after, "your vote is taken back")


@app.command("ask")
@client
def ask(api: Api, output: Output, approval_id: ApprovalId, text: Text) -> None:
    """Ask the user whose run asks a question, without deciding."""
    _remark(api, output, approval_id, kind="question", text=text)


@app.command("answer")
@client
def answer(api: Api, output: Output, approval_id: ApprovalId, text: Text) -> None:
    """Answer a question about what your run asks."""
    _remark(api, output, approval_id, kind="answer", text=text)


@app.command("hand-over")
@client
def hand_over(
    api: Api,
    output: Output,
    approval_id: ApprovalId,
    user: Annotated[str, typer.Argument(help="The user who shall decide.")],
    note: Annotated[str | None, typer.Option(help="A note for that user.")] = None,
) -> None:
    """Leave the decision to another person whom the policy lets decide."""
    _remark(api, output, approval_id, kind="handover", to=user, text=note)


def _remark(api: Api, output: Output, approval_id: str, **said: str | None) -> None:
    after = api.call("POST", path_of("approvals", approval_id, "remarks"), body=said)
    approvals.show_waiting(output, after, f"your {said['kind']} is recorded")


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
    export: Annotated[
        bool,
        typer.Option(
            "--export",
            help="Write all records and anchors as lines of JSON, or with --run those of one run. "
            "Speaks with NATS.",
        ),
    ] = False,
    file: Annotated[
        Path | None,
        typer.Option("--from", help="With --verify: a file of --export instead of the server."),
    ] = None,
    url: Url = DEFAULT_URL,
    nats: Nats = None,
    data: Data = DATA,
    as_json: AsJson = False,
) -> None:
    """Show the audit of an approval, export it, or verify that nobody has changed it."""
    if sum([approval_id is not None, verify, take_anchor, export]) != 1:
        raise typer.BadParameter("name an approval, or say --verify, --export or --take-anchor")
    if not verify and (anchor or file or (run and not export)):
        raise typer.BadParameter("--run, --anchor and --from go with --verify; --run with --export")
    if approval_id is not None:
        with connected(url, as_json) as (api, output):
            raise typer.Exit(
                approvals.show_audit(
                    output, api.call("GET", path_of("approvals", approval_id, "audit"))
                )
            )
    from penstock_cli.operations import audit as operations  # noqa: PLC0415 - needs NATS

    output = Output(as_json)
    # The key comes from the environment and is no option, because other users of this machine can
    # read a command line.
    key = os.environ.get("PENSTOCK_AUDIT_KEY")
    if file is not None:
        raise typer.Exit(operations.verify_export(file, output, key, run, anchor))
    if export:
        operate(lambda bus: operations.export(bus, output, run), output, nats, data)
    if take_anchor:
        operate(lambda bus: operations.take_anchor(bus, output, key), output, nats, data)
    operate(lambda bus: operations.verify(bus, output, key, run, anchor), output, nats, data)
