"""`penstock streams`: shows, makes, changes, copies and restores the streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from penstock.bus import Bus, StartUpError, streams
from penstock.bus.admin import backup, configuration, migrate, subscribers
from penstock.bus.admin.configuration import Difference
from penstock.bus.admin.ensure import ensure, shards_of
from penstock.bus.admin.migrate import partitions as partitions_now
from penstock.bus.admin.migrate import repartition, reshard
from penstock.bus.admin.rewrap import rewrap
from penstock.bus.errors import ApiError
from penstock.bus.streams import EVENTS, kind_and_shard
from penstock.service.key_service import wrapped_key
from penstock.settings import ConfigurationError, Settings, read_settings
from penstock_cli.commands.options import AsJson, operator
from penstock_cli.operations import erasures as repeated_erasures
from penstock_cli.operations.connection import DONE, USAGE
from penstock_cli.terminal.output import Output

# The index of a backup. This file is written last, so a folder without it is no complete backup.
INDEX: Final = "penstock-backup.json"
DESCRIPTION, CONTENT = "backup.json", "stream.tar.s2"  # two files in the folder of each stream

app = typer.Typer(
    help="Show, make and change the streams. Speaks with NATS, as the services do.",
    no_args_is_help=True,
)


@app.command("show")
@operator()
async def show_streams(bus: Bus, output: Output) -> int:
    """Show every stream, and how the stream differs from the settings in the environment."""
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


@app.command("make")
@operator(streams_may_be_missing=True)
async def make_streams(bus: Bus, output: Output) -> int:
    """Make missing streams, and change older streams to this version, before the services start.

    The command makes the streams as the operator, because the NATS users of services may not make
    streams.
    """
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


@app.command("migrate")
@operator()
async def migrate_streams(
    bus: Bus,
    output: Output,
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
) -> int:
    """Change the streams to the settings in the environment. Runs continue meanwhile."""
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


@app.command("backup")
@operator()
async def backup_streams(
    bus: Bus,
    output: Output,
    folder: Annotated[Path, typer.Argument(help="A new folder for the copies.")],
) -> int:
    """Copy every stream and bucket into a folder.

    Services may run meanwhile (docs/operate/backup.md).
    """
    if folder.exists() and any(folder.iterdir()):
        raise StartUpError(f"{folder} is not empty: name a new folder for the backup")
    shards = await shards_of(bus)
    names = [
        config["name"] for config in configuration.declared(bus.settings.retention, shards.made)
    ]
    begun_at = datetime.now(UTC).isoformat()
    copied = []
    for name in backup.in_order(names):
        if not await bus.has(name):
            continue
        at = folder / name
        # A backup contains prompts and answers, so only its owner may read the folder.
        at.mkdir(parents=True, mode=0o700)
        with (at / CONTENT).open("wb") as file:
            described = await backup.snapshot(bus, name, file.write)
        (at / DESCRIPTION).write_text(json.dumps(described))
        copied.append(name)
        size = (at / CONTENT).stat().st_size
        _report_copy(output, name, described["state"], size)
    index = {"begun_at": begun_at, "schema": streams.SCHEMA, "streams": copied}
    (folder / INDEX).write_text(json.dumps(index))
    folder.chmod(0o700)
    return DONE


@app.command("restore")
@operator(streams_may_be_missing=True)
async def restore_streams(
    bus: Bus,
    output: Output,
    folder: Annotated[Path, typer.Argument(help="The folder of a `penstock streams backup`.")],
    erasures: Annotated[
        str,
        typer.Option(
            metavar="FILE|none",
            help="A file with the lines of `penstock streams erasures --json`, made after the "
            "backup: these runs are erased again. `none`: nothing was erased since.",
        ),
    ],
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
) -> int:
    """Restore the streams of a backup into an empty NATS, before the services start."""
    again = repeated_erasures.read(erasures)
    index = _index(folder)
    names = index["streams"]
    if there := [name for name in names if await bus.has(name)]:
        raise StartUpError(
            f"this NATS has {', '.join(there[:3])}{' and more' * (len(there) > 3)} already: a "
            "backup is restored into an empty NATS, before any service starts. Nothing was changed"
        )
    ends: dict[str, int] = {}
    most = 1
    for name in names:
        described = json.loads((folder / name / DESCRIPTION).read_text())
        config = described["config"]
        if replicas is not None:
            config["num_replicas"] = replicas
        most = max(most, config["num_replicas"])
        try:
            await backup.restore(bus, name, described, _parts(folder / name / CONTENT))
        except ApiError as error:
            if ends or most == 1:
                raise
            raise StartUpError(
                f"{error}. {name} has {most} replicas: this NATS needs as many servers with room, "
                "or restore with `--replicas 1`. Nothing was changed"
            ) from error
        ends[name] = int(described["state"]["last_seq"])
        _report_copy(output, name, described["state"], (folder / name / CONTENT).stat().st_size)
    # The backup lacks the leases, and streams that a later version has added. The leases and these
    # streams get as many replicas as the other streams. If the bucket of leases had only one
    # replica, all services would stop whenever the server of this replica is away.
    await ensure(bus, replace(bus.settings.retention, replicas=most))
    await backup.leave_out(bus, ends, lost)
    found = await repeated_erasures.repeat(bus, again)
    if not output.as_json:
        output.notice(f"restored the backup of {index['begun_at']}; now start the services")
        if again:
            last = max(each.at for each in again)
            output.notice(
                f"{found['withheld']} runs are withheld and will be erased again, {found['open']} "
                "were open in the backup and are cancelled and erased when services run. The last "
                f"erasure of the file is of {last}: later ones must be repeated by hand"
            )
    return DONE


@app.command("erasures")
@operator()
async def list_erasures(bus: Bus, output: Output) -> int:
    """List which runs were erased, by whom and when: what a restore must repeat.

    Write the lines of `--json` to a file outside of NATS, after each erasure or every few minutes.
    """
    seen = set()
    async for each in repeated_erasures.listed(bus):
        if each["run_id"] not in seen:
            seen.add(each["run_id"])
            output.result(each, f"{each['run_id']}: erased at {each['at']} by {each['by']}")
    return DONE


@app.command("wrap")
def wrap_key(
    present: Annotated[
        bool,
        typer.Option(
            "--present", help="Wrap the first of PENSTOCK_CONTENT_KEYS, in place of a new key."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print a key for PENSTOCK_CONTENT_KEYS that only the key of PENSTOCK_KMS_URL can open.

    With `--present`, what is sealed stays as it is (docs/operate/rotate.md).
    """
    output = Output(as_json)
    try:
        word = asyncio.run(wrapped_key(read_settings(Settings), present=present))
    except (ConfigurationError, StartUpError) as error:
        output.notice(f"penstock: {error}")
        raise typer.Exit(USAGE) from None
    output.result({"content_key": word}, word)


@app.command("rewrap")
@operator()
async def rewrap_keys(bus: Bus, output: Output) -> int:
    """Wrap the key of each run's content with the first of PENSTOCK_CONTENT_KEYS.

    Services may run meanwhile. Afterwards an earlier key can be removed (docs/operate/rotate.md).
    """
    if not bus.content.seals:
        raise StartUpError("set PENSTOCK_CONTENT_KEYS as the services have it, the new key first")
    done = await rewrap(bus)
    output.result(
        {"keys": done.keys, "rewrapped": done.changed},
        f"{done.changed} of {done.keys} keys were wrapped with the first key",
    )
    return DONE


def _index(folder: Path) -> dict[str, Any]:
    """Return the index of a backup. Raises StartUpError if the backup is not complete, or has a
    newer schema."""
    try:
        index: dict[str, Any] = json.loads((folder / INDEX).read_text())
        parts = [
            folder / name / file for name in index["streams"] for file in (DESCRIPTION, CONTENT)
        ]
    except (OSError, ValueError, KeyError) as error:
        raise StartUpError(
            f"{folder} is no complete backup of `penstock streams backup`: {error}"
        ) from error
    if index["schema"] > streams.SCHEMA:
        raise StartUpError(
            f"the backup has schema {index['schema']}, and this version only knows "
            f"{streams.SCHEMA}: restore it with the version that made it, or a later one"
        )
    if missing := [str(part) for part in parts if not part.is_file()]:
        raise StartUpError(f"the backup lacks {', '.join(missing[:3])}. Nothing was changed")
    return index


def _parts(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while part := file.read(backup.CHUNK_BYTES):
            yield part


def _report_copy(output: Output, stream: str, state: dict[str, Any], size: int) -> None:
    output.result(
        {"stream": stream, "messages": state["messages"], "bytes": size},
        f"{stream}: {state['messages']} messages, {size} bytes",
    )


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
