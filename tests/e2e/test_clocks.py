"""No run is harmed by a clock that is wrong by up to 75 s: one service's clock, or NATS's.

Two processes of each service run. libfaketime shifts the clock of one process of each pair while
runs stream. libfaketime cannot shift the clock of a Go program, so the tests shift NATS's clock by
shifting the clocks of all services by the opposite amount. All monotonic clocks stay real.
Meanwhile long runs stream through all connectors, normalizers and edges, and new runs of the real
Agno server go through an approval.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.bus import Bus
from support.drive.bus import connected
from support.drive.figures import report
from support.drive.waiting import eventually
from support.fakes.clocks import ShiftedClock, forget_the_dead, libfaketime
from support.fakes.misbehaving import Answer, Misbehaving, misbehaving
from support.fakes.raw import agno
from support.fakes.steady import holders
from support.real.deployment import SERVICES, Deployment, Event, Instance, deployment
from support.real.nats import NatsServer
from support.real.shifted_nats import CannotBuild, ShiftedServer
from support.real.upstreams import Upstream

LIBRARY = libfaketime()
NATS = "NATS"
AHEAD_S = (-75, -20, 20, 75)
ALL = dict.fromkeys((*SERVICES, NATS), AHEAD_S)
# Two services and NATS: ahead within the limit, and behind beyond it.
SOME: dict[str, tuple[int, ...]] = {"connector": (-75,), "edge": (20,), NATS: (-75,)}
LIMIT_S = 30
# Seconds per offset: longer than the intervals in which leases are renewed and checked.
HOLD_S = 1.0
REAL_HOLD_S = 12.0  # The same for the leases of a deployment, in seconds.
WORD_S = 0.2
# These leases are much shorter than a deployment's, so that a service that wrongly takes a lease
# for an expired one takes it over within `HOLD_S`.
LEASES: dict[str, Any] = {
    "partition_ttl_s": 3,
    "partition_renew_s": 0.5,
    "pod_ttl_s": 4,
    "pod_renew_s": 0.5,
    "reap_s": 0.3,
}

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed (apt: faketime)"),
]


@dataclass
class Talk:
    """A run that lasts for the whole test, and the events that its client has received."""

    run_id: str
    events: list[Event] = field(default_factory=list)

    async def follow(self, penstock: Deployment, edge: int) -> None:
        async for event in penstock.events(self.run_id, edge=edge):
            self.events.append(event)

    def check(self) -> None:
        """Check that each event came once and in order, and that the run completed."""
        types = [event.type for event in self.events]
        assert types[-1] == "lifecycle.completed", f"{self.run_id}: {self.events[-1].body}"
        assert [event.sequence for event in self.events] == [*range(1, len(types) + 1)]
        said = [e.data["content"] for e in self.events if e.type == "llm.stream"]
        assert said == [f"word {number} " for number in range(len(said))]


@dataclass
class World:
    """All processes and runs of a test.

    One process of each pair (`wrong`) has a clock of its own, which the test shifts.
    """

    penstock: Deployment
    bus: Bus
    agents: Misbehaving
    real: Upstream
    clocks: dict[str, ShiftedClock]  # per service, the clock of the process in `wrong`
    steady: ShiftedClock  # the clock of all other processes
    wrong: dict[str, Instance] = field(default_factory=dict)
    ends: asyncio.Event = field(default_factory=asyncio.Event)
    talks: list[Talk] = field(default_factory=list)
    following: list[asyncio.Task[None]] = field(default_factory=list)

    async def move(self, who: str, ahead_s: int) -> list[Instance]:
        """Shift the clock of one service, or NATS's; return the processes whose clock is now wrong.

        If the offset is beyond the limit, the normalizer is restarted: a running normalizer would
        keep its partitions.
        """
        if who == NATS:
            for clock in (self.steady, *self.clocks.values()):
                clock.set(-ahead_s)
            return self.penstock.instances
        self.clocks[who].set(ahead_s)
        if who == "normalizer" and abs(ahead_s) > LIMIT_S:
            await self.stop(who)
            await self.start(who)
            await self.shared()
        return [self.wrong[who]]

    async def start(self, service: str) -> None:
        """Start a process of this service with the shifted clock, and wait until it works.

        The process may report that it is not ready because of its clock.
        """
        started = await self.penstock.start(
            service, before=self.clocks[service].command, probe="livez"
        )
        http = self.penstock.http

        async def works() -> bool:
            try:
                if service in ("approvals", "edge"):
                    await http.get(f"{started.url}/")
                said = (await http.get(f"{started.probes}/readyz")).json()["services"][service]
            except httpx.HTTPError:
                return False
            return all("clock" in reason for reason in said)

        await eventually(works, 30, f"{service} works")
        self.wrong[service] = started

    async def stop(self, service: str) -> None:
        """End the service's process that has the shifted clock with SIGTERM.

        The process must exit with code 0.
        """
        process = self.wrong[service].process.popen
        process.terminate()
        assert await asyncio.to_thread(process.wait) == 0
        self.penstock.instances.remove(self.wrong.pop(service))

    async def offset_s(self, instance: Instance) -> float:
        """Return the clock offset that the instance's metric gives; infinite without the metric."""
        text = (await self.penstock.http.get(f"{instance.probes}/metrics")).text
        shown = re.search(r"^penstock_clock_offset_seconds\S* (\S+)$", text, re.MULTILINE)
        return float(shown[1]) if shown is not None else float("inf")

    async def says(self, instance: Instance, ahead_s: int) -> None:
        """Wait until the instance knows its offset, then check its readiness.

        The clock may be a reason for not being ready only if the offset is beyond the limit.
        """

        async def known() -> bool:
            return abs(await self.offset_s(instance) - ahead_s) < 1

        await eventually(known, 30, f"{instance.service} knows that it is {ahead_s:+d} s wrong")
        answer = await self.penstock.http.get(f"{instance.probes}/readyz")
        (said,) = answer.json()["services"].values()
        reasons = [reason for reason in said if "clock" in reason]
        if abs(ahead_s) <= LIMIT_S:
            assert reasons == []
        else:
            (reason,) = reasons
            which = "ahead of" if ahead_s > 0 else "behind"
            words = re.search(rf"is ([\d.]+) s {which} NATS's", reason)
            assert words is not None, reason
            assert abs(float(words[1]) - abs(ahead_s)) < 1
        assert answer.status_code == (503 if said else 200)

    async def held(self) -> dict[str, str]:
        """Return, for each long run, the connector that holds its leg; empty if none does."""
        keys = await self.bus.bucket("claims").keys("active.*.*")
        found = {run_id: pod for _, pod, run_id in (key.split(".") for key in keys)}
        return {talk.run_id: found.get(talk.run_id, "") for talk in self.talks}

    async def shared(self) -> None:
        """Wait until both normalizers hold partitions and both connectors hold long runs."""

        async def probe() -> bool:
            both = len(set((await holders(self.bus)).values())) == 2
            held = set((await self.held()).values())
            return both and len(held) == 2 and "" not in held

        await eventually(probe, 30, "everything is shared by two")

    async def talk(self, runs: int) -> None:
        """Start so many long runs."""
        for number in range(runs):
            talk = Talk(await self.penstock.run("talker", "go", edge=number))
            self.talks.append(talk)
            self.following.append(asyncio.create_task(talk.follow(self.penstock, number)))

    async def moved_on(self, since: list[int]) -> None:
        """Wait until each long run has more events than `since` gives; none may have ended."""

        async def probe() -> bool:
            return all(
                len(talk.events) > seen for talk, seen in zip(self.talks, since, strict=True)
            )

        await eventually(probe, 30, "events of all runs")
        assert [talk.events[-1].type for talk in self.talks] == ["llm.stream"] * len(self.talks)

    async def approved(self, number: int) -> None:
        """Start a run of the real server, which pauses, and approve it.

        The run must complete, and its tool must run once.
        """
        penstock, edges = self.penstock, self.penstock.of("edge")
        name = f"Clock {time.monotonic_ns()}"
        run_id = await penstock.run("assistant", f"confirm {name}", edge=number)
        seen = await penstock.until(run_id, "lifecycle.paused", edge=number + 1)
        decided = await penstock.decide(seen[-1].data["approval_id"], "approve")
        assert decided.status_code == 200, decided.text
        events = await penstock.all(run_id, edge=number % len(edges))
        types = [event.type for event in events]
        assert types[-1] == "lifecycle.completed", events[-1].body
        assert types.count("lifecycle.resumed") == types.count("approval.decided") == 1
        stamps = [event.body["timestamp"] for event in events]
        assert stamps == sorted(stamps)
        assert sum(name in str(ran) for ran in self.real.tool_runs()) == 1

    async def works(self, wrong: Iterable[Instance], ahead_s: int, hold_s: float = HOLD_S) -> None:
        """Check one service at one offset: runs continue, and no leg moves to another connector."""
        before = await self.held()
        await asyncio.gather(*(self.says(instance, ahead_s) for instance in wrong))
        until = time.monotonic() + hold_s
        await asyncio.gather(*(self.approved(number) for number in range(2)))
        await asyncio.sleep(max(0.0, until - time.monotonic()))
        await self.moved_on([len(talk.events) for talk in self.talks])
        assert await self.held() == before, "a leg has changed hands"

    async def finish(self) -> None:
        """End the long runs and check them; each must have called the agent server once."""
        self.ends.set()
        async with asyncio.timeout(20):
            await asyncio.gather(*self.following)
        for talk in self.talks:
            talk.check()
        assert len(self.agents.calls) == len(self.talks)


@asynccontextmanager
async def world(
    nats: NatsServer, real: Upstream, folder: Path, *, pairs: bool = True, **settings: Any
) -> AsyncIterator[World]:
    """Run two processes of each service or, with `pairs=False`, only those with the right clock."""
    assert LIBRARY is not None
    clocks = {name: ShiftedClock(LIBRARY, folder / name) for name in (*SERVICES, "steady")}
    steady = clocks.pop("steady")
    try:
        async with misbehaving() as agents, connected(nats.url) as bus:
            configured: list[dict[str, Any]] = [
                {"id": "talker", "protocol": "agno", "url": agents.url},
                {"id": "assistant", "protocol": "agno", "url": real.url, "agent": "demo-agent"},
            ]
            async with deployment(nats.url, folder / "of", configured, 0, **settings) as penstock:
                made = World(penstock, bus, agents, real, clocks, steady)
                agents.script(_talks(made.ends))
                await asyncio.gather(
                    *(penstock.start(service, before=steady.command) for service in SERVICES),
                    *(made.start(service) for service in SERVICES if pairs),
                )
                try:
                    yield made
                finally:
                    made.ends.set()
                    for task in made.following:
                        task.cancel()
                    if made.following:
                        await asyncio.wait(made.following)
    finally:
        forget_the_dead()


def _talks(ends: asyncio.Event) -> Any:
    async def script(answer: Answer) -> None:
        await answer.head()
        await answer.send(agno("RunStarted"))
        number = 0
        while not ends.is_set():
            await answer.send(agno("RunContent", content=f"word {number} "))
            number += 1
            await asyncio.sleep(WORD_S)
        await answer.send(agno("RunCompleted", content="done"))
        await answer.end()

    return script


@pytest.mark.timeout(240)
@pytest.mark.chaos
@pytest.mark.parametrize("offsets", [SOME, ALL], ids=["some", "all"])
async def test_a_clock_that_is_wrong_harms_no_run(
    fresh_nats: NatsServer,
    agno_server: Upstream,
    tmp_path: Path,
    subtests: pytest.Subtests,
    offsets: dict[str, tuple[int, ...]],
) -> None:
    async with world(fresh_nats, agno_server, tmp_path, **LEASES) as running:
        await running.talk(8)
        await running.shared()
        since = time.monotonic()
        for who, all_ahead_s in offsets.items():
            for ahead_s in all_ahead_s:
                with subtests.test(f"{who} {ahead_s:+d} s"):
                    wrong = await running.move(who, ahead_s)
                    # If NATS's clock is ahead, the clocks of all services are behind.
                    await running.works(wrong, -ahead_s if who == NATS else ahead_s)
            await running.move(who, 0)
        await running.finish()
        report("clocks", table_s=time.monotonic() - since)


@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_services_that_start_with_a_wrong_clock_harm_no_run(
    fresh_nats: NatsServer, agno_server: Upstream, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """All four services start with a wrong clock, beside processes whose clock is right.

    The leases are those of a deployment.
    """
    async with world(fresh_nats, agno_server, tmp_path, pairs=False) as running:
        await running.talk(8)
        for ahead_s in AHEAD_S:
            with subtests.test(f"started {ahead_s:+d} s wrong"):
                for clock in running.clocks.values():
                    clock.set(ahead_s)
                await asyncio.gather(*map(running.start, SERVICES))
                await running.works(running.wrong.values(), ahead_s, REAL_HOLD_S)
                assert len(set((await holders(running.bus)).values())) == 2
                await asyncio.gather(*map(running.stop, SERVICES))
        await running.finish()


@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_a_clock_of_nats_that_is_set_harms_no_run(
    agno_server: Upstream, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """The test sets the clock by which the NATS server expires leases.

    If it is set forward, all leases expire at once.
    """
    try:
        shifted = ShiftedServer(tmp_path / "nats clock")
    except CannotBuild as error:
        pytest.skip(str(error))
    nats = NatsServer(tmp_path / "nats", name="shifted nats", program=shifted.command)
    nats.start()
    try:
        async with world(nats, agno_server, tmp_path) as running:
            await running.talk(8)
            await running.shared()
            for ahead_s in AHEAD_S:
                for now_s in (ahead_s, 0):
                    with subtests.test(f"{NATS} set to {now_s:+d} s"):
                        shifted.set(now_s)
                        await running.works(running.penstock.instances, -now_s, REAL_HOLD_S)
                        # Wait until the leases are valid again.
                        await asyncio.sleep(REAL_HOLD_S)
            await running.finish()
    finally:
        nats.remove()
