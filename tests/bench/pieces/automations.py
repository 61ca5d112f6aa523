"""Measure the automations service: events that match nothing, deliveries, and the added latency.

The events are written to EVENTS as the normalizer writes them. The receiver is in this process and
answers 200 at once, so the CPU is that of the service alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson
import uuid_utils

from bench.peers.penstock import broker, services
from bench.session import Session
from penstock.bus import Bus, BusSettings, Message, messages, streams, subjects
from penstock.bus.records.runs import RunRecord
from penstock_automations.rules.records import Owner
from penstock_automations.rules.store import RuleStore
from support.drive.automations import rule
from support.drive.waiting import eventually
from support.real.cpu import cpu_s
from support.real.processes import pid_of

NAME: Final = "automations"
LEAD: Final = "us_per_event"
COMPARED: Final = ()
PLOT: Final[dict[str, str]] = {}
TABLE: Final = {
    "us_per_event": "µs per event",
    "events_per_s": "events/s",
    "p50_ms": "p50, ms",
    "p99_ms": "p99, ms",
    "nats_us": "nats-server, µs",
}
TYPE: Final = "llm.tool_call"
OK: Final = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"


@dataclass(frozen=True, slots=True)
class Workload:
    """`rate`: events per second; None: all events are stored at once."""

    about: str
    rules: int = 1
    matches: bool = True
    order: Literal["none", "run"] = "none"
    runs: int = 100
    events: int = 2000
    rate: float | None = None
    concurrency: int = 32


WORKLOADS: Final = {
    "nothing-1": Workload("1 rule, whose condition does not hold", 1, False, events=10_000),
    "nothing-10": Workload("10 rules, whose conditions do not hold", 10, False, events=10_000),
    "nothing-100": Workload("100 rules, whose conditions do not hold", 100, False, events=4000),
    "delivery": Workload("each event is delivered, 100 runs"),
    "delivery-4": Workload("the same, 4 requests at once", concurrency=4),
    "ordered": Workload("the same, in the order of each run", order="run"),
    "ordered-one": Workload("the same, 1 run", order="run", runs=1, events=500),
    "latency": Workload("the same without an order, 50 events/s", rate=50, events=500),
    "latency-ordered": Workload("in order, 50 events/s", order="run", rate=50, events=500),
}
ABOUT: Final = {name: each.about for name, each in WORKLOADS.items()}


@dataclass
class Receiver:
    """Answers 200 to each request. `late_ms`: from each event's publication to its request."""

    port: int = 0
    late_ms: list[float] = field(default_factory=list)

    def request(self, body: bytes) -> None:
        """Note a request."""
        sent_ns = orjson.loads(body)["data"]["data"]["args"]["t"]
        self.late_ms.append((time.time_ns() - sent_ns) / 1e6)


class _Connection(asyncio.Protocol):
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._seen = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._seen += data
        head, found, body = self._seen.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(body) < length:
            return
        self._receiver.request(body)
        assert self._transport is not None
        self._transport.write(OK)
        self._transport.close()


@asynccontextmanager
async def _receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(made), "127.0.0.1", 0, backlog=1000)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


class Load:
    """Runs with a record, and their events."""

    def __init__(self, bus: Bus, runs: int) -> None:
        self._bus = bus
        self._runs = [str(uuid_utils.uuid7()) for _ in range(runs)]
        self._numbers = dict.fromkeys(self._runs, 0)

    async def register(self) -> None:
        """Store the records of the runs."""
        now = messages.now()
        bucket = self._bus.bucket("runs")
        for run_id in self._runs:
            record = RunRecord(
                run_id=run_id,
                agent="assistant",
                session_id="s1",
                user_id="alice",
                created_at=now,
                updated_at=now,
            )
            await bucket.put(run_id, record.dump())

    async def publish(self, workload: Workload) -> None:
        """Store the events; the runs take turns."""
        if workload.rate is None:
            for begin in range(0, workload.events, 500):
                numbers = range(begin, min(begin + 500, workload.events))
                await asyncio.gather(*map(self._event, numbers))
            return
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for number in range(workload.events):
            await asyncio.sleep(max(begun + number / workload.rate - loop.time(), 0))
            await self._event(number)

    async def _event(self, number: int) -> None:
        run_id = self._runs[number % len(self._runs)]
        self._numbers[run_id] += 1
        sequence = self._numbers[run_id]
        args = {"path": "/srv/data/report.txt", "pad": "x" * 200, "t": time.time_ns()}
        body = {
            "run_id": run_id,
            "timestamp": messages.now(),
            "sequence": sequence,
            "source": {"agent_id": "assistant", "agent_type": "agent"},
            "event": {"category": "llm", "action": "tool_call"},
            "data": {"tool": "delete_file", "tool_call_id": f"t{number}", "args": args},
            "session_id": "s1",
            "leg": 1,
        }
        headers = {messages.SEQUENCE: str(sequence), messages.RAW_POSITION: "1"}
        message = Message(subjects.event(TYPE, run_id), orjson.dumps(body), headers)
        await self._bus.publisher.publish(message)


async def _left(bus: Bus) -> int:
    """Return how many events and jobs are not done."""
    names = [each["name"] for each in await _consumers(bus, streams.EVENTS)]
    events = [await bus.api(f"CONSUMER.INFO.{streams.EVENTS}.{name}") for name in names]
    left = sum(each["num_pending"] + each["num_ack_pending"] for each in events)
    for stream in (streams.DELIVERIES, streams.SCHEDULES):
        left += (await bus.api(f"STREAM.INFO.{stream}"))["state"]["messages"]
    return int(left)


async def _consumers(bus: Bus, stream: str) -> Sequence[dict[str, Any]]:
    answer = await bus.api(f"CONSUMER.LIST.{stream}", {"offset": 0})
    found = answer["consumers"]
    return [each for each in found if each["name"].startswith("automations")]


async def run(session: Session) -> None:
    """Measure the selected workloads."""
    for _ in range(session.options.rounds):
        for name, workload in WORKLOADS.items():
            for system, python in session.codes().items() if session.wants(name) else ():
                folder = session.new_folder(system)
                async with broker(folder) as nats, _receiver() as receiver:
                    bus = await Bus.connect(BusSettings(url=nats.url))
                    await _store_rules(bus, workload, f"http://127.0.0.1:{receiver.port}/")
                    load = Load(bus, workload.runs)
                    await load.register()
                    async with services(
                        nats, folder, ["automations"], python, webhook_allow_hosts="127.0.0.1"
                    ) as penstock:
                        pid = pid_of(penstock.of("automations")[0].process)
                        pids = (pid, nats.pid)
                        figures = await _measured(bus, load, workload, receiver, pids)
                    await bus.close()
                session.add(NAME, name, system, **figures)


async def _store_rules(bus: Bus, workload: Workload, url: str) -> None:
    store = RuleStore(bus)
    tool = "delete_file" if workload.matches else "other"
    for number in range(workload.rules):
        where = f'event.data.tool == "{tool}" && event.data.args.path != "/{number}"'
        webhook = {"concurrency": workload.concurrency}
        made = rule(f"r{number}", url, TYPE, where=where, order=workload.order, webhook=webhook)
        await store.apply(made, Owner(user_id="operator"), all_users=True)


async def _measured(
    bus: Bus, load: Load, workload: Workload, receiver: Receiver, pids: tuple[int, int]
) -> dict[str, float]:
    pid, nats_pid = pids
    before, nats_before, begun = cpu_s(pid), cpu_s(nats_pid), time.monotonic()
    await load.publish(workload)

    async def done() -> bool:
        return await _left(bus) == 0

    await eventually(done, 300, "all events and jobs are done")
    wall_s, spent_s = time.monotonic() - begun, cpu_s(pid) - before
    expected = workload.events * workload.rules if workload.matches else 0
    assert len(receiver.late_ms) == expected, f"{len(receiver.late_ms)} requests, not {expected}"
    figures = {
        "us_per_event": spent_s * 1e6 / workload.events,
        "events_per_s": workload.events / wall_s,
        "nats_us": (cpu_s(nats_pid) - nats_before) * 1e6 / workload.events,
    }
    if workload.rate is not None:
        late_ms = sorted(receiver.late_ms)
        figures["p50_ms"] = late_ms[len(late_ms) // 2]
        figures["p99_ms"] = late_ms[int(len(late_ms) * 0.99)]
    return figures
