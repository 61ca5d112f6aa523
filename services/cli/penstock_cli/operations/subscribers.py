"""List, make and delete the durable consumers of subscribers."""

from __future__ import annotations

import json

from penstock.bus import Bus
from penstock.bus.admin import subscribers
from penstock.bus.admin.permissions import DOMAIN
from penstock.bus.admin.subscribers import Durable
from penstock.bus.errors import ApiError
from penstock_cli.operations.connection import DONE, FAILED
from penstock_cli.terminal.output import Output


async def show(bus: Bus, output: Output) -> int:
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
    if output.as_json:
        for row in rows:
            output.json_line(row)
    else:
        columns = ("durable", "stream", "events", "waiting", "in_work", "again")
        output.table(columns, ([_cell(row[name]) for name in columns] for row in rows))
    return DONE


async def make(bus: Bus, output: Output, durable: Durable) -> int:
    """Make a durable in each shard that lacks it, and show the permissions of its NATS user."""
    try:
        made = await subscribers.make(bus, durable)
    except ApiError as error:
        output.notice(f"NATS refuses the durable {durable.name}: {error}")
        return FAILED
    for stream in made:
        _report(output, "made", f"the durable {durable.name} of {stream}")
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


async def delete(bus: Bus, output: Output, name: str) -> int:
    """Delete a durable in each shard.

    The durable's place in the stream, from which reading would continue, is lost.
    """
    deleted = await subscribers.delete(bus, name)
    for stream in deleted:
        _report(output, "deleted", f"the durable {name} of {stream}")
    if not deleted:
        output.notice(f"there is no subscriber's durable {name}: see `penstock subscribers list`")
    return DONE if deleted else FAILED


def _report(output: Output, what: str, name: str) -> None:
    if output.as_json:
        output.json_line({what: name})
    else:
        output.text(f"{name}: {what}")


def _cell(value: object) -> str:
    return " ".join(value) or "all" if isinstance(value, list) else str(value)
