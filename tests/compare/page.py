"""The generated parts of docs/compared.md, from the reports that were published last."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from compare.rivals import PATIENCE_S, RIVALS, Rival

FILE: Final = Path(__file__).with_name("figures.json")
Report = Mapping[str, Any]

_COLUMNS: Final = (
    "server",
    "runs open at a kill",
    "effects: once / twice / never",
    "runs: completed / failed / no longer known / no end / start without answer",
    "words: lost / repeated / later not shown",
    "restart, s",
    "kill to next, s",
)


def part(name: str) -> str:
    """Return the part `extent`, `table` or `servers`, for `make docs`."""
    reports: dict[str, Report] = json.loads(FILE.read_text("utf-8"))
    return _PARTS[name](reports)


def extent(reports: Mapping[str, Report]) -> str:
    """Return how much was tried, and when."""
    shown = [each for each in reports.values() if "not shown" not in each]
    extents = {
        f"Seed {each['seed']}, {each['rounds']} rounds with {each['runs'] // each['rounds']} runs, "
        f"{PATIENCE_S:g} s after each restart unless a section says otherwise, on {each['date']}"
        for each in shown
    }
    return "; ".join(sorted(extents)) + ".\n"


def table(reports: Mapping[str, Report]) -> str:
    """Return the figures of all servers as a table."""
    rows = [_cells(rival, reports[rival.id]) for rival in RIVALS if rival.id in reports]
    lines = [_COLUMNS, ["---"] * len(_COLUMNS), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def servers(reports: Mapping[str, Report]) -> str:
    """Return a section for each server: versions, commands, and its own design."""
    found = [_section(rival, reports[rival.id]) for rival in RIVALS if rival.id in reports]
    return "\n".join(found)


_PARTS: Final = {"extent": extent, "table": table, "servers": servers}


def _cells(rival: Rival, report: Report) -> list[str]:
    if "not shown" in report:
        return [rival.name, "not shown", *[""] * (len(_COLUMNS) - 2)]
    never = str(report["effects_never"])
    if completed := report["effects_never_but_completed"]:
        never += f" ({completed})"
    gone = report["words_gone"] if report["rereadable"] else "-"
    ends = [report[name] for name in ("completed", "failed", "unknown", "endless", "unanswered")]
    return [
        rival.name,
        f"{report['met']} of {report['runs']}",
        f"{report['effects_once']} / {report['effects_twice']} / {never}",
        " / ".join(map(str, ends)),
        f"{report['words_lost']} / {report['words_repeated']} / {gone}",
        _middle(report["restart_s"]),
        _middle(report["next_s"]),
    ]


def _section(rival: Rival, report: Report) -> str:
    lines = [f"## {rival.name[0].upper()}{rival.name[1:]}", ""]
    if "not shown" in report:
        return "\n".join([*lines, f"Not shown: {report['not shown']}", ""])
    load = f"; load {report['load']} on two cores" if "load" in report else ""
    patience_s = report["patience_s"]
    longer = f"; {patience_s:g} s after each restart" if patience_s != PATIENCE_S else ""
    tried = f"{report['versions']}{load}{longer}."
    lines += [tried, "", f"```sh\n{rival.command}\n```", ""]
    if rival.beside is not None:
        lines += [f"Beside it, and not killed: `{rival.beside.command}`", ""]
    lines += [f"The client could ask for: {report['offers']}.", "", rival.design, ""]
    if (checked := report.get("conformance")) is not None:
        lines += [_checked(rival, checked), ""]
    return "\n".join(lines)


def _checked(rival: Rival, report: Report) -> str:
    """Return which statements of its protocol the server has kept."""
    counts = [f"{report[name]} {name.replace('_', ' ')}" for name in _VERDICTS]
    options = shlex.join(rival.conformance)
    text = f"`penstock-conformance --scripted {options}`: {', '.join(counts)}."
    told = [
        f"- {each['id']} ({each['level']}): {'; '.join(each['told'])}" for each in report["faults"]
    ]
    return "\n".join([f"{text} {rival.kept}".strip(), *(["", *told] if told else [])])


_VERDICTS: Final = ("passed", "failed", "not_shown")


def _middle(values: Sequence[float]) -> str:
    return f"{median(values):.1f}" if values else "none"
