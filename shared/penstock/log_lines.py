"""Writes the lines of the log, as text for people or as JSON objects for machines."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

from penstock import log_fields

# Maps control characters and Unicode's line separators to escapes. A tab is harmless and is not
# escaped.
_ESCAPES: Final = {
    code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029)
} | {9: "\t"}
_GREEN, _YELLOW, _RED = 32, 33, 31
_COLOURS: Final = {"warning": _YELLOW, "error": _RED, "critical": _RED}


class TextFormatter(logging.Formatter):
    """Writes one line for each entry; only the lines of a traceback follow it, indented.

    Control characters are escaped. Otherwise a client could add lines or colours to the log with a
    path that contains `%0A`. The text of an exception may repeat what a client or an agent server
    wrote, too. If such a text began a line at the margin, this line could pass for an entry.
    """

    def __init__(self, *, colours: bool = False) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        name = record.levelname.lower()
        level = f"{name:<9}"
        if self._colours:
            level = f"\x1b[{_COLOURS.get(name, _GREEN)}m{level}\x1b[0m"
        text = record.getMessage().translate(_ESCAPES)
        line = f"{_time(record)} [{level}] {text} [{record.name}]"
        run_id = log_fields.fields_of(record).get("run_id")
        if run_id is not None and run_id not in text:
            line = f"{line} run_id={run_id}"
        below = "\n".join(_tracebacks(self, record).values())
        return "\n  ".join(
            [line, *(each.translate(_ESCAPES) for each in below.split("\n") if each)]
        )


class JsonFormatter(logging.Formatter):
    """Writes each entry as a JSON object, with fields for the run, its trace and more (see
    `log_fields`)."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "event": record.getMessage(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "timestamp": _time(record),
        }
        return json.dumps(line | log_fields.fields_of(record) | _tracebacks(self, record))


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _tracebacks(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, str]:
    found = {"stack_info": record.stack_info} if record.stack_info else {}
    if record.exc_info and record.exc_info[0] is not None:
        found["exception"] = formatter.formatException(record.exc_info)
    return found
