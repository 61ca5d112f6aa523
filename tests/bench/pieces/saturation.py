"""Measure the most frames that the path carries: the agent server sends as fast as it is read."""

from __future__ import annotations

from typing import Final

from bench.load import measure
from bench.peers.whole import PATH, upstream, whole
from bench.seen import Window
from bench.session import Session

NAME: Final = "saturation"
LEAD: Final = "us_per_frame"
COMPARED: Final = ()
PLOT: Final = {"frames_per_s": "frames/s", "us_per_frame": "µs per frame"}
TABLE: Final = PLOT | {
    "connector_us": "connector, µs",
    "normalizer_us": "normalizer, µs",
    "edge_us": "edge, µs",
    "nats_us": "nats-server, µs",
}
ABOUT: Final = {"1-normalizer": "20 runs at full speed", "2-normalizers": "the same"}
RUNS: Final = 20
FRAMES: Final = 2000  # frames of each run
# name: processes of the normalizer
WORKLOADS: Final = {"1-normalizer": 1, "2-normalizers": 2}


async def run(session: Session) -> None:
    """Measure the selected workloads."""
    agent = f"burst-{FRAMES}"
    folder = session.new_folder("upstream")
    async with upstream(folder) as url:
        for _ in range(session.options.rounds):
            for name, normalizers in WORKLOADS.items():
                if not session.wants(name):
                    continue
                for system, python in session.codes().items():
                    services = ["normalizer"] * normalizers + ["approvals", "connector", "edge"]
                    made = session.new_folder(system)
                    async with whole(made, python, url, [agent], services) as ours:
                        clients = ours.starting(agent, RUNS)
                        window = Window(stop_after=FRAMES)
                        seen = await measure(clients, window, ours.pids(), made)
                    figures = {each: seen.us_per_event(each) for each in (*PATH, "nats")}
                    session.add(
                        NAME,
                        name,
                        system,
                        frames_per_s=seen.events / seen.window_s,
                        us_per_frame=sum(figures[each] for each in PATH),
                        **{f"{each}_us": value for each, value in figures.items()},
                        **seen.faults(),
                    )
