"""Workflows run by the real services: connector, normalizer, approvals and workflows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.bus import Message, streams, subjects
from penstock.bus.records.approvals import ApprovalNews
from penstock.bus.records.runs import RunRecord, StartCommand
from penstock.settings import AguiAgent, Config
from penstock_workflows.engine.records import End, Record, Scheduled, Started, Waiting
from penstock_workflows.journal.journal import EMPTY, Journals
from support.drive.pipeline import Pipeline, new_run_id, pipeline, types
from support.drive.waiting import eventually
from support.drive.workflows import (
    SERVICES,
    CountingServer,
    cancel_workflow,
    define,
    definition,
    sequence,
    start_workflow,
    workflows,
)
from support.real.nats import NatsServer


@pytest.fixture
async def penstock(nats_server: NatsServer, server: CountingServer) -> AsyncIterator[Pipeline]:
    async with workflows(nats_server.url, server) as running:
        yield running


async def test_a_workflow_of_two_steps_runs_one_after_the_other(
    penstock: Pipeline, server: CountingServer
) -> None:
    await define(penstock.bus, sequence("a", "b"))
    run_id = await start_workflow(penstock.bus, "sequence", {"id": "1"})
    events = await penstock.ended(run_id)
    step = [
        *("dispatch.worker", "workflow.step_started", "dispatch.finished"),
        "workflow.step_completed",
    ]
    assert types(events) == [
        *("lifecycle.started", "workflow.started", *step, "workflow.transition", *step),
        *("workflow.completed", "lifecycle.completed"),
    ]
    assert server.calls == {"1 a": 1, "1 b": 1}


async def test_the_runs_of_steps_have_the_tags_of_their_workflow(penstock: Pipeline) -> None:
    await define(penstock.bus, sequence("a"))
    tags = {"team": "payments"}
    run_id = await start_workflow(penstock.bus, "sequence", {"id": "tags"}, tags=tags)
    events = await penstock.ended(run_id)
    assert events[0].data["tags"] == tags
    [child] = [each.data["child_run_id"] for each in events if "child_run_id" in each.data][:1]
    record = await penstock.bus.bucket("runs").load(child, RunRecord)
    assert record is not None
    assert record.tags == tags
    assert (await penstock.ended(child))[0].data["tags"] == tags


async def test_a_run_whose_definition_cannot_be_compiled_any_more_fails_and_cancels_its_children(
    penstock: Pipeline, server: CountingServer
) -> None:
    """A later version of Penstock may refuse what an earlier one has accepted."""
    child = await penstock.start_run("worker", "never")
    await eventually(server.was_called)
    run_id, step = new_run_id(), {"run": {"agent": "worker", "message": "no expression ("}}
    facts = {"agent": "old", "protocol": "workflow", "kind": "workflow", "session_id": "s"}
    began: list[Record] = [
        Started(1, run_id, {"run_id": run_id}, facts, {"dsl": "x", "steps": {"a": step}}, {}),
        Scheduled(1, "a", child, "run", "worker", "never"),
    ]
    journals = Journals(penstock.bus)
    await journals.append(run_id, EMPTY, began)
    await cancel_workflow(penstock.bus, run_id)

    assert (await penstock.ended(child))[-1].type == "lifecycle.cancelled"
    records, _ = await journals.read(run_id)
    assert isinstance(end := records[-1], End)
    assert end.status == "failed"
    assert end.error is not None
    assert end.error["code"] == "invalid_definition"
    await cancel_workflow(penstock.bus, run_id)
    await asyncio.sleep(0.1)
    assert (await journals.read(run_id))[0] == records


@pytest.mark.parametrize("x", [2, 2.0])
async def test_a_number_of_the_input_can_be_multiplied_however_the_client_has_written_it(
    penstock: Pipeline, x: float
) -> None:
    flow = """
    name: numbers
    input: {type: object, properties: {x: {type: number}, n: {type: integer}}}
    steps:
      a: {set: 'input.x * 1.5'}
      b: {needs: [a], set: 'input.n + 1'}
    output: '[a.output, b.output]'
    """
    await define(penstock.bus, definition(flow))
    run_id = await start_workflow(penstock.bus, "numbers", {"x": x, "n": x})
    ended = (await penstock.ended(run_id))[-1]
    assert ended.type == "lifecycle.completed", ended.data
    assert repr(ended.data["value"]) == "[3.0, 3]"


async def test_a_start_that_comes_again_after_its_journal_is_gone_starts_nothing(
    penstock: Pipeline, server: CountingServer
) -> None:
    await define(penstock.bus, sequence("a"))
    run_id = await start_workflow(penstock.bus, "sequence", {"id": "7"})
    await penstock.ended(run_id)
    journals = Journals(penstock.bus)
    await journals.purge(run_id)
    fields = {"run_id": run_id, "agent": "sequence", "session_id": "s", "created_at": "now"}
    command = StartCommand.model_validate({**fields, "input": {"id": "7"}})
    subject = subjects.command("workflows", "start", run_id)
    await penstock.bus.publisher.publish(Message(subject, command.dump(), {}))

    async def taken() -> bool:
        return await penstock.bus.tail(streams.COMMANDS, subject) is None

    await eventually(taken)
    assert await journals.read(run_id) == ([], EMPTY)
    assert server.calls == {"7 a": 1}


async def test_a_cancel_that_overtakes_the_start_ends_the_run_before_it_begins(
    penstock: Pipeline, server: CountingServer
) -> None:
    await define(penstock.bus, sequence("a", name="overtaken"))

    async def cancelled(run_id: str) -> None:
        await cancel_workflow(penstock.bus, run_id)
        subject = subjects.command("workflows", "cancel", run_id)

        async def taken() -> bool:
            return await penstock.bus.tail(streams.COMMANDS, subject) is None

        await eventually(taken)

    run_id = await start_workflow(penstock.bus, "overtaken", {"id": "11"}, before_command=cancelled)
    events = await penstock.ended(run_id)
    assert types(events) == ["lifecycle.started", "lifecycle.cancelled"]
    assert events[-1].data["by"] == "u1"
    start = subjects.command("workflows", "start", run_id)

    async def taken() -> bool:
        return await penstock.bus.tail(streams.COMMANDS, start) is None

    await eventually(taken)
    assert server.calls == {}


async def test_an_input_of_a_run_whose_journal_is_lost_is_told_in_the_log(
    penstock: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = new_run_id()
    news = ApprovalNews(run_id=run_id, approval_id="a", news="decided")
    subject = subjects.command("workflows", "continue", run_id)
    await penstock.bus.publisher.publish(Message(subject, news.dump(), {}))

    async def told() -> bool:
        return f"run {run_id} has no journal" in caplog.text

    await eventually(told)


async def test_a_start_that_cannot_be_read_is_a_dead_letter_and_fails_its_run(
    penstock: Pipeline,
) -> None:
    async def malformed(run_id: str) -> None:
        subject = subjects.command("workflows", "start", run_id)
        # The start itself has the same message id, so the server drops it.
        await penstock.bus.publisher.publish(Message(subject, b"{}", {"Nats-Msg-Id": run_id}))

    run_id = await start_workflow(penstock.bus, "sequence", before_command=malformed)
    events = await penstock.ended(run_id)
    assert types(events) == ["lifecycle.started", "lifecycle.failed"]
    assert events[-1].data["code"] == "internal"
    assert "the start cannot be carried out" in events[-1].data["error"]
    subject = subjects.deadletter("workflows", run_id)
    assert await penstock.bus.tail(streams.DEADLETTERS, subject) is not None


async def test_a_run_continues_after_its_journal_was_restored_from_a_backup(
    penstock: Pipeline,
) -> None:
    """Without this, each further input of a run in memory would be a dead letter."""
    flow = """
    name: restored
    steps:
      hear: {listen: {event: lifecycle.completed}}
      more: {needs: [hear], wait: 1h}
    """
    await define(penstock.bus, definition(flow))
    run_id, journals = await start_workflow(penstock.bus, "restored"), Journals(penstock.bus)
    await penstock.events_until(run_id, "workflow.step_started")  # it hears no earlier event
    await penstock.ended(await penstock.start_run("worker", "hello"))

    async def waits() -> bool:
        records, _ = await journals.read(run_id)
        return [each.step for each in records if isinstance(each, Waiting)] == ["hear", "more"]

    await eventually(waits)
    _, end = await journals.read(run_id)
    await penstock.bus.delete(streams.JOURNAL, end.sequence)
    await cancel_workflow(penstock.bus, run_id)

    async def has_ended() -> bool:
        records, _ = await journals.read(run_id)
        return isinstance(records[-1], End)

    await eventually(has_ended, 30)


async def test_a_malformed_command_is_a_dead_letter_and_holds_nothing_up(
    penstock: Pipeline, server: CountingServer
) -> None:
    run_id = new_run_id()
    subject = subjects.command("workflows", "continue", run_id)
    await penstock.bus.publisher.publish(Message(subject, b"{}", {}))
    await define(penstock.bus, sequence("a"))
    run = await start_workflow(penstock.bus, "sequence", {"id": "8"})
    assert (await penstock.ended(run))[-1].type == "lifecycle.completed"
    letters = penstock.bus.tail

    async def buried() -> bool:
        found = await letters(streams.DEADLETTERS, subjects.deadletter("workflows", run_id))
        return found is not None

    await eventually(buried, 30)


async def test_a_definition_that_changes_concerns_only_runs_that_start_later(
    penstock: Pipeline, server: CountingServer
) -> None:
    flow = """
    steps:
      a: {run: {agent: worker, message: 'input.id + " a slow-0.5"'}}
      b: {needs: [a], run: {agent: worker, message: 'input.id + " VERSION"'}}
    """
    for version in ("1", "2"):
        changed = {**definition(flow.replace("VERSION", f"b{version}")), "version": version}
        await define(penstock.bus, changed)
        if version == "1":
            before = await start_workflow(penstock.bus, "flow", {"id": "before"})
            await eventually(server.was_called)
    after = await start_workflow(penstock.bus, "flow", {"id": "after"})
    for run_id in (before, after):
        assert (await penstock.ended(run_id))[-1].type == "lifecycle.completed"
    assert server.calls["before b1"] == server.calls["after b2"] == 1
    assert not server.calls["before b2"]


async def test_a_step_is_tried_again_by_itself_if_nothing_was_sent_and_not_if_its_agent_had_begun(
    nats_server: NatsServer, server: CountingServer
) -> None:
    """Nothing listens at the address of `absent`; the server of `worker` drops its connection."""
    flow = """
    steps:
      sent:
        run: {agent: worker, message: '"breaks"'}
        retry: {attempts: 3, backoff: 10ms}
        on_failure: continue
      unsent:
        run: {agent: absent, message: '"hello"'}
        retry: {attempts: 3, backoff: 10ms}
        on_failure: continue
    """
    absent = AguiAgent(id="absent", protocol="agui", url="http://127.0.0.1:1/agui")
    config = Config(agents=[*server.config.agents, absent])
    async with pipeline(nats_server.url, config, SERVICES) as penstock:
        await define(penstock.bus, definition(flow))
        events = await penstock.ended(await start_workflow(penstock.bus, "flow"))
        begun = [each.data for each in events if each.type == "workflow.step_started"]
        codes: dict[str, list[str]] = {"sent": [], "unsent": []}
        for step in begun:
            child = await penstock.ended(step["child_run_id"])
            codes[step["step_id"].removeprefix("step_")].append(child[-1].data["code"])
    assert codes == {"sent": ["upstream_lost"], "unsent": ["not_sent"] * 3}
    assert server.calls == {"breaks": 1}
    failed = {
        each.data["step_id"].removeprefix("step_"): each.data["error"]["code"]
        for each in events
        if each.type == "workflow.step_failed"
    }
    assert failed == {"sent": "upstream_lost", "unsent": "not_sent"}
    retried = [each.data["step"] for each in events if each.type == "lifecycle.retrying"]
    assert retried == ["unsent"] * 2
