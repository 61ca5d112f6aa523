"""`penstock up`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock_cli.commands.options import DATA
from penstock_cli.local.embedded_nats import check_sync_interval


def _sync_interval(text: str) -> str:
    try:
        return check_sync_interval(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def up(
    config: Annotated[
        Path | None, typer.Option(help="The file with your agents (penstock.yaml).")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="The address at which HTTP is served (127.0.0.1).")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The HTTP port (8000).")
    ] = None,
    probe_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="The port of probes and metrics (9000; 0: a free one)."
        ),
    ] = None,
    data: Annotated[
        Path, typer.Option(help="The folder of the NATS server's data, passwords and logs.")
    ] = DATA,
    nats: Annotated[
        str | None,
        typer.Option(
            envvar="PENSTOCK_NATS_URL", help="A running NATS server to use instead of our own."
        ),
    ] = None,
    nats_sync: Annotated[
        str,
        typer.Option(
            envvar="PENSTOCK_NATS_SYNC",
            callback=_sync_interval,
            metavar="INTERVAL",
            help="How often our own NATS server writes through to the disk: `always` (before it "
            "acknowledges), or a time such as 500ms or 10s, whose events a power cut may lose.",
        ),
    ] = "always",
    nats_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="The port of our own NATS server (a free one)."),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Also start demo agents, which need no key.")
    ] = False,
) -> None:
    """Run every service in this process until Ctrl-C."""
    from penstock_cli.local import up as local  # noqa: PLC0415 - the client needs no service

    if nats is not None and nats_port is not None:
        raise typer.BadParameter("--nats-port is of the server that --nats replaces: leave one out")
    options = local.Options(
        data=data,
        config=config,
        host=host,
        port=port,
        probe_port=probe_port,
        nats=nats,
        nats_sync=nats_sync,
        nats_port=nats_port,
        demo=demo,
    )
    raise typer.Exit(local.up(options))
