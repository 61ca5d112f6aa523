"""Connectors as separate processes that a test can kill, and the records of an ended connector."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from penstock.bus import Bus
from penstock.bus.records.legs import Claim
from penstock.settings import Config
from penstock_connector.state.leg_record import LegRecord
from support.drive.steps import Step
from support.drive.waiting import eventually
from support.real.forked import Forked

_TESTS = str(Path(__file__).parents[2])
DEAD = "connector-dead-1-abcdef"

# Short times, so that the end of a process is noticed within seconds.
FAST: dict[str, Any] = {"pod_ttl_s": 2, "pod_renew_s": 0.5, "reap_s": 0.3}


@dataclass(frozen=True, slots=True)
class Hurt:
    """The write before or after which a connector gets a signal: its n-th write of that kind.

    The connector's clock is `ahead_s` seconds ahead.
    """

    step: Step
    when: Literal["before", "after"] = "before"
    times: int = 1
    signal: Literal["SIGKILL", "SIGSTOP"] = "SIGKILL"
    ahead_s: float = 0.0

    @property
    def arguments(self) -> list[str]:
        """The arguments of the command line."""
        what = (self.step.name, self.when, str(self.times), self.signal, str(self.ahead_s))
        return ["support.real.dies_at", *what]


class ConnectorProcess:
    """A process of `python -m penstock_connector`, and its pod name in the leases."""

    def __init__(self, process: Forked, pod: str) -> None:
        self._process = process
        self.pod = pod

    async def died(self) -> int:
        """Wait until the process has ended by itself; return its exit code."""
        return await self._process.ended()

    async def kill(self) -> None:
        """Send SIGKILL, which ends the process as a crash does."""
        self._process.kill()
        await self._process.ended()

    def sleep(self) -> None:
        """Send SIGSTOP: the process does nothing, and its connections stay open."""
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Send SIGCONT: the process continues."""
        self._process.send_signal(signal.SIGCONT)

    async def stop(self) -> int:
        """Send SIGTERM; return the exit code."""
        self._process.terminate()
        return await self._process.ended()


@asynccontextmanager
async def connector_process(
    bus: Bus, config: Config, folder: Path, hurt: Hurt | None = None, **settings: Any
) -> AsyncIterator[ConnectorProcess]:
    """Run a connector; yield when it has its lease."""
    file = folder / "penstock.yaml"
    file.write_text(yaml.safe_dump(config.model_dump()))
    given = {"config": file, "nats_url": bus.settings.url, "probe_port": 0, **FAST, **settings}
    before = await _living(bus)
    process = Forked(
        ["-m", *(hurt.arguments if hurt is not None else ["penstock_connector"])],
        os.environ
        | {"PYTHONPATH": os.pathsep.join((_TESTS, os.environ.get("PYTHONPATH", "")))}
        | {f"PENSTOCK_{name.upper()}": str(value) for name, value in given.items()},
    )
    try:

        async def lives() -> str | None:
            new = await _living(bus) - before
            return next((pod for pod in new if f"-{process.pid}-" in pod), None)

        found = await eventually(lives, 30, "the connector's process")
        yield ConnectorProcess(process, found.removeprefix("pod."))
    finally:
        process.kill()
        await process.ended()


async def claimed_by_the_dead(bus: Bus, run_id: str) -> None:
    """Write the claim of a connector that ended before it opened the run."""
    await bus.bucket("claims").create(f"claim.{run_id}", Claim(pod=DEAD).dump())
    noted = LegRecord(1, 1, "start", b"{}")
    await bus.bucket("claims").put(f"active.{DEAD}.{run_id}", noted.dump())


async def _living(bus: Bus) -> set[str]:
    return set(await bus.bucket("leases").keys("pod.>"))
