"""Connectors are killed or paused at an exact write: no run waits for ever or is sent twice."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path
from signal import SIGKILL

import pytest

from penstock.bus import RawWriter, Stored
from penstock.bus.records.legs import QueuedLeg, Sent, SessionRecord
from penstock.bus.streams import RAW
from penstock.bus.subjects import raw_stored, session_key
from penstock.bus.write.fence import tail
from penstock.settings import Config
from penstock_approvals.service import ApprovalsService
from penstock_connector.service import ConnectorService
from penstock_connector.state import session_queue
from penstock_connector.state.claims import Sendings
from penstock_connector.state.leg_record import LegRecord
from penstock_connector.state.stores import open_stores
from penstock_connector.succession.reaper import Reaper
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import PIPELINE, Pipeline, Services, new_run_id, pipeline
from support.drive.steps import Step
from support.drive.waiting import eventually
from support.fakes.misbehaving import Misbehaving, agents, plays, stalls
from support.fakes.raw import agno_approved, agno_pause, agno_text
from support.real.connectors import DEAD, FAST, Hurt, connector_process
from support.real.nats import NatsServer

WITHOUT_CONNECTOR: Services = (NormalizerService, ApprovalsService)
PEER: Services = (ConnectorService,)


async def nothing_left(penstock: Pipeline, session_id: str, *run_ids: str) -> None:
    """Wait until no leg record names the runs and the session's queue is empty."""
    key = session_key("u1", "agno", session_id)

    async def probe() -> bool:
        entry = await penstock.bus.bucket("sessions").get(key)
        assert entry is not None
        queue = SessionRecord.model_validate_json(entry.value).queue
        held = await penstock.bus.bucket("claims").keys("active.>")
        return not queue and not [key for key in held if key.rpartition(".")[2] in run_ids]

    await eventually(probe, what="that nothing is left of the runs")


async def nothing_held(penstock: Pipeline, run_id: str) -> None:
    """Wait until no connector has a leg record of the run."""

    async def probe() -> bool:
        return not await penstock.bus.bucket("claims").keys(f"active.*.{run_id}")

    await eventually(probe, what="that nobody holds the run")


def reaps_later(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Return an event; connectors look for ended connectors only after it is set."""
    may_reap = asyncio.Event()
    reap = Reaper.reap

    async def reaps(self: Reaper) -> None:
        if may_reap.is_set():
            await reap(self)

    monkeypatch.setattr(Reaper, "reap", reaps)
    return may_reap


@pytest.mark.parametrize("by", ["the reaper", "who waits"])
async def test_a_kill_between_the_end_of_a_leg_and_its_turn_blocks_no_decision(
    nats_server: NatsServer,
    upstream: Misbehaving,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by: str,
) -> None:
    """The decision comes before any connector looks for the killed one.

    Another run waits behind it in the session.
    """
    may_reap = reaps_later(monkeypatch)
    session = f"s-{by}"
    monkeypatch.setattr(session_queue, "CHECK_AGAIN_S", 60 if by == "the reaper" else 0.1)
    upstream.script(plays(agno_pause()), plays(agno_approved()), plays(agno_text("x")))
    config = agents(upstream)
    async with pipeline(nats_server.url, config, WITHOUT_CONNECTOR) as penstock:
        dies = Hurt(Step.LEAVE)
        async with connector_process(penstock.bus, config, tmp_path, dies) as victim:
            paused = await penstock.start_run("agno", "delete", session_id=session)
            *_, asked = await penstock.events_until(paused, "lifecycle.paused")
            assert await victim.died() == -SIGKILL
        async with pipeline(nats_server.url, config, PEER, **FAST):
            await penstock.decide(asked.data["approval_id"])
            await penstock.events_until(paused, "lifecycle.resumed")
            following = await penstock.start_run("agno", "next", session_id=session)
            await penstock.events_until(following, "lifecycle.started")
            if by == "the reaper":
                may_reap.set()
            lasts = [(await penstock.ended(run))[-1].type for run in (paused, following)]
            may_reap.set()
            await nothing_left(penstock, session, paused, following)
    assert lasts == ["lifecycle.completed"] * 2
    assert len(upstream.calls) == 3


async def test_what_was_opened_is_not_sent_again_whatever_the_dead_ones_clock(
    nats_server: NatsServer, upstream: Misbehaving, tmp_path: Path
) -> None:
    """The killed connector's clock was 61 s ahead, and other runs have written to RAW since."""
    upstream.script(stalls, plays(agno_text("sent again")))
    config = agents(upstream)
    ahead = Hurt(Step.BYTES, ahead_s=61)
    async with pipeline(nats_server.url, config, WITHOUT_CONNECTOR) as penstock:
        async with connector_process(penstock.bus, config, tmp_path, ahead) as victim:
            run_id = await penstock.start_run("agno", "delete")
            await upstream.called()
            await victim.kill()
        opened = await tail(penstock.bus, RAW, raw_stored(run_id, "upstream"))
        assert opened is not None

        async def is_later() -> bool:
            """Return whether RAW has a frame that was stored more than 1.5 s after the `open`."""
            other = RawWriter(penstock.bus, new_run_id(), "test", "test/1")
            stored = await penstock.bus.at(RAW, await other.write("event", b"{}", leg=1))
            assert stored is not None
            return seconds_between(opened, stored) > 1.5

        await eventually(is_later, what="that others have written")
        async with pipeline(nats_server.url, config, PEER, **FAST):
            *_, last = await penstock.ended(run_id)
            await nothing_held(penstock, run_id)
    assert last.data["code"] == "outcome_unknown"
    assert len(upstream.calls) == 1


def seconds_between(earlier: Stored, later: Stored) -> float:
    """Return the seconds between two stored messages, by the server's clock."""
    begun, ended = (datetime.fromisoformat(each.stored_at) for each in (earlier, later))
    return (ended - begun).total_seconds()


async def sending(penstock: Pipeline, approval_id: str, state: str) -> None:
    """Wait until the record of the decision's sending has this state."""

    async def probe() -> bool:
        entry = await penstock.bus.bucket("sent").get(approval_id)
        return entry is not None and Sent.model_validate_json(entry.value).state == state

    await eventually(probe, what=f"the sending {state}")


async def test_two_kills_before_the_open_leave_nothing_that_blocks_the_third(
    nats_server: NatsServer,
    upstream: Misbehaving,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second connector took over the claim, and did not remove the first one's leg record."""
    may_reap = reaps_later(monkeypatch)
    upstream.script(plays(agno_text("x")))
    config = agents(upstream)
    soon = {"ack_wait_s": 1}
    session = f"s-{new_run_id()}"
    async with pipeline(nats_server.url, config, WITHOUT_CONNECTOR) as penstock:
        async with connector_process(
            penstock.bus, config, tmp_path, Hurt(Step.OPEN), **soon
        ) as first:
            run_id = await penstock.start_run("agno", "hello", session_id=session)
            assert await first.died() == -SIGKILL
        dies = Hurt(Step.TAKE_OVER_CLAIM, "after")
        async with connector_process(penstock.bus, config, tmp_path, dies, **soon) as second:
            assert await second.died() == -SIGKILL
        async with pipeline(nats_server.url, config, PEER, **FAST, **soon):
            following = await penstock.start_run("agno", "next", session_id=session)
            await penstock.events_until(run_id, "lifecycle.started")
            may_reap.set()
            lasts = [(await penstock.ended(run))[-1].type for run in (run_id, following)]
            await nothing_left(penstock, session, run_id, following)
    assert lasts == ["lifecycle.completed"] * 2
    assert len(upstream.calls) == 2


async def test_queue_entries_of_an_ended_connector_for_the_same_leg_block_nobody(
    nats_server: NatsServer, upstream: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The killed connector had taken over the start from a paused one.

    Then the paused connector woke up and opened the leg.
    """
    may_reap = reaps_later(monkeypatch)
    monkeypatch.setattr(session_queue, "CHECK_AGAIN_S", 0.1)
    upstream.script(plays(agno_text("x")))
    async with pipeline(nats_server.url, agents(upstream), PIPELINE, **FAST) as penstock:
        command = await penstock.register("agno", "hello")
        key = session_key("u1", "agno", command.session_id)
        record = SessionRecord(agent="agno", session_id=command.session_id)
        record.queue.append(QueuedLeg(run_id=command.run_id, leg=1, pod=DEAD))
        await penstock.bus.bucket("sessions").create(key, record.dump())
        noted = LegRecord(1, 1, "start", command.dump())
        await penstock.bus.bucket("claims").put(f"active.{DEAD}.{command.run_id}", noted.dump())
        await penstock.command("start", command)
        *_, last = await penstock.ended(command.run_id)
        may_reap.set()
        await nothing_left(penstock, command.session_id, command.run_id)
    assert last.type == "lifecycle.completed"
    assert len(upstream.calls) == 1


async def test_the_result_of_a_decision_is_recorded_at_any_kill(
    nats_server: NatsServer, upstream: Misbehaving, tmp_path: Path
) -> None:
    upstream.script(plays(agno_pause()), plays(agno_approved()))
    config = agents(upstream)
    async with pipeline(nats_server.url, config, WITHOUT_CONNECTOR) as penstock:
        dies = Hurt(Step.RECORD_SENDING)
        async with connector_process(penstock.bus, config, tmp_path, dies) as victim:
            run_id = await penstock.start_run("agno", "delete")
            *_, asked = await penstock.events_until(run_id, "lifecycle.paused")
            await penstock.decide(asked.data["approval_id"])
            await penstock.ended(run_id)
            assert await victim.died() == -SIGKILL
        async with pipeline(nats_server.url, config, PEER, **FAST):
            await sending(penstock, asked.data["approval_id"], "done")
            await nothing_held(penstock, run_id)
    assert len(upstream.calls) == 2


async def test_a_suspended_connector_that_sends_after_all_prevents_a_second_sending(
    nats_server: NatsServer,
    upstream: Misbehaving,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The paused connector wakes up after another connector has taken over the sending.

    The first one opens the leg before the second one does.
    """
    upstream.script(plays(agno_pause()), plays(agno_approved()))
    config = agents(upstream)
    sleeps = Hurt(Step.CLAIM_SENDING, "after", signal="SIGSTOP")
    take_over = Sendings.take_over
    async with (
        pipeline(nats_server.url, config, WITHOUT_CONNECTOR) as penstock,
        connector_process(penstock.bus, config, tmp_path, sleeps, ack_wait_s=1) as sleeper,
    ):

        async def takes_over(self: Sendings, approval_id: str, revision: int) -> bool:
            taken = await take_over(self, approval_id, revision)
            sleeper.wake()
            await upstream.called(2)
            return taken

        monkeypatch.setattr(Sendings, "take_over", takes_over)
        run_id = await penstock.start_run("agno", "delete")
        *_, asked = await penstock.events_until(run_id, "lifecycle.paused")
        await penstock.decide(asked.data["approval_id"])
        async with pipeline(nats_server.url, config, PEER, **FAST, ack_wait_s=1):
            *_, last = await penstock.ended(run_id)
            await sending(penstock, asked.data["approval_id"], "done")
            await nothing_held(penstock, run_id)
    assert last.type == "lifecycle.completed"
    assert len(upstream.calls) == 2


async def test_a_leg_leaves_the_queue_and_not_the_next_leg_of_its_run(
    nats_server: NatsServer,
) -> None:
    """A connector has both turns if it takes over the second leg before it leaves the queue."""
    async with pipeline(nats_server.url, Config(), ()) as penstock:
        sessions = open_stores(penstock.bus, "connector-a").sessions
        key = session_key("u1", "agno", new_run_id())
        for leg in (1, 2):
            mine = QueuedLeg(run_id="r", leg=leg, pod="connector-a", sequence=leg)
            await sessions.join(key, "agno", "s", "s", mine, owner="u1")
        await sessions.leave(key, "r", "connector-a", 1)
        entry = await penstock.bus.bucket("sessions").get(key)
    assert entry is not None
    queue = SessionRecord.model_validate_json(entry.value).queue
    assert [turn.leg for turn in queue] == [2]
