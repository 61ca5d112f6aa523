"""`penstock deadletters`: the messages that could not be processed."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer

from penstock.bus import Bus
from penstock.bus.admin.replay import replay_found
from penstock.bus.state import deadletters as bus_letters
from penstock.bus.state.deadletters import Letter
from penstock_cli.commands.options import operator, parse_since, parser
from penstock_cli.operations.connection import DONE, FAILED, USAGE
from penstock_cli.terminal import render
from penstock_cli.terminal.output import Output

app = typer.Typer(
    help="List, show, replay and drop the messages that could not be processed. Speaks with NATS, "
    "as the services do.",
    no_args_is_help=True,
)

MAX_SHOWN_CHARACTERS = 20_000
MAX_HEX_BYTES = 512


def _token(text: str) -> str:
    if not re.fullmatch(r"[\w-]+", text, re.ASCII):
        raise ValueError(f"{text!r} is not allowed: use letters, digits, _ and -")
    return text


Numbers = Annotated[list[int] | None, typer.Argument(help="The numbers of dead letters.")]
All = Annotated[
    bool, typer.Option("--all", help="All dead letters that match, instead of numbers.")
]
OfService = Annotated[
    str | None,
    typer.Option(
        parser=parser(_token), metavar="NAME", help="Only those that this service gave up."
    ),
]
OfRun = Annotated[
    str | None, typer.Option(parser=parser(_token), metavar="ID", help="Only those of this run.")
]
Since = Annotated[
    datetime | None,
    typer.Option(
        parser=parser(parse_since),
        metavar="TIME",
        help="Only newer ones: 15m, 2h, 3d, or an ISO 8601 time.",
    ),
]


def _check_selection(
    numbers: list[int] | None,
    all_of_them: bool,
    service: str | None,
    run: str | None,
    since: datetime | None,
    **_: object,
) -> None:
    if bool(numbers) == all_of_them:
        raise typer.BadParameter("name dead letters by their numbers, or say --all (not both)")
    if numbers and (service or run or since):
        raise typer.BadParameter("--service, --run and --since go with --all, not with numbers")


@app.command("list")
@operator()
async def list_deadletters(
    bus: Bus,
    output: Output,
    service: OfService = None,
    run: OfRun = None,
    since: Since = None,
) -> int:
    """List the dead letters, the newest last."""
    found, _ = await _selected(bus, (), service, run, since)
    if output.as_json:
        for letter in found:
            output.json_line(letter.summary())
    elif not found:
        output.notice("there are no dead letters" + " like that" * bool(service or run or since))
    else:
        columns = ("number", "at", "service", "run", "from", "state", "reason")
        output.table(columns, map(_row, found))
    return DONE


@app.command("show")
@operator()
async def show_deadletter(
    bus: Bus,
    output: Output,
    number: Annotated[int, typer.Argument(min=1, help="The number of the dead letter.")],
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Show the payload of a source frame, which may hold secrets."),
    ] = False,
) -> int:
    """Show one dead letter with its reason, origin, headers and payload."""
    found = await bus_letters.find(bus, number)
    if found is None:
        output.notice(f"penstock: there is no dead letter {number}; `deadletters list` has all")
        return USAGE
    letter = found.letter
    hidden = not raw and letter.subject.startswith(("raw.", "rawp."))
    if output.as_json:
        payload = {} if hidden else _payload(letter.payload)
        output.json_line(found.summary() | {"headers": letter.headers} | payload)
        return DONE
    output.pieces(render.fields({**found.summary(), "headers": letter.headers}))
    output.pieces([("\npayload\n", "bold")])
    if hidden:
        output.text(
            f"{len(letter.payload)} bytes of a source frame, which may hold secrets of the "
            "upstream's: --raw shows them"
        )
    else:
        output.text(_readable(letter.payload))
    return DONE


@app.command("replay")
@operator(check=_check_selection)
async def replay_deadletters(
    bus: Bus,
    output: Output,
    numbers: Numbers = None,
    all_of_them: All = False,
    service: OfService = None,
    run: OfRun = None,
    since: Since = None,
) -> int:
    """Publish dead letters again to their original subjects. A repeat changes nothing."""
    found, missing = await _selected(bus, numbers, service, run, since)
    code = _report_missing(output, missing)
    if all_of_them:
        found = [one for one in found if one.state != "replayed"]
        if not found:
            output.notice("there is nothing to replay")
    for one in found:
        reply = await replay_found(bus, one)
        _report(output, one.number, reply.outcome or "refused", reply.detail)
        code = code if reply.outcome else FAILED
    return code


@app.command("drop")
@operator(check=_check_selection)
async def drop_deadletters(
    bus: Bus,
    output: Output,
    numbers: Numbers = None,
    all_of_them: All = False,
    service: OfService = None,
    run: OfRun = None,
    since: Since = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before.")] = False,
) -> int:
    """Delete dead letters for good."""
    found, missing = await _selected(bus, numbers, service, run, since)
    code = _report_missing(output, missing)
    if not found:
        return code
    if not yes:
        if not output.is_interactive:
            output.notice("penstock: nobody can be asked here: say --yes to drop them for good")
            return USAGE
        listed = ", ".join(str(one.number) for one in found)
        if output.ask(f"Drop {listed} for good? [y/N] ") not in ("y", "yes"):
            output.notice("nothing is dropped")
            return FAILED
    for one in found:
        await bus_letters.drop(bus, one)
        _report(output, one.number, "dropped", "dropped")
    return code


async def _selected(
    bus: Bus,
    numbers: Sequence[int] | None,
    service: str | None,
    run_id: str | None,
    since: datetime | None,
) -> tuple[list[Letter], list[int]]:
    """Return the dead letters with these numbers, and those numbers that have no dead letter.
    Without numbers, return all dead letters that match the filters."""
    if not numbers:
        matching = bus_letters.letters(bus, service or "*", run_id or "*", since)
        return [letter async for letter in matching], []
    found = {number: await bus_letters.find(bus, number) for number in numbers}
    return (
        [letter for letter in found.values() if letter is not None],
        [number for number, letter in found.items() if letter is None],
    )


def _report_missing(output: Output, missing: Sequence[int]) -> int:
    for number in missing:
        _report(output, number, "missing", "there is no such dead letter (any more)")
    return FAILED if missing else DONE


def _report(output: Output, number: int, outcome: str, text: str) -> None:
    if output.as_json:
        output.json_line({"number": number, "outcome": outcome, "detail": text})
    elif outcome in ("refused", "missing"):
        output.notice(f"{number}: {text}")
    else:
        output.text(f"{number}: {text}")


def _row(one: Letter) -> tuple[str, ...]:
    letter = one.letter
    about = (str(one.number), letter.at, letter.service, letter.run or "-")
    return (*about, _source(one), one.state, letter.reason)


def _source(one: Letter) -> str:
    """Return the original subject of the message without the run id, and the message's stream
    sequence."""
    subject = one.letter.subject.removesuffix(f".{one.letter.run_id}")
    return f"{subject.replace(f'.{one.letter.run_id}.', '.…')} #{one.letter.sequence}"


def _payload(payload: bytes) -> dict[str, str]:
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_hex": payload.hex()}


def _readable(payload: bytes) -> str:
    """Return the payload as indented JSON, as text without control characters, or as hex."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        rest = len(payload) - MAX_HEX_BYTES
        return payload[:MAX_HEX_BYTES].hex(" ", -2) + (f" … {rest} bytes more" if rest > 0 else "")
    with contextlib.suppress(ValueError):
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    cut = "\n… cut: --json has it whole" if len(text) > MAX_SHOWN_CHARACTERS else ""
    return render.clean(text[:MAX_SHOWN_CHARACTERS]) + cut
