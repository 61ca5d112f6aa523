"""`penstock subscribers`."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated

import typer

from penstock.bus.admin.subscribers import PLACES, Durable, Start
from penstock.events.catalogue import CATEGORIES
from penstock_cli.commands.options import DATA, AsJson, Data, Nats, operate
from penstock_cli.operations import subscribers
from penstock_cli.terminal.output import Output

app = typer.Typer(
    help="List, make and delete the durable consumers of subscribers. Speaks with NATS, as the "
    "services do.",
    no_args_is_help=True,
)

Name = Annotated[
    str, typer.Argument(help="The durable's name: <team>-<service>-<purpose>.", metavar="NAME")
]
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TYPE = re.compile(r"([A-Za-z0-9_-]+|\*)(\.([A-Za-z0-9_-]+|\*)){0,2}")


@app.command("list")
def list_subscribers(nats: Nats = None, data: Data = DATA, as_json: AsJson = False) -> None:
    """List the durables, with the number of events that wait for each."""
    output = Output(as_json)
    operate(lambda bus: subscribers.show(bus, output), output, nats, data)


@app.command("make")
def make_subscriber(
    name: Name,
    event: Annotated[
        list[str] | None,
        typer.Option(
            "--event", help="A type such as llm.tool_call or 'approval.*'; repeat it for several."
        ),
    ] = None,
    begin: Annotated[
        str,
        typer.Option(
            "--from", help="Where it begins: beginning, now, or a time such as 2026-11-20T09:00Z."
        ),
    ] = "beginning",
    nats: Nats = None,
    data: Data = DATA,
    as_json: AsJson = False,
) -> None:
    """Make a durable, and show the permissions that its NATS user needs. A repeat changes nothing.

    To replay events, make a second durable that begins earlier, and delete this durable afterwards.
    """
    if not _NAME.fullmatch(name):
        raise typer.BadParameter("a name has letters, digits, - and _", param_hint="NAME")
    for each in event or ():
        if not _TYPE.fullmatch(each):
            raise typer.BadParameter(f"{each!r} is no category.action", param_hint="--event")
        if each.partition(".")[0] not in ("*", *CATEGORIES):
            categories = ", ".join(sorted(CATEGORIES))
            raise typer.BadParameter(
                f"there are no events {each!r}; the categories are {categories}",
                param_hint="--event",
            )
    durable = Durable(name, tuple(event or ()), _start(begin))
    output = Output(as_json)
    operate(lambda bus: subscribers.make(bus, output, durable), output, nats, data)


@app.command("delete")
def delete_subscriber(
    name: Name, nats: Nats = None, data: Data = DATA, as_json: AsJson = False
) -> None:
    """Delete a durable and its place in the stream.

    A durable that nobody reads costs the server memory.
    """
    output = Output(as_json)
    operate(lambda bus: subscribers.delete(bus, output, name), output, nats, data)


def _start(text: str) -> Start:
    for place in PLACES:
        if text == place:
            return place
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(
            "write beginning, now, or a time such as 2026-11-20T09:00Z", param_hint="--from"
        ) from error
    if time.tzinfo is None:
        raise typer.BadParameter("the time needs a time zone, such as Z", param_hint="--from")
    return time
