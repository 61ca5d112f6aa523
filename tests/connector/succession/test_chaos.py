"""Connectors that are killed again and again: every run ends once, and none is called twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

from penstock.settings import Config
from penstock_approvals.service import ApprovalsService
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import TERMINAL, Event, Pipeline, pipeline
from support.fakes.misbehaving import Answer, Misbehaving, agents
from support.fakes.raw import agno, agno_approved, agno_pause
from support.real.connectors import connector_process
from support.real.nats import NatsServer

RUNS = 40
SESSIONS = 10
LASTS_S = 4


class Chance(random.Random):
    """Moments to wait for."""

    async def wait(self, at_most_s: float) -> None:
        await asyncio.sleep(self.random() * at_most_s)


async def test_connectors_may_die_at_any_moment(
    fresh_nats: NatsServer, upstream: Misbehaving, tmp_path: Path
) -> None:
    chance = Chance(11)

    async def answers(answer: Answer) -> None:
        await chance.wait(0.2)
        await answer.head()
        if answer.request.path.endswith("/continue"):
            await answer.send(agno_approved())
        elif answer.request.form["message"] == "pause":
            await answer.send(agno_pause())
        else:
            await answer.send(agno("RunStarted"))
            for _ in range(10):
                await answer.send(agno("RunContent", content="x"))
                await chance.wait(0.05)
            await answer.send(agno("RunCompleted", content="x" * 10))
        await answer.end()

    upstream.script(answers)
    config = agents(upstream)
    over = asyncio.Event()
    async with pipeline(fresh_nats.url, config, (NormalizerService, ApprovalsService)) as penstock:
        dying = [
            asyncio.create_task(connectors(penstock, config, tmp_path / str(n), over, chance))
            for n in range(2)
        ]
        ends = await asyncio.gather(*(one_run(penstock, n, chance) for n in range(RUNS)))
        over.set()
        kills = sum(await asyncio.gather(*dying))
    assert kills >= 2
    assert not [end for end in ends if end.data.get("code") == "internal"]
    starts = Counter(call.form["run_id"] for call in upstream.calls if "/continue" not in call.path)
    continues = [call for call in upstream.calls if call.path.endswith("/continue")]
    assert set(starts.values()) == {1}
    assert len(continues) <= RUNS // 2


async def connectors(
    penstock: Pipeline, config: Config, folder: Path, over: asyncio.Event, chance: Chance
) -> int:
    """One after another, each killed after a while; how many were."""
    folder.mkdir()
    kills = 0
    while True:
        async with connector_process(penstock.bus, config, folder, ack_wait_s=2):
            try:
                await asyncio.wait_for(over.wait(), chance.uniform(1.5, 4))
                return kills
            except TimeoutError:
                kills += 1


async def one_run(penstock: Pipeline, number: int, chance: Chance) -> Event:
    """Its terminal event, which is the only one."""
    await chance.wait(LASTS_S)
    pauses = number % 2 == 0
    session_id = f"s-{number % SESSIONS}"
    message = "pause" if pauses else "text"
    run_id = await penstock.start_run("agno", message, session_id=session_id)
    if pauses:
        *_, event = await penstock.events_until(run_id, paused_or_ended, timeout_s=40)
        if event.type == "lifecycle.paused":
            await penstock.decide(event.data["approval_id"])
    events = await penstock.ended(run_id, timeout_s=40)
    assert [event.type for event in events if event.type in TERMINAL] == [events[-1].type]
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    return events[-1]


def paused_or_ended(event: Event) -> bool:
    return event.type == "lifecycle.paused" or event.type in TERMINAL
