"""Write results to stdout, and messages about the command to stderr."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import termios
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock_cli.terminal.render import Piece, clean, fields, short
from penstock_client import DEFAULT_URL

Record = Mapping[str, Any]
MORE = "there are more than these; show more with --limit"


class Output:
    """The output of a command. With `as_json`, stdout has only JSON, one object per line."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self._console = Console(highlight=False, soft_wrap=True)

    @property
    def is_interactive(self) -> bool:
        return not self.as_json and sys.stdin.isatty() and sys.stdout.isatty()

    def json_line(self, value: Mapping[str, Any]) -> None:
        print(json.dumps(value, ensure_ascii=False), flush=True)

    def pieces(self, pieces: Iterable[Piece]) -> None:
        for text, style in pieces:
            self._console.print(Text(text, style), end="")

    def text(self, line: str) -> None:
        """Write a line to stdout, unchanged."""
        print(line, flush=True)

    def result(self, found: Record, text: str) -> None:
        """Write a text for people, or the record as a JSON line."""
        if self.as_json:
            self.json_line(found)
        else:
            self.text(text)

    def listing(
        self,
        found: Iterable[Record],
        columns: Sequence[str],
        row: Callable[[Record], Sequence[object]],
        *,
        more: bool = False,
    ) -> None:
        """Write records as a table for people, or each as JSON. `more`: there are more than
        these."""
        if more:
            self.notice(MORE)
        if self.as_json:
            for each in found:
                self.json_line(each)
        else:
            self.table(columns, map(row, found))

    def record(self, found: Record, hidden: Collection[str] = ()) -> None:
        """Write a record with one field in each line, or as a JSON line with all its fields."""
        if self.as_json:
            self.json_line(found)
        else:
            self.pieces(fields({k: v for k, v in found.items() if k not in hidden}))

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[object]], whole: str = ""
    ) -> None:
        """Write a table for people. Long cells are cut, except in the column with the name
        `whole`."""
        table = Table(box=None, pad_edge=False)
        for column in columns:
            table.add_column(column, no_wrap=column != whole)
        for row in rows:
            table.add_row(
                *(
                    Text(short(cell, 1000 if column == whole else 60))
                    for column, cell in zip(columns, row, strict=True)
                )
            )
        # A pipe has no width of its own. 200 columns are enough to write ids without cuts.
        Console(highlight=False, width=None if self._console.is_terminal else 200).print(table)

    def notice(self, text: str) -> None:
        print(clean(text), file=sys.stderr, flush=True)

    def ask(self, question: str) -> str | None:
        """Return the person's answer; None at the end of the input. Text that was typed before the
        question is discarded, because it cannot be meant as the answer."""
        if sys.stdin.isatty():
            termios.tcflush(sys.stdin, termios.TCIFLUSH)
        try:
            return self._console.input(Text(question, "bold")).strip()
        except EOFError:
            return None


def command(url: str, *words: str) -> str:
    """Return a command line that the user can enter in this folder, for the Penstock at `url`."""
    called = Path(sys.argv[0])
    found = shutil.which("penstock")
    # A program may be started with any argv[0], also with one that is no file.
    is_ours = called.name == "penstock" and called.is_file()
    here = is_ours and not (found and Path(found).samefile(called))
    program = os.path.relpath(called) if here else "penstock"
    where = () if url == DEFAULT_URL else ("--url", url)
    return shlex.join([program, *words, *where])
