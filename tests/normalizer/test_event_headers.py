"""Event headers that are encoded in parts equal headers that are encoded one by one."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.bus import messages
from penstock.bus.connection.nats_client import Connection
from penstock.dialects.decoders import DECODERS
from penstock_normalizer.fold.envelope import CanonicalEvent
from penstock_normalizer.fold.run_fold import RunFold
from penstock_normalizer.runs.run_output import EventHeaders
from support.fakes.raw import RUN_ID, Frames, agno

PARENT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


def folded(**facts: Any) -> tuple[RunFold, list[CanonicalEvent]]:
    frames, fold = Frames(**facts), RunFold(RUN_ID, DECODERS)
    body = agno("RunStarted") + agno("RunContent", content="one")
    return fold, fold.feed(frames.open()) + fold.feed(frames.bytes(body))


def parsed(lines: bytes) -> dict[str, str]:
    assert lines.endswith(b"\r\n")
    return Connection._parse_header_lines(lines)


def expected(event: CanonicalEvent, source: str, raw: int, **more: str) -> dict[str, str]:
    return {
        messages.SEQUENCE: str(event.sequence),
        messages.RAW_POSITION: str(raw),
        messages.RAW_FIRST: "1",
        "ce-specversion": "1.0",
        "ce-id": f"{RUN_ID}.{event.sequence}",
        "ce-source": source,
        "ce-type": event.type,
        "ce-time": event.timestamp,
        "ce-datacontenttype": "application/json",
        **more,
    }


def test_the_headers_of_each_event_of_a_run_are_complete() -> None:
    fold, events = folded(traceparent=PARENT)
    headers = EventHeaders(RUN_ID)
    first = parsed(headers.lines(fold, events[0], 1, 0))
    assert first == expected(events[0], "/penstock/assistant", 1, traceparent=PARENT)
    for event in events[1:]:
        more = {messages.FIRST: "17", "traceparent": PARENT}
        lines = headers.lines(fold, event, 2, 17)
        assert parsed(lines) == expected(event, "/penstock/assistant", 2, **more)


def test_the_headers_follow_a_fold_that_was_rebuilt() -> None:
    headers = EventHeaders(RUN_ID)
    fold, events = folded()
    headers.lines(fold, events[0], 1, 0)
    rebuilt, _ = folded(agent="other")
    assert parsed(headers.lines(rebuilt, events[0], 1, 0))["ce-source"] == "/penstock/other"
    rebuilt.raw_first = 9
    assert parsed(headers.lines(rebuilt, events[0], 1, 0))[messages.RAW_FIRST] == "9"


@pytest.mark.parametrize("agent", ["a\r\nNats-Expected-Last-Sequence: 0", " größer "])
def test_the_name_of_an_agent_adds_no_header(agent: str) -> None:
    fold, events = folded(agent=agent)
    source = "/penstock/" + agent.replace("\r\n", "  ").rstrip()
    assert parsed(EventHeaders(RUN_ID).lines(fold, events[0], 1, 0)) == expected(
        events[0], source, 1
    )
