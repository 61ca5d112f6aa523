"""Where commands write: stdout for what was asked, stderr for what there is to say about it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import termios
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock_cli.terminal.api import DEFAULT_URL
from penstock_cli.terminal.render import Piece, short


class Output:
    """With `as_json`, stdout carries one JSON object a line and nothing else."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self._console = Console(highlight=False, soft_wrap=True)

    @property
    def interactive(self) -> bool:
        """True when there is a person to ask."""
        return not self.as_json and sys.stdin.isatty() and sys.stdout.isatty()

    def json_line(self, value: Mapping[str, Any]) -> None:
        """One JSON line."""
        print(json.dumps(value, ensure_ascii=False), flush=True)

    def pieces(self, pieces: Iterable[Piece]) -> None:
        """Styled text, at once."""
        for text, style in pieces:
            self._console.print(Text(text, style), end="")

    def text(self, line: str) -> None:
        """A line, unchanged."""
        print(line, flush=True)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """A table for people; cells are cut to fit."""
        table = Table(box=None, pad_edge=False)
        for column in columns:
            table.add_column(column, no_wrap=True)
        for row in rows:
            table.add_row(*(Text(short(cell, 60)) for cell in row))
        # ids are to be copied whole, also out of a pipe
        Console(highlight=False, width=None if self._console.is_terminal else 200).print(table)

    def notice(self, text: str) -> None:
        """Something to know, on stderr."""
        print(text, file=sys.stderr, flush=True)

    def ask(self, question: str) -> str | None:
        """A person's answer to what is shown now; None at end of input.

        What was typed before the question is thrown away: it cannot be meant as its answer.
        """
        if sys.stdin.isatty():
            termios.tcflush(sys.stdin, termios.TCIFLUSH)
        try:
            return self._console.input(Text(question, "bold")).strip()
        except EOFError:
            return None


def command(url: str, *words: str) -> str:
    """A command line that works from here, for the Penstock at `url`."""
    called = Path(sys.argv[0])
    found = shutil.which("penstock")
    here = called.name == "penstock" and not (found and Path(found).samefile(called))
    program = os.path.relpath(called) if here else "penstock"
    where = () if url == DEFAULT_URL else ("--url", url)
    return shlex.join([program, *words, *where])
