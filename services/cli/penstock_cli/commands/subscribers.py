"""`penstock subscribers`: the durable consumers of subscribers."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Annotated

import typer

from penstock.bus import Bus
from penstock.bus.admin import subscribers
from penstock.bus.admin.permissions import DOMAIN
from penstock.bus.admin.subscribers import PLACES, Durable, Start
from penstock.bus.errors import ApiError
from penstock.events.catalogue import CATEGORIES
from penstock_cli.commands.options import DATA, AsJson, Data, Nats, operate
from penstock_cli.operations.connection import DONE, FAILED
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
    operate(lambda bus: _show(bus, output), output, nats, data)


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
    operate(lambda bus: _make(bus, output, durable), output, nats, data)


@app.command("delete")
def delete_subscriber(
    name: Name, nats: Nats = None, data: Data = DATA, as_json: AsJson = False
) -> None:
    """Delete a durable and its place in the stream.

    A durable that nobody reads costs the server memory.
    """
    output = Output(as_json)
    operate(lambda bus: _delete(bus, output, name), output, nats, data)


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


async def _show(bus: Bus, output: Output) -> int:
    """Show each durable in each shard, with its types of events and the number of events that
    wait."""
    rows = [
        {
            "durable": info["name"],
            "stream": info["stream_name"],
            "events": info["config"].get("filter_subjects") or [],
            "waiting": info["num_pending"],
            "in_work": info["num_ack_pending"],
            "again": info["num_redelivered"],
        }
        for info in await subscribers.listed(bus)
    ]
    columns = ("durable", "stream", "events", "waiting", "in_work", "again")
    output.listing(rows, columns, lambda row: [_cell(row[name]) for name in columns])
    return DONE


async def _make(bus: Bus, output: Output, durable: Durable) -> int:
    """Make a durable in each shard that lacks it, and show the permissions of its NATS user."""
    try:
        made = await subscribers.make(bus, durable)
    except ApiError as error:
        output.notice(f"NATS refuses the durable {durable.name}: {error}")
        return FAILED
    for stream in made:
        name = f"the durable {durable.name} of {stream}"
        output.result({"made": name}, f"{name}: made")
    infos = [info for info in await subscribers.listed(bus) if info["name"] == durable.name]
    if not made:
        taken = infos[0]["config"].get("filter_subjects") or [] if infos else []
        text = f"the durable {durable.name} exists, takes {_cell(taken)}, and was not changed"
        if durable.events and set(taken) != set(durable.config()["filter_subjects"]):
            output.notice(f"{text}; delete it first, or choose another name")
            return FAILED
        output.notice(text)
    if not output.as_json:
        output.notice("its NATS user in the account SUBSCRIBERS must be allowed to publish to")
        for stream in (info["stream_name"] for info in infos):
            output.notice(json.dumps(f"$JS.{DOMAIN}.API.CONSUMER.INFO.{stream}.{durable.name}"))
            output.notice(json.dumps(f"$JS.{DOMAIN}.API.CONSUMER.MSG.NEXT.{stream}.{durable.name}"))
            output.notice(json.dumps(f"$JS.ACK.{stream}.{durable.name}.>"))
    return DONE


async def _delete(bus: Bus, output: Output, name: str) -> int:
    """Delete a durable in each shard.

    The durable's place in the stream, from which reading would continue, is lost.
    """
    deleted = await subscribers.delete(bus, name)
    for stream in deleted:
        found = f"the durable {name} of {stream}"
        output.result({"deleted": found}, f"{found}: deleted")
    if not deleted:
        output.notice(f"there is no subscriber's durable {name}: see `penstock subscribers list`")
    return DONE if deleted else FAILED


def _cell(value: object) -> str:
    return " ".join(value) or "all" if isinstance(value, list) else str(value)
