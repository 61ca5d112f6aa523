"""`penstock deadletters`: the messages that could not be processed."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import typer

from penstock.bus import Bus
from penstock.bus.admin.replay import CannotReplay, replay_letter
from penstock.bus.state import deadletters as bus_letters
from penstock.bus.state.deadletters import Letter
from penstock_cli.commands.options import DATA, AsJson, Data, Nats, operate, parse_since
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

Numbers = Annotated[list[int] | None, typer.Argument(help="The numbers of dead letters.")]
All = Annotated[
    bool, typer.Option("--all", help="All dead letters that match, instead of numbers.")
]
OfService = Annotated[
    str | None, typer.Option("--service", help="Only those that this service gave up.")
]
OfRun = Annotated[str | None, typer.Option("--run", help="Only those of this run.")]
Since = Annotated[
    str | None, typer.Option("--since", help="Only newer ones: 15m, 2h, 3d, or an ISO 8601 time.")
]


@dataclass(frozen=True, slots=True)
class Selection:
    """The dead letters that a command selects, either by number, or as all that match the
    filters."""

    numbers: Sequence[int] = ()
    service: str | None = None
    run_id: str | None = None
    since: datetime | None = None

    async def found(self, bus: Bus) -> tuple[list[Letter], list[int]]:
        """Return the selected dead letters, and those given numbers that have no dead letter.

        Raises BusError.
        """
        if not self.numbers:
            matching = bus_letters.letters(bus, self.service or "*", self.run_id or "*", self.since)
            return [letter async for letter in matching], []
        looked_up = {number: await bus_letters.find(bus, number) for number in self.numbers}
        return (
            [letter for letter in looked_up.values() if letter is not None],
            [number for number, letter in looked_up.items() if letter is None],
        )


@app.command("list")
def list_deadletters(
    service: OfService = None,
    run: OfRun = None,
    since: Since = None,
    nats: Nats = None,
    data: Data = DATA,
    as_json: AsJson = False,
) -> None:
    """List the dead letters, the newest last."""
    output, selection = Output(as_json), _selection([], service, run, since)
    operate(lambda bus: _show_list(bus, output, selection), output, nats, data)


@app.command("show")
def show_deadletter(
    number: Annotated[int, typer.Argument(min=1, help="The number of the dead letter.")],
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Show the payload of a source frame, which may hold secrets."),
    ] = False,
    nats: Nats = None,
    data: Data = DATA,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter with its reason, origin, headers and payload."""
    output = Output(as_json)
    operate(lambda bus: _show(bus, output, number, raw), output, nats, data)


@app.command("replay")
def replay_deadletters(
    numbers: Numbers = None,
    all_of_them: All = False,
    service: OfService = None,
    run: OfRun = None,
    since: Since = None,
    nats: Nats = None,
    data: Data = DATA,
    as_json: AsJson = False,
) -> None:
    """Publish dead letters again to their original subjects. A repeat changes nothing."""
    output = Output(as_json)
    selection = _selection(_some(numbers, all_of_them), service, run, since)
    operate(lambda bus: _replay(bus, output, selection), output, nats, data)


@app.command("drop")
def drop_deadletters(
    numbers: Numbers = None,
    all_of_them: All = False,
    service: OfService = None,
    run: OfRun = None,
    since: Since = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before.")] = False,
    nats: Nats = None,
    data: Data = DATA,
    as_json: AsJson = False,
) -> None:
    """Delete dead letters for good."""
    output = Output(as_json)
    selection = _selection(_some(numbers, all_of_them), service, run, since)
    operate(lambda bus: _drop(bus, output, selection, yes), output, nats, data)


def _some(numbers: list[int] | None, all_of_them: bool) -> list[int]:
    if bool(numbers) == all_of_them:
        raise typer.BadParameter("name dead letters by their numbers, or say --all (not both)")
    return numbers or []


def _selection(
    numbers: list[int], service: str | None, run: str | None, since: str | None
) -> Selection:
    if numbers and (service or run or since):
        raise typer.BadParameter("--service, --run and --since go with --all, not with numbers")
    for option, token in (("--service", service), ("--run", run)):
        if token is not None and not re.fullmatch(r"[\w-]+", token, re.ASCII):
            raise typer.BadParameter(
                f"{token!r} is not allowed: use letters, digits, _ and -", param_hint=option
            )
    try:
        time = parse_since(since) if since is not None else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from None
    return Selection(numbers, service, run, time)


async def _show_list(bus: Bus, output: Output, selection: Selection) -> int:
    """Show every dead letter that matches, the newest last; return the exit code."""
    found, _ = await selection.found(bus)
    if output.as_json:
        for letter in found:
            output.json_line(_summary(letter))
        return DONE
    if not found:
        output.notice("there are no dead letters" + (" like that" if _is_narrow(selection) else ""))
        return DONE
    columns = ("number", "at", "service", "run", "from", "state", "reason")
    output.table(columns, map(_row, found))
    return DONE


async def _show(bus: Bus, output: Output, number: int, raw: bool) -> int:
    """Show one dead letter; show the payload of a source frame only with `raw`."""
    found = await bus_letters.find(bus, number)
    if found is None:
        output.notice(f"penstock: there is no dead letter {number}; `deadletters list` has all")
        return USAGE
    letter = found.letter
    hidden = not raw and letter.subject.startswith(("raw.", "rawp."))
    if output.as_json:
        payload = {} if hidden else _payload(letter.payload)
        output.json_line(_summary(found) | {"headers": letter.headers} | payload)
        return DONE
    output.pieces(render.fields({**_summary(found), "headers": letter.headers}))
    output.pieces([("\npayload\n", "bold")])
    if hidden:
        output.text(
            f"{len(letter.payload)} bytes of a source frame, which may hold secrets of the "
            "upstream's: --raw shows them"
        )
    else:
        output.text(_readable(letter.payload))
    return DONE


async def _replay(bus: Bus, output: Output, selection: Selection) -> int:
    found, missing = await selection.found(bus)
    code = _report_missing(output, missing)
    if not selection.numbers:
        found = [one for one in found if _state(one) != "replayed"]
        if not found:
            output.notice("there is nothing to replay")
    for one in found:
        try:
            done = await replay_letter(bus, one)
        except CannotReplay as error:
            _report(output, one.number, "refused", f"cannot be replayed: {error}")
            code = FAILED
            continue
        if done:
            _report(output, one.number, "replayed", f"replayed, as {one.letter.subject}")
        else:
            assert one.mark is not None
            _report(output, one.number, "already", f"was replayed at {one.mark.at}: nothing done")
    return code


async def _drop(bus: Bus, output: Output, selection: Selection, yes: bool) -> int:
    """Delete dead letters for good, after a confirmation; return the exit code."""
    found, missing = await selection.found(bus)
    code = _report_missing(output, missing)
    if not found:
        return code
    if not yes:
        if not output.is_interactive:
            output.notice("penstock: nobody can be asked here: say --yes to drop them for good")
            return USAGE
        numbers = ", ".join(str(one.number) for one in found)
        if output.ask(f"Drop {numbers} for good? [y/N] ") not in ("y", "yes"):
            output.notice("nothing is dropped")
            return FAILED
    for one in found:
        await bus_letters.drop(bus, one)
        _report(output, one.number, "dropped", "dropped")
    return code


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
    return (*about, _source(one), _state(one), letter.reason)


def _is_narrow(selection: Selection) -> bool:
    return bool(selection.service or selection.run_id or selection.since)


def _state(one: Letter) -> str:
    return one.mark.state if one.mark is not None else "waiting"


def _source(one: Letter) -> str:
    """Return the original subject of the message without the run id, and the message's stream
    sequence."""
    subject = one.letter.subject.removesuffix(f".{one.letter.run_id}")
    return f"{subject.replace(f'.{one.letter.run_id}.', '.…')} #{one.letter.sequence}"


def _summary(one: Letter) -> dict[str, Any]:
    letter = one.letter
    summary: dict[str, Any] = {
        "number": one.number,
        "state": _state(one),
        **letter.model_dump(include={"at", "service", "pod"}),
        "run_id": letter.run,
        **letter.model_dump(include={"subject", "sequence"}),
        **letter.model_dump(include={"delivered", "reason", "traceback_id"}),
        "bytes": len(letter.payload),
    }
    return summary if one.mark is None else {**summary, "state_at": one.mark.at}


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
