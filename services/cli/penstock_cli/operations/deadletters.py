"""List, show, replay and drop dead letters, which are messages that could not be processed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.bus import Bus
from penstock.bus.admin.replay import CannotReplay, replay_letter
from penstock.bus.state import deadletters as bus_letters
from penstock.bus.state.deadletters import Letter
from penstock_cli.operations.connection import DONE, FAILED, USAGE
from penstock_cli.terminal import render
from penstock_cli.terminal.output import Output

MAX_SHOWN_CHARACTERS = 20_000
MAX_HEX_BYTES = 512


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


async def show_list(bus: Bus, output: Output, selection: Selection) -> int:
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


async def show(bus: Bus, output: Output, number: int, raw: bool) -> int:
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


async def replay(bus: Bus, output: Output, selection: Selection) -> int:
    """Replay dead letters, show each outcome, and return the exit code."""
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


async def drop(bus: Bus, output: Output, selection: Selection, yes: bool) -> int:
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
