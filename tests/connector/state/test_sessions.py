"""The legs of one session run one after another, in the order of their commands."""

from __future__ import annotations

import asyncio

import pytest

from penstock.bus.records.legs import QueuedLeg, SessionRecord
from penstock.bus.subjects import session_key
from penstock_connector.service import ConnectorService
from penstock_connector.state import session_queue
from penstock_connector.state.leg_record import LegRecords
from support.drive.pipeline import PIPELINE, Pipeline, Services, pipeline
from support.drive.waiting import eventually
from support.fakes.misbehaving import Answer, Misbehaving, agents, plays
from support.fakes.raw import agno, agno_approved, agno_pause, agno_text
from support.real.connectors import DEAD, FAST
from support.real.nats import NatsServer

TWO: Services = (*PIPELINE, ConnectorService)


class Turns:
    """A script that records the order of the runs, and answers when the test allows it."""

    def __init__(self) -> None:
        self.at_once = 0
        self.most_at_once = 0
        self.order: list[str] = []
        self.go = asyncio.Event()

    async def __call__(self, answer: Answer) -> None:
        self.order.append(answer.request.form["message"])
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await answer.head()
        await answer.send(agno("RunStarted"))
        await self.go.wait()
        self.at_once -= 1
        await answer.send(agno("RunCompleted", content="x"))
        await answer.end()


async def last_types(penstock: Pipeline, run_ids: list[str]) -> list[str]:
    return [(await penstock.ended(run_id))[-1].type for run_id in run_ids]


async def test_runs_of_one_session_are_called_in_order_one_at_a_time(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    turns = Turns()
    upstream.script(turns)
    async with pipeline(nats_server.url, agents(upstream), TWO) as penstock:
        run_ids = [await penstock.start_run("agno", "0", session_id="s-order")]
        await penstock.events_until(run_ids[0], "lifecycle.started")
        run_ids += [
            await penstock.start_run("agno", str(number), session_id="s-order")
            for number in range(1, 8)
        ]
        for run_id in run_ids:
            await penstock.events_until(run_id, "lifecycle.started")
        await upstream.called()
        assert turns.order == ["0"]
        turns.go.set()
        assert await last_types(penstock, run_ids) == ["lifecycle.completed"] * 8
        key = session_key("u1", "agno", "s-order")
        entry = await penstock.bus.bucket("sessions").get(key)
    assert turns.order == [str(number) for number in range(8)]
    assert turns.most_at_once == 1
    assert entry is not None
    assert SessionRecord.model_validate_json(entry.value or b"").runs == run_ids


async def test_other_sessions_users_and_agents_do_not_wait(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    turns = Turns()
    upstream.script(turns)
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        run_ids = [
            await penstock.start_run("agno", "a", session_id="s-same"),
            await penstock.start_run("agno", "b", session_id="s-other"),
            await penstock.start_run("agno", "c", session_id="s-same", user_id="u2"),
        ]
        await upstream.called(3)
        turns.go.set()
        await last_types(penstock, run_ids)
    assert turns.most_at_once == 3


async def test_a_paused_run_blocks_nobody_and_waits_for_its_turn_to_continue(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    turns = Turns()
    upstream.script(plays(agno_pause()), turns, plays(agno_approved()))
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        paused = await penstock.start_run("agno", "delete", session_id="s-paused")
        *_, pause = await penstock.events_until(paused, "lifecycle.paused")
        other = await penstock.start_run("agno", "meanwhile", session_id="s-paused")
        await upstream.called(2)
        await penstock.decide(pause.data["approval_id"])
        await penstock.events_until(paused, "lifecycle.resumed")
        assert len(upstream.calls) == 2
        turns.go.set()
        assert await last_types(penstock, [other, paused]) == ["lifecycle.completed"] * 2
    assert upstream.calls[-1].path.endswith("/continue")


async def test_the_turn_of_a_dead_connector_is_passed_over(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_text("x")))
    async with pipeline(nats_server.url, agents(upstream), **FAST) as penstock:
        key = session_key("u1", "agno", "s-dead")
        record = SessionRecord(agent="agno", session_id="s-dead")
        record.queue.append(QueuedLeg(run_id="gone", leg=1, pod=DEAD))
        await penstock.bus.bucket("sessions").put(key, record.dump())
        run_id = await penstock.start_run("agno", "hello", session_id="s-dead")
        assert await last_types(penstock, [run_id]) == ["lifecycle.completed"]


async def test_the_turn_of_a_dead_connectors_leg_waits_until_somebody_has_dealt_with_it(
    nats_server: NatsServer, upstream: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the turn were passed over, the next run would begin beside the continued leg."""
    monkeypatch.setattr(session_queue, "CHECK_AGAIN_S", 0.1)
    upstream.script(plays(agno_text("x")))
    async with pipeline(nats_server.url, agents(upstream), pod_ttl_s=1) as penstock:
        key = session_key("u1", "agno", "s-noted")
        left = QueuedLeg(run_id="r-dead", leg=1, pod=DEAD)
        record = SessionRecord(agent="agno", session_id="s-noted", queue=[left])
        noted = f"active.{DEAD}.r-dead"
        looked = asyncio.Event()
        exists = LegRecords.exists

        async def looks(self: LegRecords, run_id: str, pod: str) -> bool:
            looked.set()
            return await exists(self, run_id, pod)

        monkeypatch.setattr(LegRecords, "exists", looks)
        await penstock.bus.bucket("sessions").create(key, record.dump())
        await penstock.bus.bucket("claims").put(noted, b"{}")
        run_id = await penstock.start_run("agno", "next", session_id="s-noted")
        async with asyncio.timeout(30):
            await looked.wait()
        assert not upstream.calls
        await penstock.bus.bucket("claims").delete(noted)
        *_, last = await penstock.ended(run_id)
    assert last.type == "lifecycle.completed"


async def test_a_leg_that_waits_for_its_turn_waits_for_the_bus_too(
    fresh_nats: NatsServer,
    upstream: Misbehaving,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(session_queue, "CHECK_AGAIN_S", 0.2)
    turns = Turns()
    upstream.script(turns)

    async def missed() -> bool:
        return "penstock_connector" in {record.name.partition(".")[0] for record in caplog.records}

    async with pipeline(fresh_nats.url, agents(upstream)) as penstock:
        run_ids = [await penstock.start_run("agno", "one", session_id="s-away")]
        await penstock.events_until(run_ids[0], "lifecycle.started")
        run_ids.append(await penstock.start_run("agno", "two", session_id="s-away"))
        await penstock.events_until(run_ids[1], "lifecycle.started")
        caplog.clear()
        fresh_nats.pause()
        try:
            await eventually(missed, 30, "the bus is missed")
        finally:
            fresh_nats.go_on()
        turns.go.set()
        assert await last_types(penstock, run_ids) == ["lifecycle.completed"] * 2


async def test_a_failed_run_lets_the_next_one_go(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(lambda answer: answer.whole(b"no", 500), plays(agno_text("x")))
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        run_ids = [
            await penstock.start_run("agno", message, session_id="s-failed")
            for message in ("one", "two")
        ]
        assert await last_types(penstock, run_ids) == ["lifecycle.failed", "lifecycle.completed"]
