"""`penstock redaction`: what is taken out of the content of runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.redactions.document import parse
from penstock.redactions.scanner import redactor_of
from penstock_cli.commands.options import AsJson, client
from penstock_cli.terminal.api import Api
from penstock_cli.terminal.documents import files, no_mistake, read_document, show_document
from penstock_cli.terminal.output import Output

app = typer.Typer(
    help="Check, show and replace what is taken out of the content of runs.", no_args_is_help=True
)

File = Annotated[Path, typer.Argument(help="A YAML file with redactions.")]


@app.command("check")
def check(
    file: File,
    text: Annotated[
        bool, typer.Option("--text", help="Read a text from standard input, and show it redacted.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check redactions without a server, and with --text what all their rules do to a text.

    The exit code is 2 if the file has a mistake.
    """
    output = Output(as_json)
    with files():
        redactions, _ = read_document(file, parse)
    rules = redactions.document.redact
    if not output.as_json:
        output.pieces([(f"{no_mistake('redactions', redactions)}, rules: {len(rules)}\n", "bold")])
    if text and rules:
        redactor = redactor_of("", {"rules": [rule.model_dump() for rule in rules]})
        shown = redactor.text(sys.stdin.read())
        if output.as_json:
            output.json_line({"text": shown, "found": redactor.found, "blocked": redactor.blocked})
        else:
            output.pieces([(shown, "")])
            if redactor.blocked is not None:
                output.notice(f"a match of kind {redactor.blocked} blocks the run")


@app.command("show")
@client
def show(api: Api, output: Output) -> None:
    """Show the redactions that are in force."""
    show_document(output, api.call("GET", "/v1/redactions"), "redactions")


@app.command("apply")
@client
def apply(api: Api, output: Output, file: File) -> None:
    """Replace the redactions, for runs that start from now on.

    The version in the file must be higher than the current version.
    """
    with files():
        _, content = read_document(file, parse)
    show_document(output, api.call("PUT", "/v1/redactions", body=content), "redactions")
