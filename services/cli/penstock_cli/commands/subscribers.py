"""`penstock subscribers`: the durable consumers of subscribers."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Annotated, Any, Literal

import typer

from penstock.bus import Bus
from penstock.bus.admin import subscribers
from penstock.bus.admin.permissions import DOMAIN
from penstock.bus.admin.subscribers import PLACES, Durable, Grant, Start, grant_of
from penstock.bus.errors import ApiError
from penstock.bus.subjects import key_notice, key_request
from penstock.events.catalogue import CATEGORIES
from penstock_cli.commands.options import operator, parser
from penstock_cli.operations.connection import DONE, FAILED
from penstock_cli.terminal.output import Output

app = typer.Typer(
    help="List, make and delete the durable consumers of subscribers; grant them sealed content. "
    "Speaks with NATS, as the services do.",
    no_args_is_help=True,
)

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TYPE = re.compile(r"([A-Za-z0-9_-]+|\*)(\.([A-Za-z0-9_-]+|\*)){0,2}")


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("a name has letters, digits, - and _")
    return text


def _event(text: str) -> str:
    if not _TYPE.fullmatch(text):
        raise ValueError(f"{text!r} is no category.action")
    if text.partition(".")[0] not in ("*", *CATEGORIES):
        categories = ", ".join(sorted(CATEGORIES))
        raise ValueError(f"there are no events {text!r}; the categories are {categories}")
    return text


def _start(text: str) -> Start:
    for place in PLACES:
        if text == place:
            return place
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("write beginning, now, or a time such as 2026-11-20T09:00Z") from None
    if time.tzinfo is None:
        raise ValueError("the time needs a time zone, such as Z")
    return time


Name = Annotated[
    str,
    typer.Argument(
        parser=parser(_name), metavar="NAME", help="The durable's name: <team>-<service>-<purpose>."
    ),
]


@app.command("list")
@operator()
async def list_subscribers(bus: Bus, output: Output) -> int:
    """List the durables, with the number of events that wait for each."""
    rows = [
        {
            "durable": info["name"],
            "stream": info["stream_name"],
            "grant": grant_of(info["config"]).name,
            "events": info["config"].get("filter_subjects") or [],
            "waiting": info["num_pending"],
            "in_work": info["num_ack_pending"],
            "again": info["num_redelivered"],
        }
        for info in await subscribers.listed(bus)
    ]
    columns = ("durable", "stream", "grant", "events", "waiting", "in_work", "again")
    output.listing(rows, columns, lambda row: [_cell(row[name]) for name in columns])
    return DONE


@app.command("make")
@operator()
async def make_subscriber(
    bus: Bus,
    output: Output,
    name: Name,
    event: Annotated[
        list[Any] | None,
        typer.Option(
            parser=parser(_event),
            metavar="TYPE",
            help="A type such as llm.tool_call or 'approval.*'; repeat it for several.",
        ),
    ] = None,
    begin: Annotated[
        Any,
        typer.Option(
            "--from",
            parser=parser(_start),
            metavar="PLACE",
            help="Where it begins: beginning, now, or a time such as 2026-11-20T09:00Z.",
        ),
    ] = "beginning",
) -> int:
    """Make a durable, and show the permissions that its NATS user needs. A repeat changes nothing.

    To replay events, make a second durable that begins earlier, and delete this durable afterwards.
    """
    durable = Durable(name, tuple(event or ()), begin)
    try:
        made = await subscribers.make(bus, durable)
    except ApiError as error:
        output.notice(f"NATS refuses the durable {name}: {error}")
        return FAILED
    for stream in made:
        what = f"the durable {name} of {stream}"
        output.result({"made": what}, f"{what}: made")
    infos = [info for info in await subscribers.listed(bus) if info["name"] == name]
    if not made:
        taken = infos[0]["config"].get("filter_subjects") or [] if infos else []
        text = f"the durable {name} exists, takes {_cell(taken)}, and was not changed"
        if durable.events and set(taken) != set(durable.config()["filter_subjects"]):
            output.notice(f"{text}; delete it first, or choose another name")
            return FAILED
        output.notice(text)
    if not output.as_json:
        output.notice("its NATS user in the account SUBSCRIBERS must be allowed to publish to")
        for stream in (info["stream_name"] for info in infos):
            output.notice(json.dumps(f"$JS.{DOMAIN}.API.CONSUMER.INFO.{stream}.{name}"))
            output.notice(json.dumps(f"$JS.{DOMAIN}.API.CONSUMER.MSG.NEXT.{stream}.{name}"))
            output.notice(json.dumps(f"$JS.ACK.{stream}.{name}.>"))
        output.notice("for `penstock subscribers grant` also to")
        output.notice(json.dumps(key_request(name, "*")))
        output.notice(f"and to subscribe to {json.dumps(key_notice('*'))}")
    return DONE


def _check_grant(grant: str, tenant: list[str] | None, **_: object) -> None:
    if tenant and grant == "shape":
        raise typer.BadParameter("--tenant is for the grant content")


@app.command("grant")
@operator(check=_check_grant)
async def grant_subscriber(
    bus: Bus,
    output: Output,
    name: Name,
    grant: Annotated[
        Literal["content", "shape"],
        typer.Argument(help="content, or shape: the envelope only, as without a grant."),
    ],
    tenant: Annotated[
        list[str] | None,
        typer.Option(help="A tenant whose runs' content it may read; repeat it for several."),
    ] = None,
) -> int:
    """Say what a durable's subscriber may read where content is sealed."""
    given = Grant(grant == "content", tuple(tenant or ()))
    try:
        changed = await subscribers.grant(bus, name, given)
    except ValueError as error:
        output.notice(str(error))
        return FAILED
    for stream in changed:
        what = f"the durable {name} of {stream}"
        output.result({"durable": what, "grant": given.name}, f"{what}: {given.name}")
    if not changed:
        output.notice(f"there is no durable {name}: see `penstock subscribers list`")
    return DONE if changed else FAILED


@app.command("delete")
@operator()
async def delete_subscriber(bus: Bus, output: Output, name: Name) -> int:
    """Delete a durable and its place in the stream.

    A durable that nobody reads costs the server memory.
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
