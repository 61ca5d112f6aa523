"""Connectors that are hurt at an exact write: no run waits for ever, and none is sent twice."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path
from signal import SIGKILL

import pytest

from penstock.bus import Stored
from penstock.bus.fence import RawWriter, tail
from penstock.bus.records import SessionRecord
from penstock.bus.streams import RAW
from penstock.bus.subjects import raw_stored, session_key
from penstock_approvals.service import ApprovalsService
from penstock_connector import claims
from penstock_connector.service import ConnectorService
from penstock_connector.succession import Succession
from penstock_normalizer.service import NormalizerService
from support.connectors import FAST, Hurt, connector_process
from support.misbehaving import Misbehaving, agents, plays, stalls
from support.nats import NatsServer
from support.pipeline import Pipeline, Services, new_run_id, pipeline
from support.raw import agno_approved, agno_pause, agno_text
from support.steps import Step
from support.waiting import eventually

WITHOUT_CONNECTOR: Services = (NormalizerService, ApprovalsService)
PEER: Services = (ConnectorService,)


async def nothing_left(penstock: Pipeline, session_id: str, *run_ids: str) -> None:
    """Once no leg is noted as held, and nobody stands in the session's queue."""
    key = session_key("u1", "agno", session_id)

    async def probe() -> bool:
        entry = await penstock.bus.bucket("sessions").get(key)
        assert entry is not None
        queue = SessionRecord.model_validate_json(entry.value).queue
        held = await penstock.bus.bucket("claims").keys("active.>")
        return not queue and not [key for key in held if key.rpartition(".")[2] in run_ids]

    await eventually(probe, what="that nothing is left of the runs")


async def nothing_held(penstock: Pipeline, run_id: str) -> None:
    """Once no connector notes a leg of the run."""

    async def probe() -> bool:
        return not await penstock.bus.bucket("claims").keys(f"active.*.{run_id}")

    await eventually(probe, what="that nobody holds the run")


@pytest.mark.parametrize("by", ["the reaper", "who waits"])
async def test_a_kill_between_the_end_of_a_leg_and_its_turn_holds_up_no_decision(
    nats_server: NatsServer,
    upstream: Misbehaving,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by: str,
) -> None:
    """The decision comes before anybody has looked after the dead one; a run waits behind it."""
    may_reap = asyncio.Event()
    reap = Succession.reap

    async def reaps_later(self: Succession) -> None:
        if may_reap.is_set():
            await reap(self)

    session = f"s-{by}"
    monkeypatch.setattr(Succession, "reap", reaps_later)
    monkeypatch.setattr(claims, "LOOK_AGAIN_S", 60 if by == "the reaper" else 0.1)
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
    """Its clock was 61 s ahead; others have written to RAW since."""
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
            """Once RAW has a frame that was stored more than a second after it."""
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
    """By the server's clock."""
    begun, ended = (datetime.fromisoformat(each.stored_at) for each in (earlier, later))
    return (ended - begun).total_seconds()
