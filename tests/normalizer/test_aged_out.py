"""Runs whose frames or events have aged out, and commands that NATS has given up."""

from __future__ import annotations

import orjson
import pytest

from penstock.bus import (
    Bus,
    RawWriter,
    Stored,
    messages,
    subjects,
)
from penstock.bus.records.runs import RunRecord
from support.drive.dead_letters import publish, the_letter
from support.drive.normalizing import (
    Run,
    bus_to,
    check_order,
    normalizer,
    paused,
)
from support.drive.waiting import eventually
from support.fakes.raw import agno, agno_approved, agno_pause, agno_text
from support.real.nats import NatsServer


@pytest.mark.parametrize("gone", [["RAW"], ["EVENTS", "RAW"]], ids="+".join)
async def test_a_paused_run_continues_although_its_past_has_aged_out(
    fresh_nats: NatsServer, gone: list[str]
) -> None:
    async with bus_to(fresh_nats.url) as bus:
        run = Run(bus)
        async with normalizer(fresh_nats.url):
            await run.open()
            await run.bytes(agno_pause())
            await run.end()
            before = await run.until("approval.requested")
        approval_id = orjson.loads(before[-1].payload)["data"]["approval_id"]
        for stream in gone:
            await bus.api(f"STREAM.PURGE.{stream}")
        run.leg = 2
        async with normalizer(fresh_nats.url):
            items = [{"item_id": "t1", "decision": "approve"}]
            await run.open(approval_id=approval_id, items=items)
            await run.bytes(agno_approved())
            await run.end()
            after = await run.until("lifecycle.completed")
    numbers = [int(event.headers[messages.SEQUENCE]) for event in after]
    last_before = 0 if gone == ["RAW"] else len(before)
    assert numbers == list(range(last_before + 1, last_before + 1 + len(after)))
    kinds = [event.headers["ce-type"] for event in after]
    assert kinds.count("llm.tool_call") == (1 if gone == ["RAW"] else 0)
    assert kinds.count("llm.tool_result") == 1


@pytest.mark.parametrize("follows", [True, False], ids=["more follows", "nothing follows"])
async def test_a_run_whose_frames_aged_out_unread_ends_and_says_so(
    fresh_nats: NatsServer,
    follows: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock_normalizer.recovery.abandoned_runs.MIN_AGE_S", -1.0)
    monkeypatch.setattr("penstock_normalizer.partitions.partition.IDLE_CHECKPOINT_S", 0.0)
    async with bus_to(fresh_nats.url) as bus:
        run, other = Run(bus), Run(bus)
        async with normalizer(fresh_nats.url):
            await run.open()
            await run.bytes(agno("RunStarted") + agno("RunContent", content="one"))
            before = await run.until("llm.stream")
            await other.whole("fine")
            await other.until("lifecycle.completed")
            await checkpointed(bus, before[-1])
        # no normalizer runs, so what is written now is lost
        await run.bytes(agno("RunContent", content="lost"))
        await bus.api("STREAM.PURGE.RAW")
        async with normalizer(fresh_nats.url):
            if follows:
                await run.bytes(agno("RunContent", content="two"))
            events = await run.until("lifecycle.failed")
            ended = await other.events()
    numbers = [int(event.headers[messages.SEQUENCE]) for event in events]
    assert numbers == list(range(1, len(before) + 2))
    data = orjson.loads(events[-1].payload)["data"]
    assert data["code"] == "history_lost"
    assert "before they were read" in data["error"]
    assert f"run {run.run_id}: frames before RAW" in caplog.text
    assert ended[-1].headers["ce-type"] == "lifecycle.completed"


async def test_a_run_that_aged_out_before_the_first_normalizer_came_ends_and_says_so(
    fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_normalizer.recovery.abandoned_runs.MIN_AGE_S", -1.0)
    async with bus_to(fresh_nats.url) as bus:
        run, young = Run(bus), Run(bus)
        for each in (run, young):
            await bus.bucket("runs").put(each.run_id, registered(each.run_id).dump())
        await run.open()
        await bus.api("STREAM.PURGE.RAW")
        await young.open()
        async with normalizer(fresh_nats.url):
            *_, end = await run.until("lifecycle.failed")
            await young.until("lifecycle.started")
    assert orjson.loads(end.payload)["data"]["code"] == "history_lost"


def registered(run_id: str) -> RunRecord:
    """Return the record of a run that the edge has listed and no service has begun."""
    return RunRecord(
        run_id=run_id,
        agent="a",
        session_id="s",
        user_id="u",
        message="hello",
        created_at=messages.now(),
        updated_at=messages.now(),
    )


async def gave_up(bus: Bus, kind: str, sequence: int) -> None:
    """Publish the server's advisory for a command that it has delivered for the last time."""
    advisory = {"stream": "COMMANDS", "consumer": f"connector-{kind}", "stream_seq": sequence}
    subject = f"{subjects.MAX_DELIVERIES}.COMMANDS.connector-{kind}"
    await publish(bus, subject, orjson.dumps({**advisory, "deliveries": 20}))


async def no_command(bus: Bus) -> bool:
    return bool((await bus.api("STREAM.INFO.COMMANDS"))["state"]["messages"] == 0)


@pytest.mark.parametrize("kind", ["start", "continue"])
async def test_a_run_whose_command_the_server_gave_up_ends_once(
    fresh_nats: NatsServer, kind: str
) -> None:
    async with bus_to(fresh_nats.url) as bus:
        if kind == "continue":
            run, _ = await paused(bus)
        else:
            run = Run(bus)
            await bus.bucket("runs").put(run.run_id, registered(run.run_id).dump())
        sequence = await publish(bus, subjects.command("connector", kind, run.run_id), b"poison")
        for _ in range(2):
            await gave_up(bus, kind, sequence)
        async with normalizer(fresh_nats.url):
            events = await run.until("lifecycle.failed")
            await eventually(lambda: no_command(bus), what="no command is left")
            assert await run.events() == events

            async def recorded() -> RunRecord | None:
                entry = await bus.bucket("runs").get(run.run_id)
                assert entry is not None
                found = RunRecord.model_validate_json(entry.value)
                return found if found.status != "queued" else None

            record = await eventually(recorded, what="the end is in the run's record")
        assert (await the_letter(bus, "connector", run.run_id)).letter.payload == b"poison"
    data = orjson.loads(events[-1].payload)["data"]
    assert data["code"] == "internal"
    assert "delivered 20 times and never finished" in data["error"]
    assert [int(each.headers[messages.SEQUENCE]) for each in events] == [*range(1, len(events) + 1)]
    assert (record.status, record.code) == ("failed", "internal")


async def test_a_run_continues_whose_command_was_carried_out_and_given_up_all_the_same(
    fresh_nats: NatsServer,
) -> None:
    async with bus_to(fresh_nats.url) as bus:
        run = Run(bus)
        await bus.bucket("runs").put(run.run_id, registered(run.run_id).dump())
        sequence = await publish(bus, subjects.command("connector", "start", run.run_id), b"x")
        await run.open()
        await gave_up(bus, "start", sequence)
        async with normalizer(fresh_nats.url):
            await eventually(lambda: no_command(bus), what="no command is left")
            await run.bytes(agno_text("one"))
            await run.end()
            check_order(await run.until("lifecycle.completed"), ["one"])


async def checkpointed(bus: Bus, event: Stored) -> None:
    """Wait until the checkpoint of every partition has passed the frame of this event."""
    position = int(event.headers[messages.RAW_POSITION])

    async def has() -> bool:
        entries = await bus.bucket("checkpoints").entries("normalizer.*")
        return len(entries) == subjects.PARTITIONS and all(
            int(entry.value) >= position for entry in entries
        )

    await eventually(has, what="the checkpoints")


async def test_a_leg_that_outlived_its_frames_ends_when_its_normalizer_changes(
    fresh_nats: NatsServer,
) -> None:
    """The run's first frames have aged out, so no other normalizer can rebuild the decoder."""
    async with bus_to(fresh_nats.url) as bus:
        run = Run(bus)
        async with normalizer(fresh_nats.url):
            await run.open()
            await run.bytes(agno("RunStarted") + agno("RunContent", content="one"))
            before = await run.until("llm.stream")
        pattern = subjects.raw_of_run(run.run_id)
        await bus.api("STREAM.PURGE.RAW", {"filter": pattern})
        async with normalizer(fresh_nats.url):
            await run.bytes(agno("RunContentCompleted") + agno("RunCompleted", content="x"))
            await run.end()
            events = await run.until("lifecycle.failed")
    assert len(events) == len(before) + 1
    assert orjson.loads(events[-1].payload)["data"]["code"] == "history_lost"


async def test_what_is_said_about_a_pause_is_kept_with_it(fresh_nats: NatsServer) -> None:
    async with bus_to(fresh_nats.url) as bus:
        run = Run(bus)
        approvals = RawWriter(bus, run.run_id, "approvals", f"pod/{run.run_id}/a")
        async with normalizer(fresh_nats.url):
            await run.open()
            await run.bytes(agno_pause())
            await run.end()
            asked = await run.until("approval.requested")
            approval_id = orjson.loads(asked[-1].payload)["data"]["approval_id"]
            paused = {"type": "lifecycle.paused", "data": {"approval_id": approval_id}}
            await approvals.write("event", orjson.dumps(paused), leg=1)
            before = await run.until("lifecycle.paused")
        for stream in ("RAW", "EVENTS"):
            await bus.api(f"STREAM.PURGE.{stream}")
        run.leg = 2
        async with normalizer(fresh_nats.url):
            await run.open(
                approval_id=approval_id, items=[{"item_id": "t1", "decision": "approve"}]
            )
            await run.bytes(agno_approved())
            await run.end()
            after = await run.until("lifecycle.completed")
    assert after[0].headers["ce-type"] == "lifecycle.resumed"
    assert int(after[0].headers[messages.SEQUENCE]) == len(before) + 1
