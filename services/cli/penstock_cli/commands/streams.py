"""`penstock streams`: shows, makes, changes, copies and restores the streams."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.bus import Bus
from penstock.bus.admin import configuration, migrate, subscribers
from penstock.bus.admin.configuration import Difference
from penstock.bus.admin.ensure import ensure, shards_of
from penstock.bus.admin.repartition import partitions as partitions_now
from penstock.bus.admin.repartition import repartition
from penstock.bus.admin.resharding import reshard
from penstock.bus.streams import EVENTS, kind_and_shard
from penstock_cli.commands.options import DATA, AsJson, Data, Nats, operate
from penstock_cli.operations import backup
from penstock_cli.operations.connection import DONE
from penstock_cli.terminal.output import Output

app = typer.Typer(
    help="Show, make and change the streams. Speaks with NATS, as the services do.",
    no_args_is_help=True,
)


@app.command("show")
def show_streams(nats: Nats = None, data: Data = DATA, as_json: AsJson = False) -> None:
    """Show every stream, and how the stream differs from the settings in the environment."""
    output = Output(as_json)
    operate(lambda bus: _show(bus, output), output, nats, data)


@app.command("make")
def make_streams(nats: Nats = None, data: Data = DATA, as_json: AsJson = False) -> None:
    """Make missing streams, and change older streams to this version, before the services start.

    The command makes the streams as the operator, because the NATS users of services may not make
    streams.
    """
    output = Output(as_json)
    operate(lambda bus: _make(bus, output), output, nats, data, streams_may_be_missing=True)


@app.command("migrate")
def migrate_streams(
    partitions: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Also change the number of partitions to this."),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(
            min=1, max=64, help="Also divide new runs among this number of shards (docs/scale.md)."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would change.")
    ] = False,
    nats: Nats = None,
    data: Data = DATA,
    as_json: AsJson = False,
) -> None:
    """Change the streams to the settings in the environment. Runs continue meanwhile."""
    output = Output(as_json)
    operate(
        lambda bus: _bring_forward(bus, output, partitions, shards, dry_run),
        output,
        nats,
        data,
    )


@app.command("backup")
def backup_streams(
    folder: Annotated[Path, typer.Argument(help="A new folder for the copies.")],
    nats: Nats = None,
    data: Data = DATA,
    as_json: AsJson = False,
) -> None:
    """Copy every stream and bucket into a folder.

    Services may run meanwhile (docs/operate/backup.md).
    """
    output = Output(as_json)
    operate(lambda bus: backup.save(bus, output, folder), output, nats, data)


@app.command("restore")
def restore_streams(
    folder: Annotated[Path, typer.Argument(help="The folder of a `penstock streams backup`.")],
    lost: Annotated[
        int,
        typer.Option(
            min=1,
            max=10_000_000,
            help="How many events each EVENTS stream may have got after the backup, at most. "
            "Their sequences are not used again.",
        ),
    ] = 100_000,
    replicas: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=5,
            help="The replicas of each stream. Default: those of the backup, which need as many "
            "NATS servers.",
        ),
    ] = None,
    nats: Nats = None,
    data: Data = DATA,
    as_json: AsJson = False,
) -> None:
    """Restore the streams of a backup into an empty NATS, before the services start."""
    output = Output(as_json)
    operate(
        lambda bus: backup.restore_all(bus, output, folder, lost, replicas),
        output,
        nats,
        data,
        streams_may_be_missing=True,
    )


async def _show(bus: Bus, output: Output) -> int:
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
    columns = ("stream", "schema", "replicas", "partitions", "new_runs", "differs")
    output.listing(rows, columns, lambda row: [_cell(row.get(name, "")) for name in columns])
    return DONE


async def _make(bus: Bus, output: Output) -> int:
    """Make the streams, the buckets and the subscriber's durable that are missing."""
    before = [name for name in _names(bus) if await bus.has(name)]
    await ensure(bus, bus.settings.retention)
    made = [name for name in _names(bus) if name not in before]
    made += await subscribers.ensure(bus)
    for name in made:
        output.result({"made": name}, f"{name}: made")
    if not made and not output.as_json:
        output.notice("nothing is missing")
    return DONE


def _names(bus: Bus) -> list[str]:
    return [config["name"] for config in configuration.declared(bus.settings.retention)]


async def _bring_forward(
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
        output.result(
            {
                "stream": change.stream,
                "field": change.field,
                "from": change.found,
                "to": change.wanted,
                "outcome": what,
            },
            f"{change.stream}: {what} {change.field}: {change.found} → {change.wanted}",
        )


def _cell(value: object) -> str:
    return "; ".join(value) if isinstance(value, list) else str(value)
