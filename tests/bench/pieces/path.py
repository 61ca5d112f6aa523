"""Measure what the whole path costs for each source frame, and what it adds to the latency.

The peer is a plain proxy (httpx stream in, StreamingResponse out) with the same clients and the
same agent server.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from bench.load import measure
from bench.peers.whole import PATH, Whole, upstream, whole
from bench.processes import script
from bench.seen import Clients, Seen, Window
from bench.session import Session
from support.real.ports import free_port
from support.real.processes import pid_of

NAME: Final = "path"
LEAD: Final = "us_per_frame"
COMPARED: Final = ("proxy",)
PLOT: Final = {"us_per_frame": "µs per frame", "p50_ms": "p50, ms", "p99_ms": "p99, ms"}
TABLE: Final = PLOT | {
    "connector_us": "connector, µs",
    "normalizer_us": "normalizer, µs",
    "edge_us": "edge, µs",
    "nats_us": "nats-server, µs",
}
ABOUT: Final = {
    "50": "10 runs of 5 frames/s",
    "100": "10 runs of 10 frames/s",
    "1000": "100 runs of 10 frames/s",
    "1000-one": "1 run of 1,000 frames/s",
    "1000-calls": "100 runs of 10 frames/s; each 50th ends a model call",
    "5000": "100 runs of 50 frames/s",
}
WINDOW: Final = Window(duration_s=5.0, warmup_s=2.0)
BESIDE_S: Final = 3.0  # seconds for which a run lasts longer than warm-up and window
SETTLE_S: Final = 2.0  # the wait until runs whose clients have left have ended


@dataclass(frozen=True, slots=True)
class Workload:
    """The number of concurrent runs, and the frames of each run in a second."""

    runs: int
    rate: int
    mode: str = "paced"

    @property
    def agent(self) -> str:
        seconds = WINDOW.duration_s + WINDOW.warmup_s + BESIDE_S
        return f"{self.mode}-{int(seconds * self.rate)}-{self.rate}"


WORKLOADS: Final = {
    "50": Workload(10, 5),
    "100": Workload(10, 10),
    "1000": Workload(100, 10),
    "1000-one": Workload(1, 1000),
    "1000-calls": Workload(100, 10, "spending"),
    "5000": Workload(100, 50),
}


async def run(session: Session) -> None:
    """Measure the selected workloads."""
    wanted = {name: each for name, each in WORKLOADS.items() if session.wants(name)}
    async with AsyncExitStack() as stack:
        folder = session.new_folder("upstream")
        url = await stack.enter_async_context(upstream(folder))
        port = free_port()
        proxy = await stack.enter_async_context(script("plain_proxy.py", folder, port, url))
        agents = sorted({each.agent for each in wanted.values()})
        ours = {
            name: await stack.enter_async_context(
                whole(session.new_folder(name), python, url, agents)
            )
            for name, python in session.codes().items()
        }
        for _ in range(session.options.rounds):
            for name, workload in wanted.items():
                peer = await _proxy(session, name, workload, port, pid_of(proxy))
                for system, each in ours.items():
                    await _path(session, name, workload, system, each, peer)


async def _proxy(
    session: Session, name: str, workload: Workload, port: int, pid: int
) -> Seen | None:
    if not session.takes("proxy"):
        return None
    clients = Clients(
        f"http://127.0.0.1:{port}",
        [f"/agents/{workload.agent}/runs"],
        workload.runs,
        method="POST",
        body="{}",
    )
    seen = await measure(clients, WINDOW, {"proxy": [pid]}, session.new_folder("clients"))
    session.add(
        NAME,
        name,
        "proxy",
        us_per_frame=seen.us_per_event("proxy"),
        p50_ms=seen.p50_ms,
        p99_ms=seen.p99_ms,
        **seen.faults(),
    )
    await asyncio.sleep(SETTLE_S)
    return seen


async def _path(
    session: Session,
    name: str,
    workload: Workload,
    system: str,
    ours: Whole,
    peer: Seen | None,
) -> None:
    clients = ours.starting(workload.agent, workload.runs)
    seen = await measure(clients, WINDOW, ours.pids(), session.new_folder("clients"))
    figures = {"us_per_frame": sum(map(seen.us_per_event, PATH))}
    figures |= {"p50_ms": seen.p50_ms, "p99_ms": seen.p99_ms}
    if peer is not None:
        figures["added_p50_ms"] = seen.p50_ms - peer.p50_ms
        figures["added_p99_ms"] = seen.p99_ms - peer.p99_ms
    figures |= {f"{each}_us": seen.us_per_event(each) for each in (*PATH, "nats")}
    figures["frames_per_s"] = seen.events / seen.window_s
    session.add(NAME, name, system, **figures, **seen.faults())
    await asyncio.sleep(SETTLE_S)
