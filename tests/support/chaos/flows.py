"""The workflows of a round: their load, and the checks of what became of them.

Each workflow must end, each of its steps' runs may be called at most once, and the source frames of
each workflow must be those of its journal. The agent server counts its calls and is never hurt.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from penstock.bus import Bus, BusError, BusSettings, streams, subjects
from penstock.bus.read import direct
from penstock.dialects.workflow import WRITER
from penstock.events import TERMINAL
from penstock_workflows.engine.projection import projection
from penstock_workflows.engine.records import End, Scheduled
from penstock_workflows.engine.state import State, fold
from penstock_workflows.journal.journal import RECORD, Journals
from support.chaos.checker import Violation
from support.drive.pipeline import new_run_id
from support.drive.workflows import CountingServer, counting, define, definition, start_workflow

SERVICE: Final = "workflows"
AGENT: Final = "worker"
FLOWS_PER_S: Final = 1.0
MAX_FLOWS: Final = 60
END_S: Final = 60.0  # how long after the last fault all workflows must have ended
AGAIN_S: Final = 0.5
# Two branches and a join, a retry after a timer, and a wait.
FLOW: Final = """
name: chaos
timeout: 5m
steps:
  a: {run: {agent: worker, message: 'input.id + " a slow-0.2"'}}
  b:
    needs: [a]
    run: {agent: worker, message: 'input.id + " b fails-once"'}
    retry: {attempts: 3, backoff: 1s, codes: [broken]}
    on_failure: continue
  c: {needs: [a], run: {agent: worker, message: 'input.id + " c slow-0.5"'}, on_failure: continue}
  w: {needs: [b], wait: 1s}
  d: {needs: [w, c], run: {agent: worker, message: 'input.id + " d"'}}
"""


@dataclass
class Flows:
    """The workflows that a round has started."""

    url: str
    server: CountingServer
    wanted: bool
    started: dict[str, str] = field(default_factory=dict)  # the runs, and the ids in their input
    _bus: Bus | None = None
    _starting: asyncio.Task[None] | None = None

    @property
    def agents(self) -> list[dict[str, object]]:
        """The agent of the steps, for the configuration."""
        fields = {"id", "protocol", "url"}
        agents = self.server.config.agents if self.wanted else ()
        return [agent.model_dump(include=fields) for agent in agents]

    async def begin(self) -> None:
        """Begin to start workflows. The services must be ready."""
        if not self.wanted:
            return
        self._bus = bus = await Bus.connect(BusSettings(url=self.url), ensure=False)
        await define(bus, definition(FLOW))
        self._starting = asyncio.create_task(self._start_them(bus))

    async def _start_them(self, bus: Bus) -> None:
        for number in range(MAX_FLOWS):
            run_id, id = new_run_id(), f"f{number}"
            self.started[run_id] = id

            async def start(run_id: str = run_id, id: str = id) -> None:
                await start_workflow(bus, "chaos", {"id": id}, run_id=run_id)

            await _until_it_works(start)
            await asyncio.sleep(1 / FLOWS_PER_S)

    async def check(self) -> list[Violation]:
        """Return what is wrong with the workflows, after the end of all faults."""
        if self._starting is None:
            return []
        self._starting.cancel()
        await asyncio.wait([self._starting])
        found: list[Violation] = []
        calls = self.server.calls.copy()
        until = asyncio.get_running_loop().time() + END_S
        for run_id, id in self.started.items():
            wrong, scheduled = await self._check(run_id, until)
            found += [
                Violation("workflow", f"{id} {run_id}", each, "no end" in each) for each in wrong
            ]
            for text, times in self.server.calls.items():
                if text.split()[0] == id and times > scheduled.get(text, 0):
                    said = f"{text!r} was called {times} times by {scheduled.get(text, 0)} runs"
                    found.append(Violation("workflow", f"{id} {run_id}", said))
        print(f"{len(self.started)} workflows, {sum(calls.values())} calls of their agent")
        return found

    async def _check(self, run_id: str, until: float) -> tuple[list[str], dict[str, int]]:
        """Return what is wrong with a run, and how many children each message has."""
        bus, loop = self._bus, asyncio.get_running_loop()
        assert bus is not None
        pattern = subjects.event("lifecycle.*", run_id)
        while True:
            last = await bus.tail(streams.events_for(run_id), pattern)
            type_ = ".".join(last.subject.split(".")[:2]) if last is not None else ""
            if type_ in TERMINAL or loop.time() > until:
                break
            await asyncio.sleep(AGAIN_S)
        wrong = [] if type_ in TERMINAL else [f"it has no end; the last event is {type_ or None}"]
        records, _ = await Journals(bus).read(run_id)
        if type_ in TERMINAL and not isinstance(records[-1], End):
            wrong.append("its journal has no end")
        state: State | None = None
        frames: list[str] = []
        scheduled: dict[str, int] = {}
        for record in records:
            frames += [f"{each.record}/{each.part}" for each in projection(state, record)]
            state = fold(state, record)
            if isinstance(record, Scheduled):
                scheduled[record.message] = scheduled.get(record.message, 0) + 1
        raw = direct.replay(bus, streams.raw_for(run_id), subjects.raw_stored(run_id, WRITER))
        written = [stored.headers[RECORD] async for stored in raw]
        if written != frames:
            wrong.append(f"its frames are {written}, those of its journal {frames}")
        return wrong, scheduled

    async def close(self) -> None:
        """Close the connection."""
        if self._starting is not None:
            self._starting.cancel()
        if self._bus is not None:
            await self._bus.close()


async def _until_it_works(call: Callable[[], Awaitable[Any]]) -> None:
    while True:
        with suppress(BusError, orjson.JSONDecodeError):
            await call()
            return
        await asyncio.sleep(AGAIN_S)


@asynccontextmanager
async def flows(url: str, wanted: bool) -> AsyncIterator[Flows]:
    """Run the agent server; yield the workflows of a round, or none if they are not `wanted`."""
    async with counting() as server:
        made = Flows(url, server, wanted)
        try:
            yield made
        finally:
            await made.close()
