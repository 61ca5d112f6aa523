"""Measure what an edge costs for each event that it delivers and each connection that it holds.

W1: one run with many clients. W2: many runs with rare events. W3: many runs with many events. W4:
clients that get no events. W5: clients that read a run from its start.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Final

from bench.load import measure
from bench.peers.served import NotHere, Served
from bench.publisher import Plan
from bench.publishing import Publishing, publishing
from bench.seen import Clients, Seen, Window
from bench.session import Fleet, Session
from support.real.cpu import cpu_s

NAME: Final = "edge"
LEAD: Final = "us_per_event"
COMPARED: Final = ("nchan", "centrifugo", "naive")


PLOT: Final = {"us_per_event": "µs per event", "kib_per_connection": "KiB per connection"}
TABLE: Final = PLOT | {
    "delivery_us": "delivery alone, µs",
    "all_us": "with the broker, µs",
    "p50_ms": "p50, ms",
    "p99_ms": "p99, ms",
}
ABOUT: Final = {
    "w1": "1 run, 1,000 clients, 50 events/s",
    "w1-100": "the same, 100 events/s",
    "w1-200": "the same, 200 events/s",
    "w2": "1,000 runs with a client each, 10 events/s",
    "w2-agui": "the same, dialect agui",
    "w2-vercel": "the same, dialect vercel",
    "w2-a2a": "the same, dialect a2a",
    "w2-openai": "the same, as OpenAI's responses",
    "w3": "100 runs with a client each, 100 events/s",
    "w3-10": "the same, 10 events/s",
    "w3-agui": "the same, 50 events/s, dialect agui",
    "w3-unified": "the same, 50 events/s, dialect unified",
    "w4": "10,000 idle clients of 10 runs",
    "w4-each": "10,000 idle clients with a run each",
    "w5-cold": "1,000 clients replay 1,000 events, edge just started",
    "w5-warm": "the same, replayed before",
    "w5-each": "100 clients, each replays a run of its own of 1,000 events",
}


@dataclass(frozen=True, slots=True)
class Workload:
    """The number of runs, their clients, and the events a second of each run."""

    runs: int
    clients: int
    rate: float
    dialect: str = "canonical"


FOLLOWED: Final = {
    "w1": Workload(1, 1000, 50),
    "w1-100": Workload(1, 1000, 100),
    "w1-200": Workload(1, 1000, 200),
    "w2": Workload(1000, 1000, 10),
    "w2-agui": Workload(1000, 1000, 10, "agui"),
    "w2-vercel": Workload(1000, 1000, 10, "vercel"),
    "w2-a2a": Workload(1000, 1000, 10, "a2a"),
    "w2-openai": Workload(1000, 1000, 10, "openai"),
    "w3": Workload(100, 100, 100),
    "w3-10": Workload(100, 100, 10),
    "w3-agui": Workload(100, 100, 50, "agui"),
    "w3-unified": Workload(100, 100, 50, "unified"),
}
IDLE: Final = {"w4": Workload(10, 10_000, 0), "w4-each": Workload(10_000, 10_000, 0)}
REPLAYED: Final = {
    "w5-cold": Workload(1, 1000, 0),
    "w5-warm": Workload(1, 1000, 0),
    "w5-each": Workload(100, 100, 0),
}
REPLAY: Final = 1000  # the number of events that a replay has
WARMUP_S, TAKING_S = 1.0, 3.0  # as long as those of a `Window`
REPLAY_S: Final = 10.0  # the most time that a replay should take


async def run(session: Session) -> None:
    """Measure the selected workloads."""
    async with Fleet(session) as fleet:
        for turn in range(session.options.rounds):
            for name, workload in FOLLOWED.items():
                if session.wants(name):
                    for system in fleet.names(turn):
                        await _followed(session, fleet, name, workload, system)
    async with Fleet(session) as fleet:
        for turn in range(session.options.rounds):
            for name, workload in {**IDLE, **REPLAYED}.items():
                if session.wants(name):
                    for system in fleet.names(turn):
                        await _fresh(session, fleet, name, workload, system)


def _clients(served: Served, workload: Workload, runs: list[str]) -> Clients:
    paths = [served.path(run_id, workload.dialect) for run_id in runs]
    count = min(workload.clients, served.max_connections)
    return Clients(served.url, paths, count, served.headers)


def _watched(served: Served) -> dict[str, list[int]]:
    return {"edge": list(served.pids), "broker": list(served.broker_pids)}


def _figures(seen: Seen, behind_ms: float = 0.0) -> dict[str, float]:
    found = {
        "us_per_event": seen.us_per_event("edge"),
        "events_per_s": seen.events / seen.window_s,
        "p50_ms": seen.p50_ms,
        "p99_ms": seen.p99_ms,
        "events_per_read": seen.events_per_read,
    }
    if seen.cpu_s["broker"]:
        found["broker_us_per_event"] = seen.us_per_event("broker")
    if behind_ms > 500:
        found["publisher_behind_ms"] = behind_ms
    return found | seen.faults()


async def _followed(
    session: Session, fleet: Fleet, name: str, workload: Workload, system: str
) -> None:
    served = await fleet.get(system)
    if served is None or workload.dialect not in served.dialects:
        return
    rate = min(workload.rate, served.max_events_per_s / workload.clients)
    plan = replace(served.plan, runs=workload.runs, rate=rate)
    async with publishing(plan, served.python) as published:
        folder = session.new_folder("clients")
        clients = _clients(served, workload, published.runs)
        seen = await measure(clients, Window(), _watched(served), folder, published.begin)
        await published.end()
    figures = _figures(seen, published.behind_ms)
    taking_us = 0.0 if served.broker_pids else await _taking_us(served, plan, workload)
    figures["delivery_us"] = figures["us_per_event"] - taking_us
    figures["all_us"] = figures["us_per_event"] + figures.get("broker_us_per_event", 0.0)
    session.add(NAME, name, system, **figures)


async def _taking_us(served: Served, plan: Plan, workload: Workload) -> float:
    """Return what an edge that is its own broker uses to take events that nobody reads, for each
    event that `workload` would deliver."""
    async with publishing(plan, served.python) as published:
        await published.begin()
        await asyncio.sleep(WARMUP_S)
        spent_s = -sum(map(cpu_s, served.pids))
        await asyncio.sleep(TAKING_S)
        spent_s += sum(map(cpu_s, served.pids))
        await published.end()
    return spent_s * 1e6 / (TAKING_S * plan.rate * workload.clients)


async def _fresh(
    session: Session, fleet: Fleet, name: str, workload: Workload, system: str
) -> None:
    """Measure a workload on a new edge, whose memory and rings are in their first state."""
    try:
        async with AsyncExitStack() as stack:
            served = await stack.enter_async_context(fleet.start(system))
            plan = replace(served.plan, runs=workload.runs)
            published = await stack.enter_async_context(publishing(plan, served.python))
            if name in IDLE:
                await _idle(session, name, workload, system, served, published)
            else:
                await _replayed(session, name, workload, system, served, published)
    except NotHere as error:
        session.skip(system, error)


async def _idle(
    session: Session,
    name: str,
    workload: Workload,
    system: str,
    served: Served,
    published: Publishing,
) -> None:
    clients = _clients(served, workload, published.runs)
    folder = session.new_folder("clients")
    seen = await measure(clients, Window(3.0, 2.0), _watched(served), folder)
    grown_kib = seen.rss_kib["edge"] - seen.rss_kib_first["edge"]
    figures = {"kib_per_connection": grown_kib / seen.connected, "connections": seen.connected}
    session.add(NAME, name, system, **figures, **seen.faults())


async def _replayed(
    session: Session,
    name: str,
    workload: Workload,
    system: str,
    served: Served,
    published: Publishing,
) -> None:
    await published.publish(REPLAY - 1)
    paths = [served.replay_path(run_id, workload.dialect) for run_id in published.runs]
    count = int(min(workload.clients, served.max_events_per_s * REPLAY_S / REPLAY))
    clients = Clients(served.url, paths, count, served.headers)
    window = Window(stop_after=REPLAY)
    if name == "w5-warm":
        one = replace(clients, connections=1)
        await measure(one, window, {}, session.new_folder("clients"))
    seen = await measure(clients, window, _watched(served), session.new_folder("clients"))
    figures = {
        "us_per_event": seen.us_per_event("edge"),
        "events_per_s": seen.events / seen.window_s,
    }
    if seen.events < count * REPLAY:
        figures["missing"] = count * REPLAY - seen.events
    session.add(NAME, name, system, **figures, **seen.faults())
