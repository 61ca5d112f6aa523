"""Options that several commands share, and the connections that these commands need."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock_cli.terminal.api import Api, CallFailed
from penstock_cli.terminal.output import Output

if TYPE_CHECKING:
    from penstock.bus import Bus

Url = Annotated[str, typer.Option("--url", envvar="PENSTOCK_URL", help="The URL of Penstock.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON to stdout, one object per line.")]
RunId = Annotated[str, typer.Argument(help="The run's id, see `penstock runs`.")]
Wait = Annotated[
    bool | None,
    typer.Option(
        "--wait/--no-wait",
        help="Follow the run further while it waits for the decision of others. Without it, the "
        "command ends there with exit code 4. Default: only at a terminal.",
    ),
]
Nats = Annotated[
    str | None,
    typer.Option(
        "--nats",
        help="The URL of the NATS server. Default: PENSTOCK_NATS_URL, or the server of the "
        "`penstock up` in --data.",
    ),
]
Data = Annotated[Path, typer.Option("--data", help="The data folder of a `penstock up`.")]
DATA = Path(".penstock")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@contextmanager
def connected(url: str, as_json: bool) -> Iterator[tuple[Api, Output]]:
    """Yield the API at this URL.

    If a call fails, the command ends with a message and an exit code.
    """
    output = Output(as_json)
    try:
        # The token comes from the environment and is no option, because other users of this machine
        # can read a command line.
        with Api(url, output.notice, os.environ.get("PENSTOCK_TOKEN")) as api:
            yield api, output
    except CallFailed as error:
        output.notice(f"penstock: {error}")
        raise typer.Exit(error.exit_code) from None


@contextmanager
def configuration(output: Output) -> Iterator[None]:
    """End the command with a message and exit code 2 if the block raises ConfigurationError."""
    from penstock.settings import ConfigurationError  # noqa: PLC0415 - most commands need no files

    try:
        yield
    except ConfigurationError as error:
        output.notice(f"penstock: {error}")
        raise typer.Exit(2) from None


def operate(
    work: Callable[[Bus], Awaitable[int]],
    output: Output,
    nats: str | None,
    data: Path,
    *,
    streams_may_be_missing: bool = False,
) -> None:
    """Connect to NATS as the operator and call `work`.

    The command then ends with the exit code that `work` returns.
    """
    from penstock_cli.operations import connection  # noqa: PLC0415 - the client needs no NATS

    code = connection.run(work, output, nats, data, streams_may_be_missing=streams_may_be_missing)
    raise typer.Exit(code)


def parse_since(text: str) -> datetime:
    """Parse an age (`90s`, `15m`, `2h`, `3d`) or an ISO 8601 time. Raises ValueError."""
    if short := re.fullmatch(r"(\d{1,5})([smhd])", text):
        return datetime.now(UTC) - timedelta(seconds=int(short[1]) * _UNITS_S[short[2]])
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither like 15m, 2h or 3d nor a time (ISO 8601)") from None
    return time if time.tzinfo else time.astimezone()
