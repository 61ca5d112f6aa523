"""`penstock budget`: the budgets of runs, and which of them apply to a start."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import Field

from penstock.budgets.document import Budgets, RunFacts, parse
from penstock.budgets.model import shown
from penstock.documents.fields import Strict
from penstock_cli.commands.options import AsJson, client
from penstock_cli.terminal.api import Api
from penstock_cli.terminal.documents import (
    files,
    no_mistake,
    read_case,
    read_document,
    show_document,
)
from penstock_cli.terminal.output import Output

app = typer.Typer(help="Check, show and replace the budgets of runs.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="A YAML file with budgets.")]


class Expected(Strict):
    """The ids of the budgets that should apply, in the order of the document."""

    budgets: list[str] | None = None


class Case(Strict):
    """A start to test."""

    agent: str = "agent"
    user: str = "user"
    tenant: str = ""
    roles: list[str] = Field([])
    session_id: str = "session"
    depth: int = 0
    now: datetime | None = None
    expect: Expected = Field(Expected(), description="What should apply.")


@app.command("check")
def check(
    file: File,
    case: Annotated[
        list[Path] | None,
        typer.Option(help="A JSON or YAML file with a start, and what is expected. Repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check budgets without a server, and explain for each case which of them apply.

    The exit code is 0 if there is no mistake and all is as expected, 1 if other budgets apply than
    expected, and 2 if a file has a mistake.
    """
    with files():
        budgets, _ = read_document(file, parse)
        cases = {str(path): read_case(path, Case) for path in case or []}
    if not _check(Output(as_json), budgets, cases):
        raise typer.Exit(1)


@app.command("show")
@client
def show(api: Api, output: Output) -> None:
    """Show the budgets that are in force."""
    show_document(output, api.call("GET", "/v1/budgets"), "budgets")


@app.command("apply")
@client
def apply(api: Api, output: Output, file: File) -> None:
    """Replace the budgets. The version in the file must be higher than the current version."""
    with files():
        _, content = read_document(file, parse)
    show_document(output, api.call("PUT", "/v1/budgets", body=content), "budgets")


@app.command("accounts")
@client
def accounts(
    api: Api,
    output: Output,
    budget: Annotated[str | None, typer.Option(help="Accounts of this budget only.")] = None,
    subject: Annotated[
        str | None, typer.Option(help="Only of this run, session, user, agent or tenant.")
    ] = None,
    share: Annotated[
        float, typer.Option(help="Only accounts of which this share is taken, such as 0.9.")
    ] = 0.0,
    limit: Annotated[int, typer.Option(min=1, help="The largest number of accounts.")] = 100,
) -> None:
    """Show what is used and left of your budgets, or of all for an administrator."""
    filters = {"budget": budget, "subject": subject, "share": share}
    found, more = api.pages("/v1/budgets/accounts", "accounts", "after", limit, filters)
    output.listing(
        found,
        ("budget", "per", "subject", "used", "reserved", "left", "until"),
        lambda account: [
            *(account[name] for name in ("budget", "per", "subject")),
            *(_amounts(account, name) for name in ("used", "reserved", "left")),
            account["window_ends_at"] or "",
        ],
        more=more,
    )


def _amounts(account: Mapping[str, Any], name: str) -> str:
    return ", ".join(
        shown(room["dimension"], room[name], account["currency"])
        for room in account["rooms"]
        if name != "reserved" or room[name]
    )


def _check(output: Output, budgets: Budgets, cases: Mapping[str, Case]) -> bool:
    if not output.as_json:
        text = f"{no_mistake('budgets', budgets)}, budgets: {len(budgets.by_id)}\n"
        output.pieces([(text, "bold")])
    is_as_expected = True
    for name, case in cases.items():
        facts = RunFacts("", **case.model_dump(exclude={"now", "expect"}))
        found = budgets.applying(facts, case.now or datetime.now(UTC))
        ids = [each.budget.id for each in found if each.applies]
        wanted = case.expect.budgets
        is_expected = wanted is None or wanted == ids
        is_as_expected = is_as_expected and is_expected
        if output.as_json:
            reasons = {each.budget.id: each.reason for each in found}
            output.json_line(
                {"case": name, "budgets": ids, "reasons": reasons, "expected": is_expected}
            )
            continue
        rows = [
            (each.budget.id, "applies" if each.applies else "does not apply", each.reason)
            for each in found
        ]
        output.pieces([(f"\n{name}\n", "bold")])
        output.table(("budget", "", "because"), rows, whole="because")
        if not is_expected:
            text = f"{name}: {', '.join(ids) or 'none'} apply, and {wanted} were expected\n"
            output.pieces([(text, "red")])
    return is_as_expected
