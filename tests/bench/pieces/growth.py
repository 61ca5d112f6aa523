"""Measure whether the cost of a frame and of a start grows with the number of runs.

All runs together get 1,000 frames/s. A client of each run starts it and reads its stream.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from bench.load import measure
from bench.peers.whole import PATH, Whole, upstream, whole
from bench.seen import Window
from bench.session import Session

NAME: Final = "growth"
LEAD: Final = "us_per_frame"
COMPARED: Final = ()
PLOT: Final = {
    "us_per_frame": "path, µs per frame",
    "connector_ms_per_start": "connector, ms per start",
}
TABLE: Final = PLOT | {
    "p50_ms": "p50, ms",
    "p99_ms": "p99, ms",
    "connector_kib_per_run": "connector, KiB per run",
    "normalizer_kib_per_run": "normalizer, KiB per run",
    "edge_kib_per_run": "edge, KiB per run",
}
ABOUT: Final = {f"{runs}": "runs that share 1,000 frames/s" for runs in (1, 10, 100, 1000, 10_000)}
FRAMES_PER_S: Final = 1000
RUNS: Final = (1, 10, 100, 1000)
LONG_RUNS: Final = (*RUNS, 10_000)
STARTS_PER_S: Final = 100
LEAST_FOR_STARTS: Final = 100  # the least number of runs whose starts take a measurable time
# the least number of runs whose memory exceeds the allocator's rounding
LEAST_FOR_MEMORY: Final = 1000
WINDOW: Final = Window(duration_s=5.0, warmup_s=3.0)


def _agent(runs: int) -> str:
    """Return the name of an agent whose runs last from the first start to the window's end."""
    seconds = runs / STARTS_PER_S * 1.5 + WINDOW.warmup_s + WINDOW.duration_s + 5
    if runs <= FRAMES_PER_S:
        rate = FRAMES_PER_S // runs
        return f"paced-{int(seconds * rate)}-{rate}"
    distance_s = runs // FRAMES_PER_S
    return f"slow-{int(seconds / distance_s)}-{distance_s}"


async def run(session: Session) -> None:
    """Measure the selected workloads."""
    # 10,000 runs take four minutes, so they run only with --long or if they are named.
    sizes = LONG_RUNS if session.options.long or session.options.workloads else RUNS
    wanted = [runs for runs in sizes if session.wants(f"{runs}")]
    async with upstream(session.new_folder("upstream")) as url:
        for _ in range(session.options.rounds):
            for runs in wanted:
                for system, python in session.codes().items():
                    folder = session.new_folder(system)
                    agent = _agent(runs)
                    async with whole(folder, python, url, [agent], max_legs=20_000) as ours:
                        figures = await _grown(session, ours, agent, runs)
                    session.add(NAME, f"{runs}", system, **figures)


async def _grown(session: Session, ours: Whole, agent: str, runs: int) -> dict[str, float]:
    clients = replace(
        ours.starting(agent, runs, STARTS_PER_S), max_connect_s=30 + 2 * runs / STARTS_PER_S
    )
    seen = await measure(clients, WINDOW, ours.pids(), session.new_folder("clients"))
    frame_s = seen.us_per_event("connector") / 1e6
    starts_s = seen.connect_cpu_s["connector"] - seen.connect_events * frame_s
    grown = {
        f"{each}_kib_per_run": (seen.rss_kib[each] - seen.rss_kib_first[each]) / runs
        for each in (PATH if runs >= LEAST_FOR_MEMORY else ())
    }
    if runs >= LEAST_FOR_STARTS:
        grown["connector_ms_per_start"] = max(0.0, starts_s) / runs * 1000
    return {
        "us_per_frame": sum(map(seen.us_per_event, PATH)),
        "frames_per_s": seen.events / seen.window_s,
        "p50_ms": seen.p50_ms,
        "p99_ms": seen.p99_ms,
        **{f"{each}_us": seen.us_per_event(each) for each in (*PATH, "nats")},
        **grown,
        **seen.faults(),
    }
