"""Log lines about a run have its id and its trace as fields, and no content or secret."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from penstock import log_fields
from penstock.log_fields import approval_of, bind, run_of, traced, within_run
from penstock.telemetry import LogFormat, configure_logging

RUN = "01a1f8ce-fd21-7646-99ac-38e357e37ec6"
OTHER = "01a1f8ce-fd21-7646-99ac-38e357e37ec7"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SECRET = "the-launch-code-is-0000"

log = logging.getLogger("penstock.tried")
Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def written() -> Iterator[Callable[[LogFormat], io.StringIO]]:
    """Yield a function that configures logging in a format and returns what is written."""
    root = logging.getLogger()
    before = root.handlers[:]
    names = ("", "httpx", "httpcore", "nats", "uvicorn")  # the loggers whose levels are configured
    levels = {name: logging.getLogger(name).level for name in names}

    def configured(format: LogFormat) -> io.StringIO:
        output = io.StringIO()
        configure_logging("info", format)
        (handler,) = root.handlers
        assert isinstance(handler, logging.StreamHandler)
        handler.setStream(output)
        return output

    yield configured
    root.handlers[:] = before
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    log_fields._traces.clear()
    log_fields._runs.clear()


@pytest.fixture
def lines(written: Callable[[LogFormat], io.StringIO]) -> Lines:
    output = written("json")
    return lambda: [json.loads(line) for line in output.getvalue().splitlines()]


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_line_has_no_credential(
    written: Callable[[LogFormat], io.StringIO], format: LogFormat
) -> None:
    output = written(format)
    log.info("Authorization: Bearer %s", "an-opaque-token-of-a-user")
    assert "Authorization: Bearer [redacted]" in output.getvalue()


def test_the_words_of_a_format_become_fields(lines: Lines) -> None:
    log.info("run %s leg %d: %d%% of agent %s, rule %s", RUN, 2, 40, "vana", "tell")
    (line,) = lines()
    assert line["event"] == f"run {RUN} leg 2: 40% of agent vana, rule tell"
    fields = {"run_id": RUN, "leg": 2, "agent": "vana", "rule": "tell"}
    assert fields.items() <= line.items()
    assert {"level", "logger", "timestamp"} < line.keys()
    assert "positional_args" not in line


def test_only_a_run_id_is_taken_for_one(lines: Lines) -> None:
    log.info("the next run %s", "of the test")
    log.info("a line without values, 100% as it is")
    log.info("run %(id)s", {"id": RUN})
    assert not [line for line in lines() if "run_id" in line]


def test_a_line_about_a_subject_has_its_run(lines: Lines) -> None:
    for subject in (f"llm.stream.{RUN}", f"*.*.{RUN}", f"rawp.3.{RUN}.agent", f"/v1/runs/{RUN}/x"):
        log.warning("%s cannot be read", subject, extra=run_of(subject))
    log.warning("%s waits", f"tell.{RUN}-7", extra=run_of(f"tell.{RUN}-7"))
    log.warning("none", extra=run_of("audit.anchor"))
    assert [line.get("run_id") for line in lines()] == [RUN] * 5 + [None]


def test_the_trace_of_a_run_is_named_where_it_is_known(lines: Lines) -> None:
    log.info("run %s begins", RUN)
    traced(RUN, f"00-{TRACE}-00f067aa0ba902b7-01")
    traced(OTHER, None)
    log.info("run %s goes on", RUN)
    log.info("run %s goes on", OTHER)
    assert [line.get("trace_id") for line in lines()] == [None, TRACE, None]


def test_an_approval_names_its_run(lines: Lines) -> None:
    approval_of(RUN, "a1")
    traced(RUN, f"00-{TRACE}-00f067aa0ba902b7-01")
    log.warning("approval %s stays in the outbox", "a1")
    log.warning("approval %s stays in the outbox", "a2")
    known, unknown = lines()
    assert (known["run_id"], known["trace_id"], known["approval_id"]) == (RUN, TRACE, "a1")
    assert "run_id" not in unknown


async def test_a_line_has_the_run_of_its_task_unless_it_names_another(lines: Lines) -> None:
    async def work(run_id: str) -> None:
        bind(run_id)
        await asyncio.sleep(0)
        log.info("the bus is away")

    await asyncio.gather(work(RUN), work("a-trigger"), work(OTHER))
    with within_run(RUN):
        log.info("run %s: settled", OTHER)
        log.info("tried again")
    log.info("done")
    assert [line.get("run_id") for line in lines()] == [RUN, None, OTHER, OTHER, RUN, None]


def test_the_memory_of_traces_and_approvals_is_limited(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_fields, "MAX_KEPT", 2)
    for digit in "123":
        traced(RUN[:-1] + digit, f"00-{TRACE}-00f067aa0ba902b7-01")
        approval_of(RUN, digit)
    log.info("run %s", RUN[:-1] + "1")
    log.info("run %s", RUN[:-1] + "3")
    log.info("approval %s", "1")
    assert ["trace_id" in line for line in lines()] == [False, True, False]


def test_people_read_the_run_once(written: Callable[[LogFormat], io.StringIO]) -> None:
    output = written("text")
    traced(RUN, f"00-{TRACE}-00f067aa0ba902b7-01")
    with within_run(RUN):
        log.info("run %s is named", RUN)
        log.info("the bus is away")
    named, other = output.getvalue().splitlines()
    assert named.count(RUN) == other.count(RUN) == 1


class Record(BaseModel):
    status: int


@pytest.mark.parametrize("format", ["json", "text"])
def test_errors_and_tracebacks_show_no_values(
    written: Callable[[LogFormat], io.StringIO], format: LogFormat
) -> None:
    """Local variables, the values that pydantic refuses, and credentials are left out."""
    output = written(format)

    def fails(message: str) -> None:
        Record.model_validate({"status": message})

    try:
        fails(SECRET)
    except ValueError as error:
        log.warning("the record cannot be read: %s", error)
        log.exception("run %s: unexpected", RUN)
    shown = output.getvalue()
    assert SECRET not in shown
    assert "Traceback" in shown
    assert shown.count("input_value=[redacted], input_type=str") == 2


def test_the_text_of_an_exception_begins_no_line_of_a_text_log(
    written: Callable[[LogFormat], io.StringIO],
) -> None:
    output = written("text")
    try:
        raise ValueError("no\n2026-11-23T00:00:00Z [error] fake\r\x1b[31m")
    except ValueError:
        log.exception("it failed")
    first, *rest = output.getvalue().rstrip("\n").split("\n")
    assert "it failed" in first
    assert any("fake" in line for line in rest)
    assert all(line.startswith("  ") and line.isprintable() for line in rest), rest


def test_a_text_line_stays_one_line_whatever_a_client_wrote(
    written: Callable[[LogFormat], io.StringIO],
) -> None:
    output = written("text")
    log.warning("%s: the bus does not answer", "/v1/a\nfake\r\x1b[31m\x9b\x85\u2028é\t")
    (line,) = output.getvalue().splitlines()
    assert r"/v1/a\nfake\r\x1b[31m\x9b\x85\u2028é" in line
    assert "\x1b" not in line
