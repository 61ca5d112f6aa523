"""`penstock streams`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock_cli.commands.options import DATA, AsJson, Data, Nats, operate
from penstock_cli.operations import backup, streams
from penstock_cli.terminal.output import Output

app = typer.Typer(
    help="Show, make and change the streams. Speaks with NATS, as the services do.",
    no_args_is_help=True,
)


@app.command("show")
def show_streams(nats: Nats = None, data: Data = DATA, as_json: AsJson = False) -> None:
    """Show every stream, and how the stream differs from the settings in the environment."""
    output = Output(as_json)
    operate(lambda bus: streams.show(bus, output), output, nats, data)


@app.command("make")
def make_streams(nats: Nats = None, data: Data = DATA, as_json: AsJson = False) -> None:
    """Make missing streams, and change older streams to this version, before the services start.

    The command makes the streams as the operator, because the NATS users of services may not make
    streams.
    """
    output = Output(as_json)
    operate(lambda bus: streams.make(bus, output), output, nats, data, streams_may_be_missing=True)


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
        lambda bus: streams.bring_forward(bus, output, partitions, shards, dry_run),
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
