"""Measure how long `penstock up` takes until it is ready, and its memory after that."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Final

from bench.session import Session
from support.real.processes import rss_bytes
from support.real.up import Up

NAME: Final = "startup"
LEAD: Final = "ready_s"
COMPARED: Final = ()
PLOT: Final = {"ready_s": "seconds until it is ready"}
TABLE: Final = PLOT | {"rss_mib": "resident, MiB"}
ABOUT: Final = {"empty": "penstock up for the first time", "again": "the second time"}
WORKLOADS: Final = ("empty", "again")
MIB: Final = 1024 * 1024


async def run(session: Session) -> None:
    """Measure the selected workloads."""
    await asyncio.to_thread(_run, session)


def _run(session: Session) -> None:
    for _ in range(session.options.rounds):
        for system, python in session.codes().items():
            folder = session.new_folder(system)
            config = folder / "penstock.yaml"
            config.write_text("agents: []\n")
            up = Up(folder, "--config", str(config), program=(python, "-m", "penstock_cli"))
            # first on an empty folder, then on the folder of the first start
            for name in WORKLOADS:
                begun = time.monotonic()
                up.start()
                ready_s = time.monotonic() - begun
                assert up.process is not None
                rss_mib = rss_bytes(up.process.pid) / MIB
                up.signal(signal.SIGTERM)
                if session.wants(name):
                    session.add(NAME, name, system, ready_s=ready_s, rss_mib=rss_mib)
