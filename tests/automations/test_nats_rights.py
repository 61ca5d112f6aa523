"""The service's own NATS user may do what rules ask for, also with several shards."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.bus import subjects
from penstock.bus.admin.migrate import reshard
from penstock.bus.records.runs import RunRecord
from penstock.bus.records.webhooks import Push, PushReply, PushRequest
from penstock.bus.subjects import shard_of
from penstock.runs import open_runs
from penstock.settings import AgnoAgent, Config
from penstock_approvals.service import ApprovalsService
from penstock_normalizer.service import NormalizerService
from support.drive.automations import DrivenRun, automations, rule_with
from support.drive.bus import connected
from support.fakes.pauses import start_and_pause
from support.real.nats import NatsServer, write_passwords

CONFIG = Config(
    agents=[AgnoAgent(id="assistant", protocol="agno", url="http://127.0.0.1:9", agent="demo")]
)
RUN = {
    "agent": "assistant",
    "message": "Go on",
    "session_id": "of {{ event.data.agent }}",
}


async def test_rules_start_runs_and_decide_with_the_services_own_nats_user(
    fresh_nats: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_runs, "LOST_S", 0.0)
    monkeypatch.setattr(open_runs, "CHECK_S", 0.0)
    async with connected(fresh_nats.url) as bus:
        await reshard(bus, 3, settle_s=0)
    async with automations(
        fresh_nats.url,
        config=CONFIG,
        others=(NormalizerService, ApprovalsService),
        nats_passwords=write_passwords(tmp_path),
        max_open_runs_per_user=6,
    ) as made:
        await made.apply(rule_with("next", {"run": RUN}, "lifecycle.started"), "u2")
        gate = {"decide": {"decision": "approve"}}
        await made.apply(rule_with("gate", gate, "approval.requested"))
        paused = await start_and_pause(made.penstock)
        [decided] = await made.outcomes(paused, 1)
        assert decided.type == "automation.completed"
        shards = set()
        for number in range(4):
            run = await made.run("u2", status="completed")
            await run.open()
            [started] = await made.outcomes(run.run_id, 1)
            # The started runs are open, too. At the limit, the runs that are counted are looked up
            # in COMMANDS and RAW.
            expected = "automation.completed" if number < 3 else "automation.failed"
            assert started.type == expected
            if number < 3:
                child = str(started.data["started_run_id"])
                shards.add(shard_of(child))
                await DrivenRun(made.bus, child, "u2").open()
        records = [
            RunRecord.model_validate_json(each.value)
            for each in await made.bus.bucket("runs").entries()
        ]
        assert sum(each.automations == ["next"] for each in records) == 3
        assert len(shards) == 1, "the runs of a session are in one shard"
        run = await made.run()
        await run.open()
        push = Push(id="p", url=made.receiver.url("/push"))
        request = PushRequest(user_id="u1", add=push)
        answer = await made.bus.request(subjects.push(run.run_id), request.dump(), 10)
        assert PushReply.model_validate_json(answer.data).status == 200
        await made.receiver.count(1, "/push")
        made.receiver.bad_signatures.clear()  # nobody knows the secret of this rule
