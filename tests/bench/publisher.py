"""Publish the events of many runs at a steady rate, in a process of its own.

`python publisher.py JSON`, where JSON has the fields of `Plan`. It runs on the interpreter of the
measured code, and imports nothing of the tests. Its first line on standard output lists the run
ids. After that, each line of its standard input is a number of events to publish for each run; `0`
publishes until the input ends. The answer to each line is `{"published": n, "behind_ms": m}`.

An event's text ends in `@n=<number> @t=<ns since the epoch>`. Each event is one write when it is
due, since runs are independent of each other. NATS does not acknowledge these events: at 10,000
events/s the acknowledgements would cost more than the publishing.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson
import uuid_utils

from penstock.bus import Bus, BusSettings, Message, messages, subjects
from penstock.bus.records.runs import RunRecord

TYPE: Final = "llm.stream"
WORDS: Final = "a piece of text that is as long as most pieces of an answer are, and some more"
AT_ONCE: Final = 200
SPREAD: Final = 0.618034  # the part of a run's interval by which the next run begins later
# a read of answers follows this many requests, since each read is a system call
READ_EVERY: Final = 8
PATIENCE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to publish, and where."""

    wire: Literal["nats", "nchan", "centrifugo"]
    url: str  # nats://127.0.0.1:4222, or 127.0.0.1:80 for HTTP
    runs: int
    rate: float  # events a second of each run; 0: as fast as the server takes them
    user_id: str = "anonymous"


def event(run_id: str, number: int) -> bytes:
    """Return a canonical event of about 450 bytes in the normalizer's form."""
    return (
        b'{"run_id":"%b","timestamp":"%b","sequence":%d,"source":{"agent_id":"assistant",'
        b'"agent_type":"agent","agent_name":"Assistant","team_name":null},"event":{"category":'
        b'"llm","action":"stream"},"data":{"content":"%b @n=%d @t=%d","message_id":"m1"},'
        b'"session_id":"s1","leg":1}'
    ) % (
        run_id.encode(),
        messages.now().encode(),
        number,
        WORDS.encode(),
        number,
        time.time_ns(),
    )


class NatsWire:
    """Publish to JetStream, from which Penstock's edge or a consumer for each client reads."""

    def __init__(self, plan: Plan) -> None:
        host, port = plan.url.removeprefix("nats://").split(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(b'CONNECT {"verbose":false,"headers":true,"name":"bench"}\r\nPING\r\n')
        self._until_pong()
        self._plan = plan
        self._heads: dict[str, tuple[bytes, bytes]] = {}
        self._bus: Bus | None = None  # seals, if this process has keys

    async def begin(self, runs: list[str]) -> None:
        """Store the records and the first events of the runs."""
        keys = os.environ.get("PENSTOCK_CONTENT_KEYS")
        # `before` may be older than content keys
        more: dict[str, Any] = {"content_keys": (keys,)} if keys else {}
        bus = await Bus.connect(BusSettings(url=self._plan.url, **more))
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(run_id: str) -> None:
            async with turns:
                await self._begin(bus, run_id)

        await asyncio.gather(*map(one, runs))
        if keys:
            self._bus = bus
        else:
            await bus.close()

    async def _begin(self, bus: Bus, run_id: str) -> None:
        now = messages.now()
        record = RunRecord(
            run_id=run_id,
            agent="assistant",
            session_id="s1",
            user_id=self._plan.user_id,
            created_at=now,
            updated_at=now,
        )
        await bus.bucket("runs").put(run_id, record.dump())
        body = {
            "run_id": run_id,
            "timestamp": now,
            "sequence": 1,
            "source": None,
            "event": {"category": "lifecycle", "action": "started"},
            "data": {"agent": "assistant", "user_id": self._plan.user_id},
            "session_id": "s1",
            "leg": 1,
        }
        subject = subjects.event("lifecycle.started", run_id)
        first = await bus.publisher.publish(
            Message(subject, orjson.dumps(body), {messages.SEQUENCE: "1"})
        )
        # The edge must read all headers that the normalizer writes.
        fixed = {
            messages.RAW_POSITION: "1",
            messages.RAW_FIRST: "1",
            messages.FIRST: f"{first}",
            "ce-specversion": "1.0",
            "ce-source": "/penstock/assistant",
            "ce-type": TYPE,
            "ce-time": now,
            "ce-datacontenttype": "application/json",
        }
        rest = "".join(f"{name}: {value}\r\n" for name, value in fixed.items())
        head = f"NATS/1.0\r\n{rest}ce-id: {run_id}."
        self._heads[run_id] = (subjects.event(TYPE, run_id).encode(), head.encode())

    def send(self, run_id: str, number: int) -> None:
        subject, head = self._heads[run_id]
        body = event(run_id, number)
        head = b"%b%d\r\n%b: %d\r\n\r\n" % (head, number, messages.SEQUENCE.encode(), number)
        if self._bus is not None:
            clear = Message(subject.decode(), body, head)
            sealed = self._bus.jetstream.content.seal_now(clear)
            assert sealed is not None, "the key of the run is no longer kept"
            body = sealed.payload
        self._socket.sendall(
            b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, len(head), len(head) + len(body), head, body)
        )

    def flush(self) -> None:
        """Return when the server has read everything."""
        self._socket.sendall(b"PING\r\n")
        self._until_pong()

    def _until_pong(self) -> None:
        answer = b""
        while b"PONG\r\n" not in answer:
            more = self._socket.recv(65536)
            assert more, "nats-server closed the connection"
            assert b"-ERR" not in more, more
            answer = answer[-10:] + more


class HttpWire:
    """Publish each event as one POST, pipelined over a few open connections.

    All events of a run use the same connection.
    """

    CONNECTIONS = 8

    def __init__(self, plan: Plan) -> None:
        host, port = plan.url.split(":")
        self._request = REQUESTS[plan.wire]
        self._sockets = [
            socket.create_connection((host, int(port))) for _ in range(self.CONNECTIONS)
        ]
        for each in self._sockets:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._of: dict[str, socket.socket] = {}
        self._sent = self._answered = 0

    async def begin(self, runs: list[str]) -> None:
        """Send the first event of each run."""
        for number, run_id in enumerate(runs):
            self._of[run_id] = self._sockets[number % self.CONNECTIONS]
            self.send(run_id, 1)
        self.flush()

    def send(self, run_id: str, number: int) -> None:
        self._of[run_id].sendall(self._request(run_id, number))
        self._sent += 1
        if self._sent % READ_EVERY == 0:
            self._read(0)

    def flush(self) -> None:
        """Return when each request has its answer, or after PATIENCE_S."""
        deadline = time.monotonic() + PATIENCE_S
        while self._answered < self._sent and time.monotonic() < deadline:
            self._read(0.1)

    def _read(self, timeout_s: float) -> None:
        for each in select.select(self._sockets, [], [], timeout_s)[0]:
            text = each.recv(1 << 20)
            assert text, "the server closed the connection"
            # An answer's head is far smaller than a segment, so it is not split between two reads.
            good = text.count(b"HTTP/1.1 20")
            assert good == text.count(b"HTTP/1.1 "), text
            assert b'"error"' not in text, text
            self._answered += good


def _to_nchan(run_id: str, number: int) -> bytes:
    body = event(run_id, number)
    return b"POST /pub/%b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (
        run_id.encode(),
        len(body),
        body,
    )


def _to_centrifugo(run_id: str, number: int) -> bytes:
    body = b'{"channel":"%b","data":%b}' % (run_id.encode(), event(run_id, number))
    return (
        b"POST /api/publish HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b"
    ) % (len(body), body)


# by wire: the request that publishes an event
REQUESTS: Final = {"nchan": _to_nchan, "centrifugo": _to_centrifugo}


def publish(wire: NatsWire | HttpWire, plan: Plan, runs: list[str], at: int, count: int) -> int:
    """Send `count` events of each run, or events until standard input ends if `count` is 0.

    Returns the next number.
    """
    begun, sent, behind_s = time.monotonic(), 0, 0.0
    distance_s = 1 / plan.rate if plan.rate else 0.0
    phases = sorted((number * SPREAD % 1, run_id) for number, run_id in enumerate(runs))
    number = at
    while not count or number < at + count:
        if not count and select.select([sys.stdin], [], [], 0)[0]:
            break
        for phase, run_id in phases:
            due = begun + (number - at + phase) * distance_s
            late_s = time.monotonic() - due
            if late_s < 0:
                time.sleep(-late_s)
            elif distance_s:
                behind_s = max(behind_s, late_s)
            wire.send(run_id, number)
            sent += 1
        number += 1
    wire.flush()
    print(json.dumps({"published": sent, "behind_ms": behind_s * 1000}), flush=True)
    return number


async def main(told: dict[str, Any]) -> None:
    plan = Plan(**told)
    wire = NatsWire(plan) if plan.wire == "nats" else HttpWire(plan)
    runs = [str(uuid_utils.uuid7()) for _ in range(plan.runs)]
    await wire.begin(runs)
    print(json.dumps({"runs": runs}), flush=True)
    number = 2
    while line := sys.stdin.readline():
        number = publish(wire, plan, runs, number, int(line))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
