"""The cost of a live message from the parser to its follower, in function calls.

The counts are those of Python 3.11 and do not depend on the machine. A count that grows needs a
reason.
"""

from __future__ import annotations

import asyncio
import sys
from types import FrameType, SimpleNamespace
from typing import Any, cast

from penstock.bus import Bus, Stored
from penstock.bus.connection.incoming import Listener
from penstock.bus.connection.nats_client import Connection
from penstock.bus.connection.protocol import Parser
from penstock.bus.read.follow import Follow, events

RUN_ID = "0199aaaa-0000-7000-8000-000000000001"
COUNT = 100
HEADERS = (
    "Penstock-Raw: 7\r\nPenstock-Raw-First: 1\r\nPenstock-First: 1\r\nce-specversion: 1.0\r\n"
    "ce-source: /penstock/assistant\r\nce-type: llm.stream\r\nce-time: 2026-11-22T10:00:00Z\r\n"
    "ce-datacontenttype: application/json\r\nce-id: {run}.{number}\r\n"
    "Penstock-Sequence: {number}\r\nNats-Stream: EVENTS\r\nNats-Subject: llm.stream.{run}\r\n"
    "Nats-Sequence: {number}\r\nNats-Time-Stamp: 2026-11-22T10:00:00Z\r\nNats-Last-Sequence: 0\r\n"
)


def message(number: int) -> bytes:
    """Return a live event as the server sends it."""
    block = f"NATS/1.0\r\n{HEADERS.format(run=RUN_ID, number=number)}\r\n".encode()
    body = b"x" * 450
    head = f"HMSG live.llm.stream.{RUN_ID} 1 {len(block)} {len(block) + len(body)}\r\n"
    return head.encode() + block + body + b"\r\n"


async def test_a_live_message_is_at_most_33_calls() -> None:
    delivered: list[Stored] = []
    content = SimpleNamespace(refuses_clear=False)
    bus = cast(Bus, SimpleNamespace(jetstream=SimpleNamespace(content=content)))
    follow = Follow(bus, events(RUN_ID), 1, delivered.extend)
    follow._loop = asyncio.get_running_loop()
    follow._accept([Stored(f"llm.stream.{RUN_ID}", 1, {"Penstock-Sequence": "1"}, b"")], 1)
    connection = Connection()
    listener = Listener(1, "live.>", "", follow._on_live, lambda number: None)
    cast(dict[int, Any], connection._subs)[1] = listener
    parser = Parser(connection._on_message, connection._on_line)
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    parser.feed(b"".join(message(number) for number in range(2, COUNT + 2)))
    sys.setprofile(count)
    try:
        parser.parse(until=float("inf"))
    finally:
        sys.setprofile(None)
    follow._arm()
    await follow.stop()
    assert [each.sequence for each in delivered] == list(range(1, COUNT + 2))
    assert calls / COUNT <= 33
