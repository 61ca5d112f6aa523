"""Connectors that are hurt at an exact write: no run waits for ever, and none is sent twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from signal import SIGKILL

import pytest

from penstock.bus.records import SessionRecord
from penstock.bus.subjects import session_key
from penstock_approvals.service import ApprovalsService
from penstock_connector import claims
from penstock_connector.service import ConnectorService
from penstock_connector.succession import Succession
from penstock_normalizer.service import NormalizerService
from support.connectors import FAST, Hurt, connector_process
from support.misbehaving import Misbehaving, agents, plays
from support.nats import NatsServer
from support.pipeline import Pipeline, Services, pipeline
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
