"""After a kill at any write of an action, there is one run or decision, and one outcome."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from penstock.bus import streams
from penstock.bus.read import direct
from penstock.bus.records.runs import RunRecord, StartCommand
from penstock_approvals.service import ApprovalsService
from support.drive.automations import rule_with, user, without_service
from support.drive.short import in_short
from support.drive.waiting import eventually
from support.fakes.pauses import continues, start_and_pause
from support.real.automating import automations_process
from support.real.nats import NatsServer

AGENTS = """
agents:
  - {id: assistant, protocol: agno, url: "http://127.0.0.1:9", agent: demo}
"""
RUN = {"agent": "assistant", "message": "Run {{ event.run_id }} has begun"}


# The writes of one started run: the job, automation.triggered, the plan, the run's record, the
# command of the start, the record of the delivery, the outcome.
@pytest.mark.parametrize("write", in_short(range(1, 8), [6]))
async def test_a_kill_at_any_step_of_a_start_leaves_one_run_and_one_outcome(
    fresh_nats: NatsServer, tmp_path: Path, write: int
) -> None:
    config = tmp_path / "penstock.yaml"
    config.write_text(AGENTS)
    async with without_service(fresh_nats.url) as made:
        await made.store.apply(rule_with("next", {"run": RUN}, "lifecycle.started"), user("u1"))
        run = await made.run()
        async with automations_process(
            fresh_nats.url, dies_before=write, config=str(config)
        ) as victim:
            await run.open()
            assert await victim.process.ended() == -signal.SIGKILL
        async with automations_process(fresh_nats.url, config=str(config)) as other:
            [outcome] = await made.outcomes(run.run_id, 1)
            assert await other.stop() == 0
        id = f"next.{run.run_id}.1"
        assert await made.said(run.run_id) == [
            ("automation.triggered", id),
            ("automation.completed", id),
        ]
        entries = await made.bus.bucket("runs").entries()
        records = [RunRecord.model_validate_json(each.value) for each in entries]
        [child] = [each.run_id for each in records if each.automations == ["next"]]
        assert child == outcome.data["started_run_id"]
        starts = direct.replay(made.bus, streams.COMMANDS, "command.connector.start.*")
        commands = [StartCommand.model_validate_json(each.payload) async for each in starts]
        assert [(each.run_id, each.message) for each in commands] == [
            (child, f"Run {run.run_id} has begun")
        ]
        assert await made.bus.tail(streams.DELIVERIES, "delivery.>") is None


# The writes of one started run up to the record of the delivery, as above.
@pytest.mark.parametrize(
    ("write", "started"), in_short([(4, False), (5, True), (6, True)], [(4, False), (5, True)])
)
async def test_a_run_that_was_begun_when_its_rule_goes_is_started_and_told(
    fresh_nats: NatsServer, tmp_path: Path, write: int, started: bool
) -> None:
    config = tmp_path / "penstock.yaml"
    config.write_text(AGENTS)
    async with without_service(fresh_nats.url) as made:
        await made.store.apply(rule_with("next", {"run": RUN}, "lifecycle.started"), user("u1"))
        run = await made.run()
        async with automations_process(
            fresh_nats.url, dies_before=write, config=str(config)
        ) as victim:
            await run.open()
            assert await victim.process.ended() == -signal.SIGKILL
        assert await made.store.delete("next")
        async with automations_process(fresh_nats.url, config=str(config)) as other:
            [outcome] = await made.outcomes(run.run_id, 1)
            assert await other.stop() == 0
        starts = direct.replay(made.bus, streams.COMMANDS, "command.connector.start.*")
        commands = [StartCommand.model_validate_json(each.payload) async for each in starts]
        if started:
            assert outcome.type == "automation.completed"
            assert [each.run_id for each in commands] == [outcome.data["started_run_id"]]
            assert [each.user_id for each in commands] == ["u1"]
        else:
            assert outcome.data["error"]["code"] == "rule_deleted"
            assert "perhaps after an attempt" in outcome.data["error"]["message"]
            assert commands == []


# The writes of one decision: the job, automation.triggered, (the request), the record, the outcome.
@pytest.mark.parametrize("write", in_short(range(1, 5), [4]))
async def test_a_kill_at_any_step_of_a_decision_leaves_one_decision_and_one_outcome(
    fresh_nats: NatsServer, write: int
) -> None:
    async with without_service(fresh_nats.url, ApprovalsService) as made:
        gate = rule_with("gate", {"decide": {"decision": "approve"}}, "approval.requested")
        await made.store.apply(gate, user("u1"))
        async with automations_process(fresh_nats.url, dies_before=write) as victim:
            run_id = await start_and_pause(made.penstock)
            assert await victim.process.ended() == -signal.SIGKILL
        async with automations_process(fresh_nats.url) as other:
            [outcome] = await made.outcomes(run_id, 1)
            assert await other.stop() == 0
        assert outcome.type == "automation.completed"
        await made.penstock.events_until(run_id, "approval.decided")

        async def sent() -> bool:
            return bool(await continues(made.penstock, run_id))

        await eventually(sent, what="the run's continuation")
        assert len(await continues(made.penstock, run_id)) == 1
        assert [type_ for type_, _ in await made.said(run_id)] == [
            "automation.triggered",
            "automation.completed",
        ]
