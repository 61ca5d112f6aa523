"""The runs of workflows: their events come from the service `workflows`, and from nobody else."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import orjson
import pytest

from penstock.bus import Bus, RawWriter, Stored, messages, subjects
from penstock.bus.records.legs import PauseRecord
from penstock.bus.records.runs import RunRecord
from penstock.dialects.decoders import DECODERS
from penstock.dialects.workflow import WRITER
from penstock_normalizer.fold.envelope import CanonicalEvent
from penstock_normalizer.fold.run_fold import RunFold
from penstock_normalizer.recovery import abandoned_runs, lost_data
from support.drive.for_each import for_each
from support.drive.normalizing import Run, bus_to, normalizer
from support.drive.records import run_record
from support.drive.waiting import eventually
from support.fakes.raw import RUN_ID, Frames
from support.real.nats import NatsServer

FACTS = {"agent": "review", "protocol": "workflow", "kind": "workflow", "session_id": "s"}
STEP = {"run_id": RUN_ID, "step_id": "step_lint", "description": "Lint"}


def fold_all(frames: Iterable[Any]) -> list[CanonicalEvent]:
    fold = RunFold(RUN_ID, DECODERS)
    return [event for frame in frames for event in fold.feed(copy.copy(frame))]


def types(events: Iterable[CanonicalEvent]) -> list[str]:
    return [event.type for event in events]


def workflow() -> Frames:
    return Frames("workflow", agent="review", kind="workflow", workflow="code_review")


def asked(frames: Frames, approval_id: str) -> Any:
    return frames.event("approval.requested", WRITER, approval_id=approval_id, items=[])


def test_a_workflow_may_wait_for_several_approvals_at_once() -> None:
    frames = workflow()
    events = fold_all(
        [
            frames.frame("open", orjson.dumps(frames.facts), WRITER),
            frames.event("workflow.started", WRITER, workflow="review", run_id=RUN_ID),
            asked(frames, "a"),
            asked(frames, "b"),
            frames.event("lifecycle.paused", WRITER),
            frames.event("approval.decided", WRITER, approval_id="b"),
            frames.event("lifecycle.resumed", WRITER, approval_id="b"),
            frames.event("dispatch.team", WRITER, team_name="t"),
            frames.event("lifecycle.retrying", WRITER, retry_count=1, max_retries=2, reason="x"),
            frames.event("approval.withdrawn", WRITER, approval_id="a"),
            frames.event("lifecycle.completed", WRITER, summary="done"),
        ]
    )
    assert types(events) == [
        *("lifecycle.started", "workflow.started", "approval.requested", "approval.requested"),
        *("lifecycle.paused", "approval.decided", "lifecycle.resumed", "dispatch.team"),
        *("lifecycle.retrying", "approval.withdrawn", "lifecycle.completed"),
    ]
    assert [event.sequence for event in events] == list(range(1, 12))
    assert events[0].data["workflow"] == "code_review"


def test_an_event_of_a_workflow_has_its_step_and_its_source() -> None:
    frames = workflow()
    source = {"agent_id": "lead", "agent_type": "worker", "agent_name": "Lead", "team_name": None}
    said = {"type": "workflow.step_started", "data": STEP, "source": source, "step_id": "step_lint"}
    opened = frames.frame("open", orjson.dumps(frames.facts), WRITER)
    *_, event = fold_all([opened, frames.frame("event", orjson.dumps(said), WRITER)])
    body = orjson.loads(event.body)
    assert (body["step_id"], body["source"]) == ("step_lint", source)


@for_each("writer", ["upstream", "approvals", "edge", "automations"])
@for_each(
    "type_",
    ["workflow.step_started", "approval.requested", "lifecycle.paused", "lifecycle.completed"],
)
def test_nobody_else_adds_to_the_run_of_a_workflow(writer: str, type_: str) -> None:
    frames = workflow()
    opened = frames.frame("open", orjson.dumps(frames.facts), WRITER)
    assert types(fold_all([opened, frames.event(type_, writer)])) == ["lifecycle.started"]


@for_each("type_", ["workflow.started", "approval.requested", "lifecycle.completed"])
def test_workflows_adds_to_no_other_run(type_: str) -> None:
    frames = Frames("agno")
    assert types(fold_all([frames.open(), frames.event(type_, WRITER)])) == ["lifecycle.started"]


def test_a_workflow_makes_no_events_of_models() -> None:
    frames = workflow()
    opened = frames.frame("open", orjson.dumps(frames.facts), WRITER)
    said = frames.event("llm.stream", WRITER, message_id="m", content="x")
    assert types(fold_all([opened, said])) == ["lifecycle.started"]


@for_each("writer", ["edge", "normalizer"])
def test_a_service_can_end_the_run_of_a_workflow_for_which_nobody_works(writer: str) -> None:
    frames = workflow()
    opened = frames.frame("open", orjson.dumps(frames.facts), WRITER)
    ended = frames.event("lifecycle.cancelled", writer)
    late = frames.event("workflow.step_started", WRITER, **STEP)
    assert types(fold_all([opened, ended, late])) == ["lifecycle.started", "lifecycle.cancelled"]


class Workflow(Run):
    """The run of a workflow, which the test writes as the service `workflows` does."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus)
        self.writer = RawWriter(bus, self.run_id, WRITER, f"pod/{self.run_id}")

    async def begin(self) -> None:
        await self.open(**FACTS)

    async def again(self) -> None:
        """Write on in a new process."""
        self.writer = await RawWriter.resume(self.bus, self.run_id, WRITER, "pod/2")

    async def say(self, type_: str, **data: Any) -> None:
        await self.writer.write("event", orjson.dumps({"type": type_, "data": data}), leg=1)

    async def record(self, status: str) -> RunRecord:
        return await run_record(self.bus, self.run_id, status)


def numbers(events: Iterable[Stored]) -> list[int]:
    return [int(event.headers[messages.SEQUENCE]) for event in events]


@pytest.mark.parametrize("gone", [["RAW"], ["EVENTS", "RAW"]], ids="+".join)
async def test_a_workflow_continues_after_weeks_with_the_next_number(
    fresh_nats: NatsServer, gone: list[str]
) -> None:
    async with bus_to(fresh_nats.url) as bus:
        run = Workflow(bus)
        async with normalizer(fresh_nats.url):
            await run.begin()
            await run.say("workflow.started", workflow="review", run_id=run.run_id)
            await run.say("workflow.step_started", **STEP)
            await run.until("workflow.step_started")
            await eventually(lambda: is_kept(bus, run.run_id, 3), what="the run's state is stored")
        for stream in gone:
            await bus.api(f"STREAM.PURGE.{stream}")
        await run.again()
        async with normalizer(fresh_nats.url):
            await run.say("workflow.step_completed", **STEP)
            await run.say("lifecycle.completed", summary="done")
            after = await run.until("lifecycle.completed")
            record = await run.record("completed")
        expected = [1, 2, 3, 4, 5] if gone == ["RAW"] else [4, 5]
        assert numbers(after) == expected
        body = orjson.loads(after[-1].payload)
        assert (body["session_id"], body["leg"]) == ("s", 1)
        assert (record.sequence, record.target) == (5, "workflows")


async def is_kept(bus: Bus, run_id: str, sequence: int) -> bool:
    entry = await bus.bucket("pauses").get(run_id)
    if entry is None:
        return False
    return bool(PauseRecord.model_validate_json(entry.value).fold["sequence"] >= sequence)


async def test_the_state_of_a_workflow_is_stored_by_the_normalizer_that_takes_it_over(
    fresh_nats: NatsServer,
) -> None:
    """The former normalizer ended after the event was published, and before the state was."""
    async with bus_to(fresh_nats.url) as bus:
        run = Workflow(bus)
        async with normalizer(fresh_nats.url):
            await run.begin()
            await run.until("lifecycle.started")
            await eventually(lambda: is_kept(bus, run.run_id, 1), what="the run's state is stored")
        await bus.bucket("pauses").delete(run.run_id)
        await bus.api("STREAM.PURGE.KV_checkpoints")
        async with normalizer(fresh_nats.url):
            await eventually(lambda: is_kept(bus, run.run_id, 1), what="the run's state is stored")


async def test_a_workflow_that_waits_is_not_ended_because_its_frames_are_gone(
    fresh_nats: NatsServer,
) -> None:
    async with bus_to(fresh_nats.url) as bus:
        run = Workflow(bus)
        async with normalizer(fresh_nats.url):
            await run.begin()
            await run.until("lifecycle.started")
            await eventually(lambda: is_kept(bus, run.run_id, 1), what="the run's state is stored")
            record = await run.record("running")
        for stream in ("RAW", "EVENTS"):
            await bus.api(f"STREAM.PURGE.{stream}")
        record = record.model_copy(update={"updated_at": "2020-01-01T00:00:00Z"})
        assert not await abandoned_runs._has_expired(bus, record)
        assert not await lost_data._has_lost_data(bus, record, None)
        await bus.bucket("pauses").delete(run.run_id)
        assert await abandoned_runs._has_expired(bus, record)
        assert await lost_data._has_lost_data(bus, record, None)


async def test_a_paused_run_is_not_lost_because_its_events_are_too_old(
    fresh_nats: NatsServer,
) -> None:
    async with bus_to(fresh_nats.url) as bus:
        run = Run(bus)
        async with normalizer(fresh_nats.url):
            await run.open()
            await run.until("lifecycle.started")
            record = await run_record(bus, run.run_id, "running")
        kept = PauseRecord(
            run_id=run.run_id, approval_id="a", leg=1, protocol="agno", fold={}, resume={}
        )
        await bus.bucket("pauses").put(run.run_id, kept.dump())
        await bus.api("STREAM.PURGE.RAW")
        assert await lost_data._has_lost_data(bus, record, None)
        paused = record.model_copy(update={"status": "paused"})
        assert not await lost_data._has_lost_data(bus, paused, None)


@pytest.mark.parametrize("kind", ["start", "continue"])
async def test_a_workflow_whose_command_was_given_up_ends_and_says_so(
    fresh_nats: NatsServer, kind: str
) -> None:
    async with bus_to(fresh_nats.url) as bus:
        run = Workflow(bus)
        record = RunRecord(
            run_id=run.run_id,
            agent="review",
            session_id="s",
            user_id="u",
            target="workflows",
            created_at=messages.now(),
            updated_at=messages.now(),
        )
        await bus.bucket("runs").put(run.run_id, record.dump())
        if kind == "continue":
            await run.begin()
        subject = subjects.command("workflows", kind, run.run_id)
        sequence = await bus.publisher.publish(messages.Message(subject, b"poison", {}))
        consumer = f"workflows-{kind}"
        advisory = {"stream": "COMMANDS", "consumer": consumer, "stream_seq": sequence}
        advised = f"{subjects.MAX_DELIVERIES}.COMMANDS.{consumer}"
        told = orjson.dumps({**advisory, "deliveries": 20})
        async with normalizer(fresh_nats.url):
            await bus.publisher.publish(messages.Message(advised, told, {}))
            events = await run.until("lifecycle.failed")
        data = orjson.loads(events[-1].payload)["data"]
        assert data["code"] == "internal"
        assert "delivered 20 times and never finished" in data["error"]
