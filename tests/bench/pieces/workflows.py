"""Measure the workflows service: the CPU of each step, for few and for many workflows at once.

nats-server, the normalizer and the workflows service are real. This process takes the place of the
connectors: it takes each start command of a step's run, and at once stores the run's
`lifecycle.completed` in EVENTS, as the normalizer does. So the CPU is that of the service alone.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Final

import orjson

from bench.peers.penstock import broker, services
from bench.session import Session
from penstock.bus import (
    Bus,
    BusSettings,
    Consumer,
    Message,
    Stored,
    WorkQueue,
    messages,
    streams,
    subjects,
)
from penstock.bus.records.runs import StartCommand
from support.drive.pipeline import new_run_id
from support.drive.waiting import eventually
from support.drive.workflows import define, sequence, start_workflow
from support.real.cpu import cpu_s
from support.real.processes import pid_of, rss_bytes

NAME: Final = "workflows"
LEAD: Final = "us_per_step"
COMPARED: Final = ()
PLOT: Final[dict[str, str]] = {}
TABLE: Final = {
    "us_per_step": "µs per step",
    "steps_per_s": "steps/s",
    "normalizer_us": "normalizer, µs per step",
    "nats_us": "nats-server, µs per step",
    "rss_mib": "resident, MiB",
}
STEPS: Final = 10


@dataclass(frozen=True, slots=True)
class Workload:
    """`together`: the steps of a workflow run at once, not one after another."""

    about: str
    runs: int
    together: bool = False


WORKLOADS: Final = {
    "100": Workload("100 workflows of 10 steps at once", 100),
    "1000": Workload("1,000 workflows of 10 steps at once", 1000),
    "fan-out": Workload("200 workflows of 10 steps that run together, and a join", 200, True),
}
ABOUT: Final = {name: each.about for name, each in WORKLOADS.items()}


def _definition(workload: Workload) -> dict[str, Any]:
    names = [f"s{number}" for number in range(STEPS)]
    made = sequence(*names, name="bench")
    if workload.together:
        for name in names:
            made["steps"][name].pop("needs", None)
        made["steps"]["join"] = {"needs": names, "set": "s0.output"}
    return made


async def _complete(bus: Bus, stored: Stored) -> None:
    """Store the events that the normalizer makes of a step's run."""
    command = StartCommand.model_validate_json(stored.payload)
    run_id = command.run_id
    body = {
        "run_id": run_id,
        "timestamp": messages.now(),
        "sequence": 2,
        "source": {"agent_id": "worker", "agent_type": "agent", "agent_name": "worker"},
        "event": {"category": "lifecycle", "action": "completed"},
        "data": {"summary": f"done {command.message}", "content": f"done {command.message}"},
        "session_id": command.session_id,
        "leg": 1,
        **command.origin_facts(),
    }
    headers = {messages.SEQUENCE: "2", messages.RAW_POSITION: "1"}
    subject = subjects.event_input("lifecycle.completed", run_id)
    await bus.publisher.publish(Message(subject, orjson.dumps(body), headers))


async def _gives_up(stored: Stored, error: Exception) -> None:
    raise error


async def run(session: Session) -> None:
    """Measure the selected workloads."""
    for _ in range(session.options.rounds):
        for name, workload in WORKLOADS.items():
            for system, python in session.codes().items() if session.wants(name) else ():
                folder = session.new_folder(system)
                async with broker(folder) as nats:
                    bus = await Bus.connect(BusSettings(url=nats.url))
                    url = "http://127.0.0.1:9"
                    agents = [{"id": "worker", "protocol": "agui", "url": url}]
                    names = ["normalizer", "workflows"]
                    async with services(nats, folder, names, python, agents) as penstock:
                        pids = {each: pid_of(penstock.of(each)[0].process) for each in names} | {
                            "nats": nats.pid
                        }
                        figures = await _measured(bus, workload, pids)
                    await bus.close()
                session.add(NAME, name, system, **figures)


async def _measured(bus: Bus, workload: Workload, pids: dict[str, int]) -> dict[str, float]:
    commands = Consumer(
        stream=streams.COMMANDS,
        durable="connector-start",
        subjects=(subjects.command("connector", "start", "*"),),
        at_once=256,
    )
    connectors = WorkQueue(
        bus, commands, lambda stored: _complete(bus, stored), give_up=_gives_up, attempts=None
    )
    working = asyncio.create_task(connectors.run())
    await define(bus, _definition(workload))
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    begun = time.monotonic()
    runs = [new_run_id() for _ in range(workload.runs)]
    for begin in range(0, len(runs), 50):
        starts = (
            start_workflow(bus, "bench", {"id": "x"}, run_id=run_id)
            for run_id in runs[begin : begin + 50]
        )
        await asyncio.gather(*starts)

    async def done() -> bool:
        await asyncio.sleep(0.2)
        ended = await bus.api(
            f"STREAM.INFO.{streams.EVENTS}", {"subjects_filter": "workflow.completed.*"}
        )
        return len(ended["state"].get("subjects") or {}) == len(runs)

    await eventually(done, 170, "all workflows have ended")
    wall_s = time.monotonic() - begun
    working.cancel()
    await asyncio.wait([working])
    steps = workload.runs * STEPS
    spent = {name: (cpu_s(pid) - before[name]) * 1e6 / steps for name, pid in pids.items()}
    return {
        "us_per_step": spent["workflows"],
        "steps_per_s": steps / wall_s,
        "normalizer_us": spent["normalizer"],
        "nats_us": spent["nats"],
        "rss_mib": rss_bytes(pids["workflows"]) / 2**20,
    }
