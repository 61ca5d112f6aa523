"""`penstock-conformance chaos`."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock_conformance.chaos import report
from penstock_conformance.chaos.drive import NotUnderstood
from penstock_conformance.chaos.protocols import PROTOCOLS
from penstock_conformance.chaos.rounds import Options, play
from penstock_conformance.chaos.server import ServerFailed
from penstock_conformance.dialect import NotShown

FAULTS, NO_RESULT = 1, 2  # exit statuses
STOPPED = 130  # by Ctrl-C; what was found until then is reported


def report_file(text: str) -> Path:
    """Return the path of a report, whose folder must be there before a long trial begins."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    return path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--command", required=True, help="starts the server, in a shell")
    parser.add_argument("--url", required=True, help="that the clients use")
    parser.add_argument("--ready", help="a URL that answers when the server is ready (--url)")
    parser.add_argument("--protocol", required=True, choices=sorted(PROTOCOLS))
    parser.add_argument(
        "--agent", default="scripted", help="the agent's name; for AG-UI its path (scripted)"
    )
    parser.add_argument("--seed", type=int, help="repeats the moments of an earlier call")
    parser.add_argument("--rounds", type=int, default=10, help="how many kills (10)")
    parser.add_argument("--runs", type=int, default=4, help="how many runs per kill (4)")
    parser.add_argument("--calls", type=int, default=3, help="how many effects per run (3)")
    parser.add_argument(
        "--patience", type=float, default=20.0, help="the seconds a run has after a restart (20)"
    )
    parser.add_argument(
        "--go-on",
        action="store_true",
        help="also ask the server to go on with runs that its process left, where it offers this",
    )
    parser.add_argument("--counter-port", type=int, default=0, help="of the counter (a free one)")
    for name in ("json", "html"):
        parser.add_argument(
            f"--{name}", type=report_file, metavar="FILE", help="write the report there"
        )
    parser.add_argument(
        "--frames", type=Path, default=Path("chaos"), help="the folder of all frames (chaos)"
    )


def main(arguments: Sequence[str]) -> int:
    """Return 0 without a fault, 1 with faults, 2 if there is no result, `STOPPED` after Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="penstock-conformance chaos",
        description="Kill a server at moments that a seed chooses; see what becomes of its runs.",
        epilog="`penstock-conformance agent` starts a scripted agent.",
    )
    add_arguments(parser)
    asked = parser.parse_args(arguments)
    options = Options(
        command=asked.command,
        url=asked.url,
        probe=asked.ready or asked.url,
        protocol=PROTOCOLS[asked.protocol](asked.agent, goes_on=asked.go_on),
        seed=secrets.randbelow(10**6) if asked.seed is None else asked.seed,
        rounds=asked.rounds,
        runs=asked.runs,
        calls=asked.calls,
        patience_s=asked.patience,
        counter_port=asked.counter_port,
    )
    try:
        result = asyncio.run(play(options, asked.frames, _say))
    except (ServerFailed, NotShown, NotUnderstood) as error:
        print(f"penstock-conformance chaos: {error}", file=sys.stderr)
        return NO_RESULT
    again = _again(arguments, options.seed)
    print(report.text(options, result, again))
    for path, write in ((asked.json, report.as_json), (asked.html, report.as_html)):
        if path is not None:
            path.write_text(write(options, result, again), "utf-8")
    if len(result.rounds) < options.rounds:
        return STOPPED
    return FAULTS if result.figures.faults else 0


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _again(arguments: Sequence[str], seed: int) -> str:
    """Return the command that repeats a call with its seed."""
    seeded = list(arguments)
    if not any(each.startswith("--seed") for each in seeded):
        seeded += ["--seed", str(seed)]
    return shlex.join(["penstock-conformance", "chaos", *seeded])
