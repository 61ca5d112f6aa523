"""`python -m bench [PIECE[.WORKLOAD]…]`: measure, and print a table. `--help` lists the options."""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import shlex
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from bench import machine
from bench.pieces import PIECES, by_default
from bench.published import ordered, publish, write_plots
from bench.results import Results, load, markdown, merged
from bench.session import Options, Session
from penstock.bus import sealing
from support.drive.repository import ROOT
from support.real.nats import write_passwords

ROUNDS, LONG_ROUNDS = 3, 7
OUT = ROOT / ".penstock/bench"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description=__doc__)
    parser.add_argument("pieces", nargs="*", help=f"of {', '.join(PIECES)}; or e.g. edge.w3")
    parser.add_argument("--rounds", type=int, help=f"of each workload ({ROUNDS})")
    parser.add_argument("--long", action="store_true", help="all sizes, more rounds")
    parser.add_argument("--systems", nargs="+", default=[], help="measure these only")
    parser.add_argument(
        "--code",
        nargs="+",
        default=[],
        metavar="NAME=PYTHON",
        help="another version of Penstock beside this one, e.g. before=../before/.venv/bin/python",
    )
    parser.add_argument(
        "--sealed",
        action="store_true",
        help="this version beside itself with sealed content, as the systems `clear` and `sealed`",
    )
    parser.add_argument(
        "--show",
        type=Path,
        nargs="+",
        metavar="RESULTS",
        help="measure nothing: show the table of these results together",
    )
    parser.add_argument(
        "--publish",
        action="store_true",
        help="with --show: these are the figures of the documents; `make docs` then shows them",
    )
    parser.add_argument("--out", type=Path, help="the file of the results")
    return parser.parse_args()


def _asked(names: Sequence[str], long: bool) -> dict[str, frozenset[str]]:
    """Return each requested piece with its requested workloads.

    An empty set means all workloads of the piece.
    """
    found: dict[str, set[str]] = {}
    for name in names or by_default(long):
        piece, _, workload = name.partition(".")
        if piece not in PIECES:
            raise SystemExit(f"no piece {piece!r}: there are {', '.join(PIECES)}")
        found.setdefault(piece, set()).update({workload} - {""})
    return {piece: frozenset(workloads) for piece, workloads in found.items()}


async def measure(arguments: argparse.Namespace, results: Results, folder: Path) -> None:
    rounds = arguments.rounds or int(os.environ.get("ROUNDS") or 0)
    codes = dict(code.split("=", 1) for code in arguments.code)
    if arguments.sealed:
        codes |= _clear_and_sealed(folder)
    for name, workloads in _asked(arguments.pieces, arguments.long).items():
        print(f"{name}:", flush=True)
        options = Options(
            rounds=rounds or (LONG_ROUNDS if arguments.long else ROUNDS),
            long=arguments.long,
            systems=frozenset(arguments.systems),
            codes=codes,
            workloads=workloads,
        )
        try:
            await PIECES[name].run(Session(options, results, folder / name))
        except Exception as error:  # the other pieces are still measured
            traceback.print_exc()
            results.skipped[name] = f"it failed: {error!r}"


def _clear_and_sealed(folder: Path) -> dict[str, str]:
    """Return two interpreters that differ in the content key of the processes that they start."""
    found = {}
    for name, key in (("clear", ""), ("sealed", "the-key-that-seals-what-the-benchmark-stores")):
        file = found[name] = folder / name
        file.write_text(
            f'#!/bin/sh\n{sealing.SETTING}={key} exec {shlex.quote(sys.executable)} "$@"\n'
        )
        file.chmod(0o755)
    return {name: str(file) for name, file in found.items()}


def _ended(*_: object) -> NoReturn:
    raise SystemExit("ended by SIGTERM")


def _show(results: Results, plots: Path) -> None:
    leads = {name: (piece.lead, piece.compared) for name, piece in PIECES.items()}
    print(f"\n{markdown(results, leads)}")
    for file in write_plots(results, plots):
        print(f"plot: {file}")


def main() -> None:
    arguments = _arguments()
    if arguments.show:
        found = ordered(merged([load(path) for path in arguments.show]))
        OUT.mkdir(parents=True, exist_ok=True)
        _show(found, OUT)
        if arguments.publish:
            for file in publish(found, ROOT / "docs"):
                print(f"published: {file}")
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
    os.environ.pop("PYTHONPATH", None)  # the measured processes must import their own modules only
    signal.signal(signal.SIGTERM, _ended)  # so that SIGTERM keeps the figures measured so far
    OUT.mkdir(parents=True, exist_ok=True)
    out = arguments.out or OUT / time.strftime("%Y%m%d-%H%M%S.json")
    results = Results(machine.described())
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
            folder = Path(name)
            os.environ["PENSTOCK_NATS_PASSWORDS"] = str(write_passwords(folder / "credentials"))
            asyncio.run(measure(arguments, results, folder))
    finally:
        out.write_text(results.dump())
        _show(results, OUT)
        print(f"results: {out}")
    if failed := [name for name, why in results.skipped.items() if "failed" in why]:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
