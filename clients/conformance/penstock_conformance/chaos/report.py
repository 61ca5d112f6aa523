"""Says what a call of `chaos` found: as text, as JSON, and as a page. Pure."""

from __future__ import annotations

import dataclasses
import json
from html import escape

from penstock_conformance.chaos.judge import Figures, spread
from penstock_conformance.chaos.rounds import Options, Result
from penstock_conformance.reports import Table, page


def rows(options: Options, figures: Figures) -> list[tuple[str, str]]:
    """Return the figures as pairs of a name and a sentence."""
    never = f"{figures.effects_never} never"
    if figures.effects_never:
        never += f" ({figures.effects_never_but_completed} of them in runs that completed)"
    gone = f"{figures.words_gone} not shown to a later client"
    return [
        (
            "effects",
            f"{figures.effects_planned} in the scripts: {figures.effects_once} happened once, "
            f"{figures.effects_twice} twice or more often, {never}",
        ),
        (
            "runs",
            f"{figures.runs}, of which {figures.met} were open at a kill: {figures.completed} "
            f"completed, {figures.failed} failed, {figures.unknown} no longer known, "
            f"{figures.endless} without an end after {options.patience_s:g} s, "
            f"{figures.unanswered} whose start got no answer",
        ),
        (
            "words",
            f"{figures.words_lost} lost in completed runs, {figures.words_repeated} repeated, "
            + (gone if figures.rereadable else "a later client cannot read a run"),
        ),
        ("restart", f"{spread(figures.restart_s)} until the server answered"),
        ("next", f"{spread(figures.next_s)} from the kill to a run's next word or end"),
    ]


def text(options: Options, result: Result, again: str) -> str:
    """Return the report for a terminal. `again` is the command that repeats it."""
    figures = result.figures
    lines = [f"{figures.rounds} kills, seed {options.seed}; the clients could ask for: "]
    lines[0] += _offers(options)
    lines += [f"  {name:<8} {what}" for name, what in rows(options, figures)]
    lines += [f"  fault    {fault}" for fault in figures.faults]
    lines += [f"  again    {again}"]
    return "\n".join(lines)


def as_json(options: Options, result: Result, again: str) -> str:
    figures = result.figures
    found = {
        "protocol": _protocol(options),
        "agent": options.protocol.agent,
        "goes_on": options.protocol.goes_on,
        "offers": _offers(options),
        "command": options.command,
        "again": again,
        "seed": options.seed,
        "patience_s": options.patience_s,
        "calm_s": round(result.calm_s, 3),
        "moments": [str(moment) for moment in result.moments],
        "faults": figures.faults,
        **dataclasses.asdict(figures),
    }
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def as_html(options: Options, result: Result, again: str) -> str:
    """Return the report as a page that can be published."""
    figures = result.figures
    lines = [
        f"{figures.rounds} kills, seed {options.seed}",
        f"The clients could ask for: {_offers(options)}",
        again,
    ]
    faults = [[escape(fault)] for fault in figures.faults] or [["none"]]
    rounds = [
        [str(number), escape(each.moment), ", ".join(seen.end or "no end" for seen in each.runs)]
        for number, each in enumerate(result.rounds, 1)
    ]
    found = [[name, escape(what)] for name, what in rows(options, figures)]
    tables = (
        Table("What became of the runs", ("", ""), found),
        Table("Faults", ("fault, with its runs",), faults),
        Table("Rounds", ("round", "killed", "ends"), rounds),
    )
    return page(f"{_protocol(options)} at {options.url}, killed", lines, tables)


def _protocol(options: Options) -> str:
    return type(options.protocol).__name__.lower()


def _offers(options: Options) -> str:
    protocol = options.protocol
    if protocol.goes_on and protocol.GOES_ON is not None:
        return f"{protocol.OFFERS}; {protocol.GOES_ON}"
    return protocol.OFFERS
