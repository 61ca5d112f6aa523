"""Show, make and change the streams; a change does not interrupt runs."""

from __future__ import annotations

from penstock.bus import Bus
from penstock.bus.admin import configuration, migrate, subscribers
from penstock.bus.admin.configuration import Difference
from penstock.bus.admin.ensure import ensure, shards_of
from penstock.bus.admin.repartition import partitions as partitions_now
from penstock.bus.admin.repartition import repartition
from penstock.bus.admin.resharding import reshard
from penstock.bus.streams import EVENTS, kind_and_shard
from penstock_cli.operations.connection import DONE
from penstock_cli.terminal.output import Output


async def show(bus: Bus, output: Output) -> int:
    """Show every stream with its schema, and with its differences from the settings."""
    changes = await migrate.plan(bus, bus.settings.retention)
    rows = []
    shards = await shards_of(bus)
    for wanted in configuration.declared(bus.settings.retention, shards.made):
        found = await configuration.configuration(bus, wanted["name"])
        if found is None:
            continue
        row = {
            "stream": found["name"],
            "schema": configuration.schema_of(found),
            "replicas": found["num_replicas"],
            "differs": [str(change) for change in changes if change.stream == found["name"]],
        }
        if configuration.has_partitions(found):
            row["partitions"] = configuration.partitions_of(found)
        kind, shard = kind_and_shard(found["name"])
        if kind == EVENTS and shards.made > 1:
            row["new_runs"] = shard < shards.used
        rows.append(row)
    rows.sort(key=lambda row: str(row["stream"]))
    if output.as_json:
        for row in rows:
            output.json_line(row)
    else:
        columns = ("stream", "schema", "replicas", "partitions", "new_runs", "differs")
        output.table(columns, ([_cell(row.get(name, "")) for name in columns] for row in rows))
    return DONE


async def make(bus: Bus, output: Output) -> int:
    """Make the streams, the buckets and the subscriber's durable that are missing."""
    before = [name for name in _names(bus) if await bus.has(name)]
    await ensure(bus, bus.settings.retention)
    made = [name for name in _names(bus) if name not in before]
    made += await subscribers.ensure(bus)
    for name in made:
        if output.as_json:
            output.json_line({"made": name})
        else:
            output.text(f"{name}: made")
    if not made and not output.as_json:
        output.notice("nothing is missing")
    return DONE


def _names(bus: Bus) -> list[str]:
    return [config["name"] for config in configuration.declared(bus.settings.retention)]


async def bring_forward(
    bus: Bus, output: Output, partitions: int | None, shards: int | None, dry_run: bool
) -> int:
    """Change the streams so that they have the settings and this version's schema; show each
    change."""
    retention = bus.settings.retention
    if dry_run:
        _report(output, await migrate.plan(bus, retention), "would change")
        return DONE
    await ensure(bus, retention)
    _report(output, await migrate.apply(bus, retention), "changed")
    if partitions is not None:
        former = await partitions_now(bus)
        await repartition(bus, partitions)
        _report(output, [Difference("RAW", "partitions", former, partitions)], "changed")
    if shards is not None:
        used = (await shards_of(bus)).used
        await reshard(bus, shards)
        _report(output, [Difference("EVENTS", "shards", used, shards)], "changed")
    return DONE


def _report(output: Output, changes: list[Difference], what: str) -> None:
    if not output.as_json and not changes:
        output.notice("all streams have these settings already")
    for change in changes:
        if output.as_json:
            output.json_line(
                {
                    "stream": change.stream,
                    "field": change.field,
                    "from": change.found,
                    "to": change.wanted,
                    "outcome": what,
                }
            )
        else:
            output.text(f"{change.stream}: {what} {change.field}: {change.found} → {change.wanted}")


def _cell(value: object) -> str:
    return "; ".join(value) if isinstance(value, list) else str(value)
