"""A hook and a schedule start a workflow, which runs to its end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from penstock.bus.records.runs import RunRecord
from penstock.settings import Config, WorkflowAgent
from penstock_automations.rules.check import read_rule
from penstock_automations.rules.model import Rule
from penstock_normalizer.service import NormalizerService
from penstock_workflows.service import WorkflowsService
from support.drive.automations import Automations, automations, user
from support.drive.waiting import eventually
from support.drive.workflows import define, definition
from support.real.nats import NatsServer

CONFIG = Config(agents=[WorkflowAgent(id="greet", protocol="workflow", agent="greeting")])
GREETING = """
dsl: penstock/1
name: greeting
version: "1"
input: {type: object, properties: {who: {type: string}}}
steps: {hello: {set: '"Hello " + input.who'}}
output: hello.output
"""
TOKEN = "a-token-of-more-than-24-characters"


def starting(id: str, **trigger: object) -> Rule:
    who = "{{ event.data.who }}" if id == "hooked" else "{{ event.data.timezone }}"
    run = {"agent": "greet", "message": "go", "input": {"who": who}}
    return read_rule({"id": id, **trigger, "action": {"run": run}}, Rule)


async def run_of(made: Automations, rule_id: str) -> RunRecord:
    """Return the record of the only run that the rule has started."""

    async def probe() -> RunRecord | None:
        entries = await made.bus.bucket("runs").entries()
        records = [RunRecord.model_validate_json(each.value) for each in entries]
        found = [each for each in records if each.automations == [rule_id]]
        assert len(found) <= 1
        return found[0] if found else None

    found = await eventually(probe, 60, what="the run of the workflow")
    assert found is not None
    return found


async def test_a_hook_and_a_schedule_start_a_workflow(fresh_nats: NatsServer) -> None:
    others = (NormalizerService, WorkflowsService)
    async with automations(fresh_nats.url, config=CONFIG, others=others) as made:
        await define(made.bus, definition(GREETING))
        hooked = starting("hooked", hook={"tokens": [TOKEN]})
        await made.apply(hooked)
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        for _ in range(2):  # a caller repeats its request
            answer = await made.penstock.http.post(
                "/v1/hooks/hooked",
                content=b'{"who": "Ada"}',
                headers={**headers, "idempotency-key": "order-1"},
            )
            assert answer.status_code == 202, answer.text

        missed = (datetime.now(UTC) - timedelta(minutes=2)).replace(second=0, microsecond=0)
        cron = {"cron": f"{missed.minute} {missed.hour} * * *"}
        timed = starting("timed", schedule=cron).model_copy(update={"enabled": False})
        await made.store.apply(timed, user("u1"))
        stored = await made.store.get("timed")
        assert stored is not None
        # The schedule came into force an hour ago, so that it has missed a time.
        record = stored.record.model_copy(
            update={
                "rule": stored.record.rule.model_copy(update={"enabled": True}),
                "since": stored.record.since - 3600,
            }
        )
        await made.store.put(record, stored.revision)

        for rule_id, greeted in (("hooked", "Hello Ada"), ("timed", "Hello UTC")):
            run = await run_of(made, rule_id)
            assert (run.target, run.agent) == ("workflows", "greet")
            events = await made.penstock.events_until(run.run_id, "lifecycle.completed", 60)
            types = [each.type for each in events]
            assert types.index("workflow.started") < types.index("workflow.completed")
            [ended] = [each for each in events if each.type == "lifecycle.completed"]
            assert greeted in str(ended.data)
            [outcome] = await made.outcomes(run.run_id, 1, 60)
            assert outcome.data["started_run_id"] == run.run_id
