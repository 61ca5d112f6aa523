"""Measure 1,000 clients that join while 10,000 events/s flow; each first reads its run's past.

The latency is that of events that were sent after their client had requested the stream.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from bench.load import measure
from bench.publishing import publishing
from bench.seen import Clients, Window
from bench.session import Fleet, Session

NAME: Final = "joins"
LEAD: Final = "p99_ms"
COMPARED: Final = ("nchan",)
PLOT: Final = {"p99_ms": "p99 of the latency, ms", "us_per_event": "edge, µs per event"}
TABLE: Final = PLOT | {
    "connect_s": "until all are there, s",
    "broker_us_per_event": "nats-server, µs",
}
ABOUT: Final = {"1000": "1,000 clients join 1,000 runs of 10 events/s"}
RUNS: Final = 1000
RATE: Final = 10.0
PAST: Final = 20  # events of each run before the first client joins
# name: new clients a second
WORKLOADS: Final = {"1000": 1000}
WINDOW: Final = Window(duration_s=6.0, fresh=True)


async def run(session: Session) -> None:
    """Measure the selected workloads."""
    async with Fleet(session) as fleet:
        for turn in range(session.options.rounds):
            for name, per_second in WORKLOADS.items():
                for system in fleet.names(turn) if session.wants(name) else ():
                    served = await fleet.get(system)
                    if served is None or served.max_events_per_s < RUNS * RATE:
                        continue
                    plan = replace(served.plan, runs=RUNS, rate=RATE)
                    async with publishing(plan, served.python) as published:
                        await published.publish(PAST)
                        await published.begin()
                        paths = [served.replay_path(run, "canonical") for run in published.runs]
                        clients = Clients(
                            served.url, paths, RUNS, served.headers, per_second=per_second
                        )
                        watched = {"edge": served.pids, "broker": served.broker_pids}
                        folder = session.new_folder("clients")
                        seen = await measure(clients, WINDOW, watched, folder)
                        await published.end()
                    session.add(
                        NAME,
                        name,
                        system,
                        p50_ms=seen.p50_ms,
                        p99_ms=seen.p99_ms,
                        connect_s=seen.connect_s,
                        us_per_event=seen.us_per_event("edge"),
                        broker_us_per_event=seen.us_per_event("broker"),
                        events_per_s=seen.events / seen.window_s,
                        **seen.faults(),
                    )
