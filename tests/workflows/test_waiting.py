"""Steps that wait: timers, events, approvals, cancels; and runs that outlive their frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.bus import Bus, Stored, streams, subjects
from penstock.bus.streams import JOURNAL, SCHEDULES
from penstock_workflows.effects.frames import Frames
from penstock_workflows.effects.listens import Listens
from penstock_workflows.journal.memory import RunInMemory
from support.drive.dying import instances
from support.drive.pipeline import PIPELINE, Pipeline, new_run_id, types
from support.drive.waiting import eventually
from support.drive.workflows import (
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


async def step_started(penstock: Pipeline, run_id: str, step: str) -> None:
    """Wait until the run's events say that a step has begun."""
    await penstock.events_until(
        run_id,
        lambda event: (
            event.type == "workflow.step_started" and event.data["step_id"] == f"step_{step}"
        ),
    )


async def shorten(bus: Bus, stream: str, max_age_s: int) -> None:
    """Let a stream keep its messages for this time only."""
    config = (await bus.api(f"STREAM.INFO.{stream}"))["config"]
    age_ns = max_age_s * 10**9
    config |= {"max_age": age_ns, "duplicate_window": min(age_ns, config["duplicate_window"])}
    await bus.api(f"STREAM.UPDATE.{stream}", config)


LISTENS = """
name: listens
steps:
  hear:
    listen: {event: lifecycle.completed, where: 'event.data.summary == "done hello"'}
    output: 'result.data.run_id'
output: hear.output
"""


async def test_a_step_hears_the_event_that_it_listens_for_and_none_from_before(
    penstock: Pipeline,
) -> None:
    await define(penstock.bus, definition(LISTENS))
    before = await penstock.start_run("worker", "hello")
    await penstock.ended(before)
    run_id = await start_workflow(penstock.bus, "listens")
    await step_started(penstock, run_id, "hear")
    of_another_user = await penstock.start_run("worker", "hello", user_id="u2")
    await penstock.ended(of_another_user)
    another = await penstock.start_run("worker", "other")
    await penstock.ended(another)
    heard = await penstock.start_run("worker", "hello")
    events = await penstock.ended(run_id)
    assert events[-1].data["summary"] == heard

    async def forgotten() -> bool:
        return not await penstock.bus.bucket("listens").entries()

    await eventually(forgotten)


async def test_an_event_that_is_stored_while_a_step_begins_to_listen_is_heard(
    penstock: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event is stored before the consumers deliver its type, so they pass it over."""
    declare = Listens._declare
    heard: list[str] = []

    async def late(self: Listens, stream: str, patterns: frozenset[str]) -> None:
        if patterns and not heard:
            heard.append("")
            heard[0] = await penstock.start_run("worker", "hello")
            await penstock.ended(heard[0])
        await declare(self, stream, patterns)

    await define(penstock.bus, definition(LISTENS))
    monkeypatch.setattr(Listens, "_declare", late)
    run_id = await start_workflow(penstock.bus, "listens")
    events = await penstock.ended(run_id)
    assert events[-1].data["summary"] == heard[0]


async def test_a_step_that_listens_for_a_frequent_event_does_not_cost_a_request_for_each(
    penstock: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = """
    name: busy
    steps:
      hear: {listen: {event: llm.stream, where: 'false'}}
    """
    await define(penstock.bus, definition(flow))
    run_id = await start_workflow(penstock.bus, "busy")
    await step_started(penstock, run_id, "hear")
    listens = Listens(penstock.bus, 1)
    patterns, tail = list[str](), Bus.tail

    async def counted(self: Bus, stream: str, pattern: str) -> Stored | None:
        if self is penstock.bus:  # the service has a connection of its own
            patterns.append(pattern)
        return await tail(self, stream, pattern)

    monkeypatch.setattr(Bus, "tail", counted)
    event = Stored(f"llm.stream.{new_run_id()}", 10**9, {}, b"{}")
    heard = await asyncio.gather(*(listens.inputs_of("EVENTS", event) for _ in range(50)))
    assert heard == [[]] * 50, "the run is of another user"
    assert [*listens._by_type] == ["llm.stream"]
    assert patterns.count("$KV.listens.>") <= 2
    await cancel_workflow(penstock.bus, run_id)
    await penstock.ended(run_id)


async def test_a_cancelled_workflow_cancels_its_children_and_its_timers(
    penstock: Pipeline, server: CountingServer
) -> None:
    flow = """
    name: cancelled
    timeout: 1h
    steps:
      a: {run: {agent: worker, message: '"never a"'}, timeout: 30m}
      b: {wait: 20m}
    """
    await define(penstock.bus, definition(flow))
    run_id = await start_workflow(penstock.bus, "cancelled")
    await eventually(server.was_called)
    await step_started(penstock, run_id, "b")
    await cancel_workflow(penstock.bus, run_id)
    events = await penstock.ended(run_id)
    assert events[-1].type == "lifecycle.cancelled"
    assert events[-1].data["by"] == "u1"
    [child] = [each.data["child_run_id"] for each in events if each.data.get("child_run_id")]
    assert (await penstock.ended(child))[-1].type == "lifecycle.cancelled"

    async def only_the_purge_is_left() -> bool:
        found = await penstock.bus.api(
            f"STREAM.INFO.{SCHEDULES}", {"subjects_filter": f"schedule.workflows.{run_id}.>"}
        )
        return [*(found["state"].get("subjects") or {})] == [f"schedule.workflows.{run_id}.purge"]

    await eventually(only_the_purge_is_left)


async def test_a_timeout_fails_the_step_and_cancels_its_child(
    penstock: Pipeline, server: CountingServer
) -> None:
    flow = """
    name: slow
    steps:
      a: {run: {agent: worker, message: '"never b"'}, timeout: 1s}
    """
    await define(penstock.bus, definition(flow))
    run_id = await start_workflow(penstock.bus, "slow")
    events = await penstock.ended(run_id)
    assert (events[-1].type, events[-1].data["code"]) == ("lifecycle.failed", "timeout")
    [child] = {each.data["child_run_id"] for each in events if each.data.get("child_run_id")}
    assert (await penstock.ended(child))[-1].type == "lifecycle.cancelled"


async def test_a_nested_workflow_runs_as_a_child_and_its_result_comes_back(
    penstock: Pipeline, server: CountingServer
) -> None:
    await define(penstock.bus, sequence("a", name="inner"))
    flow = """
    name: outer
    steps:
      inner: {workflow: {workflow: inner, input: '{"id": "9"}'}, output: result.data}
    output: inner.output
    """
    await define(penstock.bus, definition(flow))
    run_id = await start_workflow(penstock.bus, "outer")
    events = await penstock.ended(run_id)
    assert events[-1].type == "lifecycle.completed"
    [child] = {each.data["child_run_id"] for each in events if each.data.get("child_run_id")}
    inner = await penstock.ended(child)
    assert {each.body["workflow_depth"] for each in inner} == {1}
    [grandchild] = {each.data["child_run_id"] for each in inner if each.data.get("child_run_id")}
    assert {each.body["workflow_depth"] for each in await penstock.ended(grandchild)} == {2}
    assert server.calls == {"9 a": 1}


async def test_a_step_whose_run_cannot_be_started_fails_with_the_reason(
    penstock: Pipeline,
) -> None:
    flow = """
    name: nobody
    steps:
      a: {run: {agent: nobody, message: '"x"'}}
    """
    await define(penstock.bus, definition(flow))
    run_id = await start_workflow(penstock.bus, "nobody")
    events = await penstock.ended(run_id)
    assert (events[-1].type, events[-1].data["code"]) == ("lifecycle.failed", "not_found")
    assert "nobody" in events[-1].data["error"]


async def test_an_unknown_workflow_fails_at_once(penstock: Pipeline) -> None:
    run_id = await start_workflow(penstock.bus, "unknown")
    events = await penstock.ended(run_id)
    assert types(events) == ["lifecycle.started", "lifecycle.failed"]
    assert events[-1].data["code"] == "unknown_workflow"


async def test_the_journal_of_an_ended_run_is_removed_after_its_time(
    nats_server: NatsServer, server: CountingServer
) -> None:
    async with workflows(nats_server.url, server, journal_kept_s=1) as penstock:
        await define(penstock.bus, sequence("a", name="short"))
        run_id = await start_workflow(penstock.bus, "short", {"id": "1"})
        await penstock.ended(run_id)
        assert await penstock.bus.tail(JOURNAL, subjects.journal(run_id)) is not None

        async def removed() -> bool:
            bus = penstock.bus
            journal = await bus.tail(JOURNAL, subjects.journal(run_id))
            due = await bus.tail(SCHEDULES, f"due.workflows.{run_id}.*")
            return journal is None and due is None

        await eventually(removed)


async def test_an_output_that_is_too_large_for_a_record_is_passed_on(
    penstock: Pipeline,
) -> None:
    flow = """
    name: large
    steps:
      a: {set: 'input.text'}
      b: {needs: [a], set: 'a.output + a.output'}
      c: {needs: [b], set: 'size(b.output)'}
    output: c.output
    """
    await define(penstock.bus, definition(flow))
    run_id = await start_workflow(penstock.bus, "large", {"text": "x" * 100_000})
    events = await penstock.ended(run_id)
    assert events[-1].type == "lifecycle.completed", events[-1].data
    assert events[-1].data["value"] == 200_000


async def test_a_run_that_outlives_its_frames_and_events_continues_in_another_process(
    fresh_nats: NatsServer, server: CountingServer
) -> None:
    flow = """
    name: patient
    steps:
      a: {run: {agent: worker, message: '"a"'}, output: result.text}
      w: {needs: [a], wait: 5s}
      b: {needs: [w], run: {agent: worker, message: '"b of " + a.output'}, output: result.text}
    output: b.output
    """
    async with (
        workflows(fresh_nats.url, server, PIPELINE) as penstock,
        instances(fresh_nats.url, server.config) as made,
    ):
        for stream in ("RAW", "EVENTS"):
            await shorten(penstock.bus, stream, 2)
        first = await made.start()
        await define(penstock.bus, definition(flow))
        run_id = await start_workflow(penstock.bus, "patient")
        await step_started(penstock, run_id, "w")
        await made.end(first)

        async def all_are_gone() -> bool:
            bus = penstock.bus
            raw = await bus.tail(streams.raw_for(run_id), subjects.raw_of_run(run_id))
            events = await bus.tail(streams.events_for(run_id), subjects.events_of_run(run_id))
            return raw is None and events is None

        await eventually(all_are_gone)
        await made.start()
        events = await penstock.ended(run_id)
    assert events[-1].type == "lifecycle.completed", events[-1].data
    assert events[-1].data["summary"] == "done b of done a"
    assert [each.sequence for each in events] == [*range(1, len(events) + 1)]
    assert server.calls == {"a": 1, "b of done a": 1}


async def test_frames_that_no_process_wrote_are_written_although_raw_has_lost_messages_since(
    fresh_nats: NatsServer, server: CountingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service dies between journal and frames, and is away for longer than RAW keeps frames."""
    flow = """
    name: away
    steps:
      a: {run: {agent: worker, message: '"a"'}}
      b: {needs: [a], run: {agent: worker, message: '"b"'}}
    """
    async with (
        workflows(fresh_nats.url, server, PIPELINE) as penstock,
        instances(fresh_nats.url, server.config) as made,
    ):
        bus = penstock.bus
        await shorten(bus, "RAW", 2)
        first = await made.start()
        await define(bus, definition(flow))
        write, begun, dies_at = Frames.write, list[str](), {"new": 1, "under way": 3}

        async def dies(self: Frames, run: RunInMemory) -> None:
            if run.run_id in stuck and run.end.records >= dies_at[stuck[run.run_id]]:
                begun.append(run.run_id)
                await asyncio.Event().wait()
            await write(self, run)

        stuck: dict[str, str] = {}
        monkeypatch.setattr(Frames, "write", dies)
        for kind in dies_at:
            run_id = new_run_id()
            stuck[run_id] = kind
            await start_workflow(bus, "away", run_id=run_id)

        async def both_are_stuck() -> bool:
            return {*begun} == {*stuck}

        await eventually(both_are_stuck)
        await made.end(first)
        monkeypatch.setattr(Frames, "write", write)
        await asyncio.sleep(0.01)  # the next messages of RAW are newer than the frames
        await penstock.ended(await penstock.start_run("worker", "other"))

        async def raw_is_empty() -> bool:
            state = (await bus.api("STREAM.INFO.RAW"))["state"]
            return bool(state["first_seq"] > 1 and not state["messages"])

        await eventually(raw_is_empty)
        await made.start()
        for run_id in stuck:
            events = await penstock.ended(run_id)
            assert events[-1].type == "lifecycle.completed", events[-1].data
            assert types(events).count("workflow.step_started") == 2
            assert [each.sequence for each in events] == [*range(1, len(events) + 1)]
    assert server.calls == {"a": 2, "b": 2, "other": 1}
