"""A rule starts a run of its owner, once for each delivery, whatever is repeated."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from penstock.budgets.admission import CurrentBudgets
from penstock.bus import (
    Bus,
    BusError,
    BusUnavailable,
    Message,
    OutcomeUnknown,
    StreamFull,
    streams,
    subjects,
)
from penstock.bus.admin import replay
from penstock.bus.messages import now
from penstock.bus.read import direct
from penstock.bus.records.runs import RunRecord, StartCommand
from penstock.bus.records.workflows import LatestWorkflow, WorkflowRecord
from penstock.bus.state import deadletters
from penstock.bus.write.objects import unwrap
from penstock.runs.start import Start, Started, Starter
from penstock.settings import AdkAgent, AgnoAgent, Config, WorkflowAgent
from penstock_automations.jobs.job import Job, TriggerSource
from penstock_automations.jobs.publish import publish
from penstock_automations.rules.records import Owner
from support.drive.automations import Automations, DrivenRun, automations, rule_with, user
from support.drive.bus import connected
from support.drive.waiting import eventually
from support.real.nats import NatsServer

CONFIG = Config(
    agents=[
        AgnoAgent(
            id="assistant",
            protocol="agno",
            url="http://127.0.0.1:9",
            agent="demo",
            accepts=["dependencies"],
        ),
        AdkAgent(id="helper", protocol="adk", url="http://127.0.0.1:9", agent="vana"),
        WorkflowAgent(id="review", protocol="workflow", agent="code_review"),
        WorkflowAgent(id="undefined", protocol="workflow"),
    ]
)
RUN = {"agent": "assistant", "message": "The run {{ event.run_id }} has ended."}
HOOK = {
    "timestamp": "2026-11-22T10:00:00.000Z",
    "event": {"category": "hook", "action": "received"},
    "data": {"order": 7},
}


async def started_by(
    made: Automations, rule_id: str, target: str = "connector"
) -> list[StartCommand]:
    """Return the starts in COMMANDS that the rule has asked for, in order."""
    found = []
    async for stored in direct.replay(
        made.bus, streams.COMMANDS, subjects.command(target, "start", "*")
    ):
        command = StartCommand.model_validate_json(await unwrap(made.bus, stored.payload))
        if (command.idempotency_key or "").startswith(f"{rule_id}."):
            found.append(command)
    return found


async def record_of(bus: Bus, run_id: str) -> RunRecord:
    entry = await bus.bucket("runs").get(run_id)
    assert entry is not None
    return RunRecord.model_validate_json(entry.value)


async def completed(made: Automations, user_id: str = "u1") -> DrivenRun:
    run = await made.run(user_id)
    await run.open()
    await run.complete()
    return run


async def test_a_rule_starts_a_run_of_its_owner_and_says_which(nats_server: NatsServer) -> None:
    async with automations(nats_server.url, config=CONFIG) as made:
        action = {
            "run": {
                **RUN,
                "session_id": "after-{{ event.session_id }}",
                "tags": {"team": "follow-up"},
                "input": {"dependencies": {"number": "{{ event.sequence }}", "n": [1, True]}},
            }
        }
        await made.apply(rule_with("follow", action, "lifecycle.completed", name="Follow up"))
        run = await completed(made)
        [outcome] = await made.outcomes(run.run_id, 1)
        [command] = await started_by(made, "follow")
        completed_at = int(str(outcome.data["delivery_id"]).rpartition(".")[2])
        assert command.message == f"The run {run.run_id} has ended."
        assert command.session_id == f"after-s-{run.run_id}"
        assert command.input == {"dependencies": {"number": completed_at, "n": [1, True]}}
        assert (command.agent, command.user_id) == ("assistant", "u1")
        assert command.parent_run_id == run.run_id
        assert command.idempotency_key == outcome.data["delivery_id"]
        record = await record_of(made.bus, command.run_id)
        assert (record.automations, record.depth) == (["follow"], 1)
        assert record.tags == command.tags == {"team": "follow-up"}
        assert (record.parent_run_id, record.user_id) == (run.run_id, "u1")
        assert outcome.type == "automation.completed"
        assert outcome.data["started_run_id"] == command.run_id
        assert outcome.data["result"] == f"started run {command.run_id} of agent assistant"
        assert "status_code" not in outcome.data
        delivery = await made.delivery("follow", run.run_id, completed_at)
        assert (delivery.status, delivery.started_run_id) == ("delivered", command.run_id)


async def test_a_rule_starts_a_workflow_if_its_input_fits(nats_server: NatsServer) -> None:
    async with automations(nats_server.url, config=CONFIG) as made:
        record = WorkflowRecord(
            name="code_review",
            version="1",
            digest="",
            definition={},
            input_schema={"type": "object", "properties": {"diff": {"type": "string"}}},
            created_at=now(),
            created_by="ada",
        )
        bucket = made.bus.bucket("workflows")
        await bucket.put("v.code_review.1", record.dump())
        await bucket.put("latest.code_review", LatestWorkflow(version="1").dump())
        for rule_id, agent, input in (
            ("fits", "review", {"diff": "{{ event.data.summary }}"}),
            ("misfits", "review", {"diff": "{{ event.sequence }}"}),
            ("nothing", "undefined", {}),
        ):
            action = {"run": {"agent": agent, "message": "Review", "input": input}}
            await made.apply(rule_with(rule_id, action, "lifecycle.completed"))
        run = await completed(made)
        told = await made.outcomes(run.run_id, 3)
        outcomes = {str(each.data["delivery_id"]).split(".")[0]: each for each in told}
        [command] = await started_by(made, "fits", "workflows")
        others = [await started_by(made, rule_id, "workflows") for rule_id in outcomes]
        kept = await record_of(made.bus, command.run_id)
    assert sum(map(len, others)) == 1
    assert command.input is not None
    assert command.input["message"] == "Review"
    assert (command.version, command.depth, command.automations) == ("1", 1, ["fits"])
    assert (kept.target, kept.depth) == ("workflows", 1)
    assert outcomes["fits"].type == "automation.completed"
    errors = {rule: outcomes[rule].data["error"] for rule in ("misfits", "nothing")}
    assert errors["misfits"]["code"] == "not_accepted"
    assert "input.diff: must be string" in errors["misfits"]["message"]
    assert errors["nothing"]["code"] == "unknown_agent"
    assert "there is no workflow 'undefined'" in errors["nothing"]["message"]


async def test_a_job_that_is_delivered_again_and_replayed_starts_no_second_run(
    nats_server: NatsServer,
) -> None:
    """The record of the delivery and the idempotency key, which is kept for 24 hours, are lost."""
    async with automations(nats_server.url, config=CONFIG) as made:
        await made.apply(rule_with("once", {"run": RUN}, "lifecycle.completed"))
        run = await completed(made)
        [outcome] = await made.outcomes(run.run_id, 1)
        sequence = int(str(outcome.data["delivery_id"]).rpartition(".")[2])
        key = f"once.{run.run_id}-{sequence}"
        deliveries = made.bus.bucket("deliveries")
        entry = await deliveries.get(key)
        assert entry is not None
        first = await made.delivery("once", run.run_id, sequence)
        await deliveries.delete(key, entry.revision)
        await made.bus.publisher.publish(
            Message(subjects.delivery("once", run.run_id, sequence), orjson.dumps(first.job), {})
        )

        async def again() -> bool:
            found = await deliveries.get(key)
            return found is not None

        await eventually(again, what="the second handling")
        assert len(await started_by(made, "once")) == 1
        second = await made.delivery("once", run.run_id, sequence)
        assert second.started_run_id == first.started_run_id


async def test_a_replay_of_a_delivery_that_has_started_its_run_starts_nothing(
    nats_server: NatsServer,
) -> None:
    """The plan is older than the delivery's record, so it has expired first."""
    async with automations(nats_server.url, config=CONFIG) as made:
        await made.apply(rule_with("again", {"run": RUN}, "lifecycle.completed"))
        run = await completed(made)
        [first] = await made.outcomes(run.run_id, 1)
        sequence = int(str(first.data["delivery_id"]).rpartition(".")[2])
        deliveries = made.bus.bucket("deliveries")
        key = f"run.again.{run.run_id}-{sequence}"
        entry = await deliveries.get(key)
        assert entry is not None
        await deliveries.delete(key, entry.revision)
        delivery = await made.delivery("again", run.run_id, sequence)
        await publish(made.bus, Job.parse(orjson.dumps(delivery.job)).replayed())
        *_, second = await made.outcomes(run.run_id, 2)
        assert second.data["started_run_id"] == first.data["started_run_id"]
        assert "was started before" in second.data["result"]
        assert len(await started_by(made, "again")) == 1


NO_START = Owner(user_id="u1", scopes=["automate", "decide", "read"])
FAILURES: dict[str, tuple[dict[str, Any], Owner, str, str]] = {
    "an agent that does not exist": (
        {**RUN, "agent": "nobody"},
        user("u1"),
        "unknown_agent",
        "nobody",
    ),
    "an owner that never had the scope": (RUN, NO_START, "not_allowed", "the scope start"),
    "a template that names a missing field": (
        {**RUN, "message": "x {{ event.data.metrics.nope }}"},
        user("u1"),
        "template",
        "no event.data.metrics.nope",
    ),
    "an input that the agent does not accept": (
        {**RUN, "input": {"model": "other"}},
        user("u1"),
        "not_accepted",
        "model",
    ),
    "an answer to a pause in the input": (
        {**RUN, "input": {"requirements": ["{{ event.run_id }}"]}},
        user("u1"),
        "not_accepted",
        "could answer a pause",
    ),
    "a session that no path of the server can have": (
        {**RUN, "agent": "helper", "session_id": "a/{{ event.run_id }}"},
        user("u1"),
        "not_accepted",
        "slash",
    ),
    "a session id that is too long": (
        {**RUN, "session_id": "x" * 513},
        user("u1"),
        "not_accepted",
        "512 characters",
    ),
}


@pytest.mark.parametrize("case", FAILURES)
async def test_a_run_that_cannot_be_started_is_a_final_outcome(
    nats_server: NatsServer, case: str
) -> None:
    action, owner, code, reason = FAILURES[case]
    async with automations(nats_server.url, config=CONFIG) as made:
        await made.store.apply(rule_with("bad", {"run": action}, "lifecycle.completed"), owner)
        await made.settled()
        run = await completed(made)
        [outcome] = await made.outcomes(run.run_id, 1)
        assert outcome.type == "automation.failed"
        assert outcome.data["error"]["code"] == code
        assert reason in outcome.data["error"]["message"]
        assert outcome.data["error"]["retryable"] is False
        assert outcome.data["attempts"] == 1
        assert await started_by(made, "bad") == []


async def test_a_user_with_too_many_runs_is_tried_again_later(nats_server: NatsServer) -> None:
    async with automations(nats_server.url, config=CONFIG, max_open_runs_per_user=1) as made:
        await made.apply(rule_with("full", {"run": RUN}, "lifecycle.completed"), "busy")
        blocking = await made.run("busy")  # queued
        run = await made.run("busy")
        await run.open()
        await run.complete()
        await made.penstock.events_until(run.run_id, "automation.triggered")

        async def waits() -> bool:
            events = await made.penstock.events_until(run.run_id, "lifecycle.completed")
            record = await made.delivery("full", run.run_id, events[-1].sequence)
            return record.attempts[0].code == "too_many_runs"

        await eventually(waits, what="the first attempt")
        assert await started_by(made, "full") == []
        record = await record_of(made.bus, blocking.run_id)
        ended = record.model_copy(update={"status": "cancelled"})
        await made.bus.bucket("runs").put(blocking.run_id, ended.dump())
        [outcome] = await made.outcomes(run.run_id, 1)
        assert outcome.type == "automation.completed"
        assert len(await started_by(made, "full")) == 1


async def test_a_start_that_a_budget_refuses_is_tried_again_and_starts_when_there_is_room(
    fresh_nats: NatsServer,
) -> None:
    day: dict[str, Any] = {
        **{"id": "day", "per": "user", "window": "day", "reserve": "1 tool_calls"},
        "at": [{"share": 1.0, "do": "refuse"}],
    }
    async with connected(fresh_nats.url) as bus:
        budgets = CurrentBudgets(bus)
        limited = {**day, "limit": {"tool_calls": 1}}
        await budgets.apply({"version": 1, "budgets": [limited]}, "root")
        async with automations(fresh_nats.url, config=CONFIG) as made:
            await made.apply(rule_with("spend", {"run": RUN}, "lifecycle.completed"))
            first = await completed(made)
            [outcome] = await made.outcomes(first.run_id, 1)
            assert outcome.type == "automation.completed", "there is room for one run"
            second = await completed(made)
            events = await made.penstock.events_until(second.run_id, "automation.triggered")
            [ended] = [each for each in events if each.type == "lifecycle.completed"]

            async def refused() -> bool:
                record = await made.delivery("spend", second.run_id, ended.sequence)
                return [each.code for each in record.attempts] == ["budget"]

            await eventually(refused, what="the first attempt")
            wider = {**day, "limit": {"tool_calls": 2}}
            await budgets.apply({"version": 2, "budgets": [wider]}, "root")
            [outcome] = await made.outcomes(second.run_id, 1)
            assert outcome.type == "automation.completed"
            assert len(await started_by(made, "spend")) == 2


@pytest.mark.parametrize(
    ("fault", "attempts", "code"),
    [
        (StreamFull("COMMANDS is full"), 2, "queue_full"),
        (BusUnavailable("no connection"), 1, ""),
        (OutcomeUnknown("no acknowledgement"), 1, ""),
    ],
)
async def test_a_fault_of_the_bus_delays_the_run_and_starts_no_second_one(
    nats_server: NatsServer,
    monkeypatch: pytest.MonkeyPatch,
    fault: BusError,
    attempts: int,
    code: str,
) -> None:
    """A start whose outcome is unknown may have been stored."""
    real, left = Starter.start, [fault]

    async def start(self: Starter, asked: Start) -> Started:
        if left and isinstance(left[0], OutcomeUnknown):
            await real(self, asked)
        if left:
            raise left.pop()
        return await real(self, asked)

    monkeypatch.setattr(Starter, "start", start)
    name = type(fault).__name__.lower()
    async with automations(nats_server.url, config=CONFIG) as made:
        await made.apply(rule_with(name, {"run": RUN}, "lifecycle.completed"))
        run = await completed(made)
        [outcome] = await made.outcomes(run.run_id, 1)
        assert (outcome.type, outcome.data["attempts"]) == ("automation.completed", attempts)
        sequence = int(str(outcome.data["delivery_id"]).rpartition(".")[2])
        record = await made.delivery(name, run.run_id, sequence)
        assert record.attempts[0].code == code
        assert len(await started_by(made, name)) == 1


async def test_a_rule_does_not_see_the_runs_that_it_started_unless_it_says_loops(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url, config=CONFIG) as made:
        await made.apply(rule_with("modest", {"run": RUN}, "lifecycle.completed"))
        await made.apply(rule_with("loops", {"run": RUN}, "lifecycle.completed", loops=True), "u2")
        run = await completed(made)
        await made.outcomes(run.run_id, 1)
        [child] = await played(made, "modest", 1)
        other = await completed(made, "u2")
        depths = []
        for number in range(1, 5):
            *_, command = await played(made, "loops", number)
            depths.append((await record_of(made.bus, command.run_id)).depth)
        assert depths == [1, 2, 3, 4]
        # The run of depth 4 triggers nothing, and an event on its timeline says so.
        [refusal] = await made.outcomes(command.run_id, 1)
        assert refusal.data["error"]["code"] == "depth"
        assert "4 rules led to this event" in refusal.data["error"]["message"]
        assert len(await started_by(made, "loops")) == 4
        assert len(await started_by(made, "modest")) == 1
        assert (await started_by(made, "loops"))[0].parent_run_id == other.run_id
        assert child.parent_run_id == run.run_id


async def test_a_rule_with_loops_starts_no_more_runs_than_one_run_may_lead_to(
    nats_server: NatsServer,
) -> None:
    """A rule with `loops` on `llm.stream` has made 1,252 calls in 30 s."""
    budget: dict[str, Any] = {
        "max_runs_per_root": 8,
        "max_open_runs_per_user": 0,
        "max_queued_runs_per_user": 0,
    }
    async with automations(nats_server.url, config=CONFIG, **budget) as made:
        loop = {"run": {**RUN, "message": "{{ event.data.content }}"}}
        await made.apply(rule_with("loop", loop, "llm.stream", loops=True))
        root = await made.run()
        await talk(root)
        assert {each.type for each in await made.outcomes(root.run_id, 3)} == {
            "automation.completed"
        }
        # Each run says as much as its parent: without a budget, 9 runs follow, then 27.
        children = await started_by(made, "loop")
        outcomes = []
        for command in children:
            child = DrivenRun(made.bus, command.run_id, command.user_id)
            await talk(child)
            outcomes += await made.outcomes(child.run_id, 3)
        refused = [each for each in outcomes if each.type == "automation.failed"]
        assert {each.data["error"]["code"] for each in refused} == {"limit_exceeded"}
        assert len(refused) == 3 * 3 - (8 - 3)
        assert len(await started_by(made, "loop")) == 8


async def talk(run: DrivenRun) -> None:
    await run.open()
    for number in range(3):
        await run.text(f"token {number}")


async def played(made: Automations, rule_id: str, count: int) -> list[StartCommand]:
    """Wait for this many starts by the rule; act as the connector of the last run."""

    async def enough() -> list[StartCommand] | None:
        found = await started_by(made, rule_id)
        return found if len(found) >= count else None

    found = await eventually(enough, 30, what=f"{count} starts")
    assert found is not None
    run = DrivenRun(made.bus, found[-1].run_id, found[-1].user_id)
    await run.open()
    await run.complete()
    return found


async def test_two_rules_that_start_each_others_agents_end_at_the_depth(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url, config=CONFIG) as made:
        for name, agent, other in (("a", "assistant", "helper"), ("b", "helper", "assistant")):
            # The agent of an event is in its source; here the session says who started the run.
            await made.apply(
                rule_with(
                    name,
                    {"run": {**RUN, "agent": other, "session_id": f"of-{name}"}},
                    "lifecycle.completed",
                    where=f'event.session_id != "of-{name}"',
                    loops=True,
                )
            )
            assert agent != other
        run = await completed(made)
        await made.outcomes(run.run_id, 2)
        seen: set[str] = set()
        deepest = 0
        while True:
            open_ = [
                each
                for rule_id in ("a", "b")
                for each in await started_by(made, rule_id)
                if each.run_id not in seen
            ]
            if not open_:
                break
            for command in open_:
                seen.add(command.run_id)
                depth = (await record_of(made.bus, command.run_id)).depth or 0
                deepest = max(deepest, depth)
                child = DrivenRun(made.bus, command.run_id, command.user_id, command.session_id)
                await child.open()
                await child.complete()
                [outcome] = await made.outcomes(command.run_id, 1)
                if depth == 4:
                    assert outcome.data["error"]["code"] == "depth"
                else:
                    assert outcome.type == "automation.completed"
        assert deepest == 4
        assert len(seen) == 2 * 4


async def test_an_event_of_another_users_run_fills_no_template(nats_server: NatsServer) -> None:
    async with automations(nats_server.url, config=CONFIG) as made:
        await made.apply(rule_with("spy", {"run": RUN}, "lifecycle.*"), "mallory")
        run = await completed(made, "alice")
        own = await completed(made, "mallory")
        await made.outcomes(own.run_id, 1)
        assert run.run_id not in str(await started_by(made, "spy"))


async def test_an_idempotency_key_that_a_user_guessed_changes_nothing_for_the_rule(
    nats_server: NatsServer,
) -> None:
    """The key of a delivery is no secret, because receivers and timelines show it."""
    async with automations(nats_server.url, config=CONFIG) as made:
        await made.apply(rule_with("rule", {"run": RUN}, "lifecycle.completed"))
        run = await made.run()
        await run.open()
        key = f"rule.{run.run_id}.2"
        for user_id in ("u1", "mallory"):
            taken = b'{"run_id":"%s","sha256":"x"}' % run.run_id.encode()
            await made.bus.bucket("idempotency").create(subjects.key_of(user_id, key), taken)
        await run.complete()
        [outcome] = await made.outcomes(run.run_id, 1)
        assert outcome.type == "automation.completed"
        assert outcome.data["started_run_id"] != run.run_id


async def test_the_run_of_a_trigger_has_the_outcome_on_its_own_timeline(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url, config=CONFIG) as made:
        action = {"run": {**RUN, "message": "Order {{ event.data.order }}"}}
        record = await made.apply(rule_with("hook", action, hook={"tokens": ["t" * 24]}))
        source = TriggerSource("hook", "hook-1", HOOK)
        await publish(made.bus, Job("hook", 1, record.uid, "hook.received", source, depth=2))

        async def one() -> StartCommand | None:
            return next(iter(await started_by(made, "hook")), None)

        command = await eventually(one, what="the start")
        assert command is not None
        assert (command.message, command.parent_run_id) == ("Order 7", None)
        assert (await record_of(made.bus, command.run_id)).depth == 3
        run = DrivenRun(made.bus, command.run_id, "u1")
        await run.open()
        [outcome] = await made.outcomes(command.run_id, 1)
        events = await made.penstock.events_until(command.run_id, "automation.completed")
        triggered = [each for each in events if each.type == "automation.triggered"]
        assert [each.data["trigger"] for each in triggered] == ["hook.received"]
        assert outcome.data["delivery_id"] == "hook.hook-1"


async def test_a_failed_start_is_a_dead_letter_whose_replay_starts_the_run(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url, config=CONFIG) as made:
        bad = rule_with("mend", {"run": {**RUN, "agent": "nobody"}}, "lifecycle.completed")
        await made.apply(bad)
        run = await completed(made)
        await made.outcomes(run.run_id, 1)
        [letter] = [each async for each in deadletters.letters(made.bus, "automations", run.run_id)]
        await made.apply(rule_with("mend", {"run": RUN}, "lifecycle.completed"))
        assert await replay.replay_letter(made.bus, letter)
        *_, outcome = await made.outcomes(run.run_id, 2)
        assert outcome.type == "automation.completed"
        assert len(await started_by(made, "mend")) == 1
