"""`penstock deadletters`."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from penstock_cli.commands.options import DATA, AsJson, Data, Nats, operate, parse_since
from penstock_cli.operations import deadletters
from penstock_cli.terminal.output import Output

app = typer.Typer(
    help="List, show, replay and drop the messages that could not be processed. Speaks with NATS, "
    "as the services do.",
    no_args_is_help=True,
)

Numbers = Annotated[list[int] | None, typer.Argument(help="The numbers of dead letters.")]
All = Annotated[
    bool, typer.Option("--all", help="All dead letters that match, instead of numbers.")
]
OfService = Annotated[
    str | None, typer.Option("--service", help="Only those that this service gave up.")
]
OfRun = Annotated[str | None, typer.Option("--run", help="Only those of this run.")]
Since = Annotated[
    str | None, typer.Option("--since", help="Only newer ones: 15m, 2h, 3d, or an ISO 8601 time.")
]


@app.command("list")
def list_deadletters(
    service: OfService = None,
    run: OfRun = None,
    since: Since = None,
    nats: Nats = None,
    data: Data = DATA,
    as_json: AsJson = False,
) -> None:
    """List the dead letters, the newest last."""
    output, selection = Output(as_json), _selection([], service, run, since)
    operate(lambda bus: deadletters.show_list(bus, output, selection), output, nats, data)


@app.command("show")
def show_deadletter(
    number: Annotated[int, typer.Argument(min=1, help="The number of the dead letter.")],
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Show the payload of a source frame, which may hold secrets."),
    ] = False,
    nats: Nats = None,
    data: Data = DATA,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter with its reason, origin, headers and payload."""
    output = Output(as_json)
    operate(lambda bus: deadletters.show(bus, output, number, raw), output, nats, data)


@app.command("replay")
def replay_deadletters(
    numbers: Numbers = None,
    all_of_them: All = False,
    service: OfService = None,
    run: OfRun = None,
    since: Since = None,
    nats: Nats = None,
    data: Data = DATA,
    as_json: AsJson = False,
) -> None:
    """Publish dead letters again to their original subjects. A repeat changes nothing."""
    output = Output(as_json)
    selection = _selection(_some(numbers, all_of_them), service, run, since)
    operate(lambda bus: deadletters.replay(bus, output, selection), output, nats, data)


@app.command("drop")
def drop_deadletters(
    numbers: Numbers = None,
    all_of_them: All = False,
    service: OfService = None,
    run: OfRun = None,
    since: Since = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before.")] = False,
    nats: Nats = None,
    data: Data = DATA,
    as_json: AsJson = False,
) -> None:
    """Delete dead letters for good."""
    output = Output(as_json)
    selection = _selection(_some(numbers, all_of_them), service, run, since)
    operate(lambda bus: deadletters.drop(bus, output, selection, yes), output, nats, data)


def _some(numbers: list[int] | None, all_of_them: bool) -> list[int]:
    if bool(numbers) == all_of_them:
        raise typer.BadParameter("name dead letters by their numbers, or say --all (not both)")
    return numbers or []


def _selection(
    numbers: list[int], service: str | None, run: str | None, since: str | None
) -> deadletters.Selection:
    if numbers and (service or run or since):
        raise typer.BadParameter("--service, --run and --since go with --all, not with numbers")
    for option, token in (("--service", service), ("--run", run)):
        if token is not None and not re.fullmatch(r"[\w-]+", token, re.ASCII):
            raise typer.BadParameter(
                f"{token!r} is not allowed: use letters, digits, _ and -", param_hint=option
            )
    try:
        time = parse_since(since) if since is not None else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from None
    return deadletters.Selection(numbers, service, run, time)
