"""A connector is killed while starts wait at it and their user has reached the limit of runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.drive.waiting import eventually
from support.fakes.issuer import SECRET, token
from support.fakes.misbehaving import Answer, misbehaving
from support.fakes.raw import agno_text
from support.real.deployment import deployment
from support.real.nats import NatsServer

RUNS, LEGS = 10, 2


@pytest.mark.timeout(180)
async def test_starts_that_wait_at_a_killed_connector_begin_at_another_and_their_user_has_room(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    let_go = asyncio.Event()

    async def answers(answer: Answer) -> None:
        await let_go.wait()
        await answer.whole(agno_text("x"))

    settings = {
        **{"auth_jwt_secret": SECRET, "max_open_runs_per_user": RUNS, "max_legs": LEGS},
        # Neither the lease nor the acknowledgement wait (600 s) expires during the test, so the
        # recovery does not depend on them.
        **{"pod_ttl_s": 600, "ack_wait_s": 600},
    }
    headers = {"authorization": f"Bearer {token(sub='ada', scope='start read')}"}
    async with misbehaving() as upstream:
        upstream.script(answers)
        agents = [{"id": "agent", "protocol": "agno", "url": upstream.url}]
        count = {"normalizer": 1, "connector": 1, "edge": 1}
        async with deployment(fresh_nats.url, tmp_path, agents, count, **settings) as penstock:
            penstock.http.headers.update(headers)
            runs = [await penstock.run("agent", f"run {number}") for number in range(RUNS)]
            await upstream.called(LEGS)
            body = {"agent": "agent", "message": "one too many"}
            refused = await penstock.http.post(f"{penstock.edge()}/v1/runs", json=body)
            assert refused.status_code == 429, refused.text
            assert refused.json()["limit"] == "open_runs"
            (victim,) = penstock.of("connector")
            await penstock.start("connector")
            await penstock.kill(victim)
            let_go.set()
            ends = [(await penstock.all(run_id))[-1] for run_id in runs]

            async def begun() -> str:
                answer = await penstock.http.post(f"{penstock.edge()}/v1/runs", json=body)
                return str(answer.json()["run_id"]) if answer.status_code == 202 else ""

            after = await eventually(begun, 30, "room for a run")
            assert after
            assert (await penstock.all(after))[-1].type == "lifecycle.completed"
    said = [call.form["message"] for call in upstream.calls]
    assert len(said) == len(set(said)) == RUNS + 1  # each message was sent once
    lost = {end.data.get("code", "") for end in ends if end.type == "lifecycle.failed"}
    # Only runs whose connection the killed connector held may fail, and only with these codes.
    assert lost <= {"outcome_unknown", "upstream_lost"}
    assert [end.type for end in ends].count("lifecycle.completed") == RUNS - LEGS
