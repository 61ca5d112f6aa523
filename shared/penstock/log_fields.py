"""Adds the field `run_id` to each log line about a run, and `trace_id` if the run's trace is known.

The run of a line is the first that is found of these: the value of `run %s` in the line's format,
`extra=run_of(…)`, and the run that `bind` or `within_run` has set for the task. A process that has
called `traced` for a run knows the run's trace.

This module does no work for events. Log lines are rare, `traced` is called once for each run, and
`bind` is called once for each command, leg, delivery or other message of a work queue.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from logging import LogRecord
from typing import Any, Final

# The greatest number of traces of runs, and of runs of approvals, that a process remembers. All
# these together take about 3 MB. The oldest entries are forgotten.
MAX_KEPT: Final = 10_000

# Maps a word in the format of a line to the field that gets the value after this word.
_FIELDS: Final[Mapping[str, str]] = {
    "run": "run_id",
    "leg": "leg",
    "agent": "agent",
    "approval": "approval_id",
    "rule": "rule",
    "delivery": "delivery_id",
}
_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_RUN_ID: Final = re.compile(_UUID)
_IN_SUBJECT: Final = re.compile(rf"(?:^|[./ ])({_UUID})(?=$|[./ -])")
_CONVERSION: Final = re.compile(r"(?:(\w+) )?%[-#0 +]*\d*(?:\.\d+)?([a-zA-Z%])")

_run: ContextVar[str | None] = ContextVar("run", default=None)
_traces: dict[str, str] = {}  # maps a run's id to its trace id, the oldest first
_runs: dict[str, str] = {}  # maps an approval's id to its run's id, the oldest first


def bind(run_id: str | None) -> None:
    """Set the run for the rest of this task. A text that is no run id sets no run."""
    _run.set(run_id if run_id is not None and _RUN_ID.fullmatch(run_id) else None)


@contextmanager
def within_run(run_id: str) -> Iterator[None]:
    token = _run.set(run_id)
    try:
        yield
    finally:
        _run.reset(token)


def run_of(subject: str) -> dict[str, str]:
    """Return the argument `extra` for a line about a subject, a pattern, a path or a key that
    contains a run id. The result is empty if the text has no run id."""
    found = _IN_SUBJECT.search(subject)
    return {"run_id": found[1]} if found is not None else {}


def traced(run_id: str, traceparent: str | None) -> None:
    """Remember the trace of a run. `traceparent` is the W3C header; None if the trace is
    unknown."""
    if traceparent is not None:
        _keep(_traces, run_id, traceparent[3:35])


def approval_of(run_id: str, approval_id: str) -> None:
    """Remember the run of an approval, for lines that name only the approval."""
    _keep(_runs, approval_id, run_id)


def fields_of(record: LogRecord) -> dict[str, Any]:
    """Return the fields of a log line beside its text, level, logger and time."""
    fields = _named(record.msg, record.args)
    run_id = (
        fields.pop("run_id", None)
        or getattr(record, "run_id", None)
        or _runs.get(fields.get("approval_id", ""))
        or _run.get()
    )
    if run_id is None:
        return fields
    trace_id = _traces.get(run_id)
    return {"run_id": run_id} | ({"trace_id": trace_id} if trace_id is not None else {}) | fields


def _keep(kept: dict[str, str], key: str, value: str) -> None:
    if key not in kept:
        while len(kept) >= MAX_KEPT:
            del kept[next(iter(kept))]
        kept[key] = value


def _named(template: object, values: object) -> dict[str, Any]:
    """Return the fields of a line. The words in the line's format say which of the line's values
    are fields."""
    if not isinstance(template, str) or not isinstance(values, tuple):
        return {}
    found = {field: values[at] for at, field in _places(template) if at < len(values)}
    if not _RUN_ID.fullmatch(str(found.get("run_id"))):
        found.pop("run_id", None)
    return {field: each if isinstance(each, int) else str(each) for field, each in found.items()}


@lru_cache(maxsize=1024)
def _places(template: str) -> tuple[tuple[int, str], ...]:
    """Return the index of each value that is a field, with the field's name."""
    conversions = [found for found in _CONVERSION.finditer(template) if found[2] != "%"]
    return tuple(
        (at, _FIELDS[found[1]]) for at, found in enumerate(conversions) if found[1] in _FIELDS
    )
