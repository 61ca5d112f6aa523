"""The options that several commands share, and the connections that commands need."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import orjson
import typer

from penstock_cli.terminal.api import Api, advice, exit_code
from penstock_cli.terminal.output import Output
from penstock_client import DEFAULT_URL, PenstockError

if TYPE_CHECKING:
    from penstock.bus import Bus

T = TypeVar("T")

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
Limit = Annotated[int, typer.Option(min=1, help="The largest number that is shown.")]
Session = Annotated[
    str | None, typer.Option(help="The id of a conversation to continue, or to begin.")
]
YesOrNo = Annotated[
    bool | None, typer.Option("--yes/--no", help="Approve, or reject, everything that is asked.")
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


def client(function: Callable[..., int | None]) -> Callable[..., None]:
    """Make a command of `function(api, output, **options)`, which calls the HTTP API.

    The command also has the options `--url` and `--json` (decision 0334). Its exit code is what the
    function returns; None is 0. As a group's callback, it runs only without a subcommand.
    """

    def run(*, context: typer.Context, url: str, as_json: bool, **options: Any) -> None:
        if context.invoked_subcommand is None:
            with connected(url, as_json) as (api, output):
                raise typer.Exit(function(api, output, **options) or 0)

    _describe(run, function, _option("url", Url, DEFAULT_URL), _option("context", typer.Context))
    return run


def operator(
    *, check: Callable[..., object] | None = None, streams_may_be_missing: bool = False
) -> Callable[[Callable[..., Awaitable[int]]], Callable[..., None]]:
    """Return a decorator that makes a command of `function(bus, output, **options)`.

    The function speaks with NATS as the operator, and returns the exit code. The command also has
    the options `--nats`, `--data` and `--json`. Before it connects, `check` gets the other options,
    and may raise `BadParameter`.
    """

    def declare(function: Callable[..., Awaitable[int]]) -> Callable[..., None]:
        def run(*, nats: str | None, data: Path, as_json: bool, **options: Any) -> None:
            if check is not None:
                check(**options)
            output = Output(as_json)
            operate(
                lambda bus: function(bus, output, **options),
                output,
                nats,
                data,
                streams_may_be_missing=streams_may_be_missing,
            )

        _describe(run, function, _option("nats", Nats, None), _option("data", Data, DATA))
        return run

    return declare


def _option(name: str, type_: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=type_)


def _describe(run: Any, function: Callable[..., Any], *more: inspect.Parameter) -> None:
    """Give a command the name, the help and the options of a function, without the function's first
    two parameters, and `--json` and `more`. Typer reads them from the signature."""
    _, _, *own = inspect.signature(function, eval_str=True).parameters.values()
    options = [_option(each.name, each.annotation, each.default) for each in own]
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__signature__ = inspect.Signature([*options, *more, _option("as_json", AsJson, False)])


@contextmanager
def connected(url: str, as_json: bool) -> Iterator[tuple[Api, Output]]:
    """Yield the API at this URL. If a call fails, the command ends with a message and an exit
    code."""
    output = Output(as_json)
    try:
        # The token comes from the environment and is no option, because other users of this machine
        # can read a command line.
        with Api(url, output.notice, os.environ.get("PENSTOCK_TOKEN")) as api:
            yield api, output
    except PenstockError as error:
        output.notice(f"penstock: {advice(error)}")
        raise typer.Exit(exit_code(error)) from None


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
    """Connect to NATS as the operator, call `work`, and end the command with the exit code that
    `work` returns."""
    from penstock_cli.operations import connection  # noqa: PLC0415 - the client needs no NATS

    code = connection.run(work, output, nats, data, streams_may_be_missing=streams_may_be_missing)
    raise typer.Exit(code)


def parser(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return a parser of an option's value: a ValueError of `parse` is a wrong usage."""

    def text(value: str) -> T:
        try:
            return parse(value)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return text


def parse_since(text: str) -> datetime:
    """Parse an age (`90s`, `15m`, `2h`, `3d`) or an ISO 8601 time. Raises ValueError."""
    if short := re.fullmatch(r"(\d{1,5})([smhd])", text):
        return datetime.now(UTC) - timedelta(seconds=int(short[1]) * _UNITS_S[short[2]])
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither like 15m, 2h or 3d nor a time (ISO 8601)") from None
    return time if time.tzinfo else time.astimezone()


def parse_lifetime(max_s: int, text: str) -> int:
    """Parse a time such as `90s`, `15m`, `2h` or `3d` into seconds. Raises ValueError."""
    found = re.fullmatch(r"(\d{1,7})([smhd])", text)
    if found is None:
        raise ValueError(f"{text!r} is no lifetime: write it like 15m, 2h or 3d")
    lifetime_s = int(found[1]) * _UNITS_S[found[2]]
    if not 0 < lifetime_s <= max_s:
        raise ValueError(f"a token lives from 1s to {max_s // 86400}d")
    return lifetime_s


def read_tag(text: str) -> tuple[str, str]:
    """Return the key and the value of a tag. Raises ValueError."""
    key, equals, value = text.partition("=")
    if not key or not equals or not value:
        raise ValueError(f"{text!r} is no tag: write it as key=value")
    return key, value


def read_input(text: str) -> dict[str, Any]:
    """Return the JSON object of the option `--input`.

    Raises:
        ValueError: the file cannot be read, or the text is no JSON object.
    """
    file = text[1:] if text.startswith("@") else None
    try:
        if file is not None:
            text = Path(file).read_text(encoding="utf-8")
        elif text == "-":
            text = sys.stdin.read()
        # It reads only what can be sent: `json` would also take NaN and 1e400, which is no number.
        found = orjson.loads(text)
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"this is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError('must be a JSON object, as in {"diff": "..."}')
    return found


parse_time = parser(lambda text: parse_since(text).astimezone(UTC).isoformat())
Since = Annotated[
    str | None,
    typer.Option(
        parser=parse_time,
        metavar="TIME",
        help="Only what began since: 15m, 2h, 3d, or an ISO 8601 time.",
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        parser=parse_time, metavar="TIME", help="Only what began before, in the same forms."
    ),
]
Tags = Annotated[
    list[Any] | None,
    typer.Option(
        "--tag",
        parser=parser(read_tag),
        metavar="KEY=VALUE",
        help="A tag of the run, by which lists are filtered. May be repeated.",
    ),
]
Input = Annotated[
    Any,
    typer.Option(
        "--input",
        parser=parser(read_input),
        metavar="JSON",
        help="The input, a JSON object; @FILE reads a file, - the input.",
    ),
]
