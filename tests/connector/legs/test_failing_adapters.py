"""If an adapter or a record raises, the leg ends once, the log shows it, and nothing is left."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import orjson
import pytest

from penstock.bus import BusUnavailable, RawWriter
from penstock.bus.records.legs import SessionRecord
from penstock.bus.subjects import control, session_key
from penstock.tracing import spans
from penstock_connector.service import ConnectorService
from penstock_connector.state.leg_record import LegRecords
from penstock_connector.state.session_queue import SessionQueue
from penstock_connector.succession import reaper
from penstock_connector.upstreams.agno import AgnoUpstream
from support.drive.pipeline import PIPELINE, Pipeline, pipeline
from support.drive.waiting import eventually
from support.fakes.misbehaving import Answer, Misbehaving, Script, agents, cuts, plays, stalls
from support.fakes.raw import agno, agno_text
from support.real.connectors import FAST
from support.real.nats import NatsServer

MISTAKE = "a mistake in the adapter"
STARTED = agno("RunStarted", event_index=0)


def raises(*arguments: Any) -> None:
    raise RuntimeError(MISTAKE)


async def raises_later(*arguments: Any) -> None:
    raise RuntimeError(MISTAKE)


def connector_of(penstock: Pipeline) -> ConnectorService:
    [connector] = [each for each in penstock.services if isinstance(each, ConnectorService)]
    return connector


async def nothing_is_left(penstock: Pipeline, run_id: str, session_id: str) -> None:
    """Wait until the leg has no record, no turn, no task and no subscription."""
    connector = connector_of(penstock)

    async def probe() -> bool:
        entry = await penstock.bus.bucket("sessions").get(session_key("u1", "agno", session_id))
        queue = SessionRecord.model_validate_json(entry.value).queue if entry is not None else []
        records = await penstock.bus.bucket("claims").keys(f"active.*.{run_id}")
        return not queue and not records and not connector._commands.registry.works_on(run_id)

    await eventually(probe, what="that nothing is left of the leg")
    with pytest.raises(BusUnavailable):  # no subscription is left
        await penstock.bus.request(control(run_id), b"{}", 1.0)


def the_end(frames: list[Any]) -> tuple[str, dict[str, Any]]:
    """Return the only frame that ends the leg, which must be the last one."""
    [last] = [frame for frame in frames if frame.kind in ("end", "lost")]
    assert frames[-1] is last
    return last.kind, orjson.loads(last.payload)


def failures(caplog: pytest.LogCaptureFixture, run_id: str) -> list[logging.LogRecord]:
    """Return the connector's log records with a traceback that name the run."""
    return [
        record
        for record in caplog.records
        if record.name.startswith("penstock_connector")
        and record.exc_info is not None
        and run_id in record.getMessage()
    ]


@pytest.mark.parametrize(
    ("method", "broken", "script", "kind", "code"),
    [
        pytest.param("start", raises_later, plays(b""), "lost", "internal", id="start"),
        pytest.param("answered", raises, plays(agno_text("x")), "lost", "internal", id="answered"),
        pytest.param("closed", raises_later, plays(agno_text("x")), "end", None, id="closed"),
        pytest.param("reattach", raises_later, plays(STARTED, cuts), "lost", "internal", id="back"),
    ],
)
async def test_a_leg_whose_adapter_fails_ends_once(
    nats_server: NatsServer,
    upstream: Misbehaving,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method: str,
    broken: Any,
    script: Script,
    kind: str,
    code: str | None,
) -> None:
    monkeypatch.setattr(AgnoUpstream, method, broken)
    upstream.script(script)
    session = f"s-fails-{method}"
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        run_id = await penstock.start_run("agno", "hello", session_id=session)
        await penstock.ended(run_id)
        await nothing_is_left(penstock, run_id, session)
        end = the_end(await penstock.raw(run_id))
    assert (end[0], end[1].get("code")) == (kind, code)
    assert len(failures(caplog, run_id)) == 1


async def test_a_run_is_cancelled_although_the_adapter_cannot_ask_for_it(
    nats_server: NatsServer,
    upstream: Misbehaving,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(AgnoUpstream, "cancel", raises_later)
    upstream.script(plays(STARTED, stalls))
    async with pipeline(nats_server.url, agents(upstream), cancel_grace_s=0.2) as penstock:
        run_id = await penstock.start_run("agno", "hello", session_id="s-fails-cancel")
        await penstock.events_until(run_id, "lifecycle.started")
        await upstream.called()
        await penstock.cancel(run_id)
        *_, last = await penstock.ended(run_id)
        await nothing_is_left(penstock, run_id, "s-fails-cancel")
        kind, facts = the_end(await penstock.raw(run_id))
    assert last.type == "lifecycle.cancelled"
    assert (kind, facts["outcome"]) == ("end", "cancelled")
    assert len(failures(caplog, run_id)) == 1


async def test_one_leg_whose_adapter_fails_keeps_no_other_from_being_handed_over(
    nats_server: NatsServer,
    upstream: Misbehaving,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A stopping connector asks each leg's adapter whether the run survives a disconnect."""
    monkeypatch.setattr(AgnoUpstream, "survives_disconnect", raises)
    upstream.script(plays(STARTED, stalls))
    async with pipeline(nats_server.url, agents(upstream), PIPELINE) as penstock:
        run_id = await penstock.start_run("agno", "hello", session_id="s-fails-outlives")
        await upstream.called()
        await penstock.events_until(run_id, "lifecycle.started")
        connector = connector_of(penstock)

        async def is_called() -> bool:
            return any(
                leg.call is not None for leg, _ in connector._commands.registry.legs.values()
            )

        await eventually(is_called)
        await connector.drain(0.1)
        await connector._commands.handover.stop()
        *_, last = await penstock.ended(run_id)
        await nothing_is_left(penstock, run_id, "s-fails-outlives")
        kind, _ = the_end(await penstock.raw(run_id))
    assert (kind, last.data["code"]) == ("lost", "upstream_lost")
    assert failures(caplog, run_id)


async def test_a_leg_whose_records_cannot_be_updated_is_settled_later(
    nats_server: NatsServer,
    upstream: Misbehaving,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(reaper, "FULL_SWEEP_S", 0.1)
    leave = SessionQueue.leave

    async def breaks(self: SessionQueue, *arguments: Any) -> None:
        monkeypatch.setattr(SessionQueue, "leave", leave)
        raise RuntimeError("a corrupt record")

    upstream.script(plays(agno_text("x")))
    async with pipeline(nats_server.url, agents(upstream), PIPELINE, **FAST) as penstock:
        monkeypatch.setattr(SessionQueue, "leave", breaks)
        run_id = await penstock.start_run("agno", "hello", session_id="s-fails-leave")
        *_, last = await penstock.ended(run_id)
        await nothing_is_left(penstock, run_id, "s-fails-leave")
        kind, _ = the_end(await penstock.raw(run_id))
    assert (kind, last.type) == ("end", "lifecycle.completed")
    assert len(failures(caplog, run_id)) == 1


async def test_a_leg_that_is_cancelled_while_it_waits_for_its_turn_waits_no_more(
    nats_server: NatsServer, upstream: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, waits_no_more = asyncio.Event(), asyncio.Event()
    never = asyncio.Event()  # without this variable, the event would be collected

    async def wait(self: SessionQueue, *arguments: Any) -> None:
        waits.set()
        try:
            await never.wait()
        finally:
            waits_no_more.set()

    monkeypatch.setattr(SessionQueue, "wait", wait)
    first_may_end = asyncio.Event()

    async def is_first(answer: Answer) -> None:
        await first_may_end.wait()
        await answer.whole(agno_text("x"))

    upstream.script(is_first)
    async with pipeline(nats_server.url, agents(upstream), PIPELINE) as penstock:
        first = await penstock.start_run("agno", "hello", session_id="s-turn")
        await upstream.called()
        run_id = await penstock.start_run("agno", "hello", session_id="s-turn")
        async with asyncio.timeout(30):
            await waits.wait()
        held = connector_of(penstock)._commands.registry.legs[run_id]
        held.task.cancel()
        *_, last = await penstock.ended(run_id)
        async with asyncio.timeout(30):
            await waits_no_more.wait()
        first_may_end.set()
        await penstock.ended(first)
        await nothing_is_left(penstock, run_id, "s-turn")
    assert last.data["code"] == "not_sent"
    assert len(upstream.calls) == 1


async def test_a_leg_that_is_cancelled_while_it_updates_its_records_updates_them_all(
    nats_server: NatsServer, upstream: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopping connector cancels the tasks of legs that take longer than two seconds."""
    hangs, delete = asyncio.Event(), LegRecords.delete

    async def hangs_once(self: LegRecords, run_id: str) -> None:
        monkeypatch.setattr(LegRecords, "delete", delete)
        hangs.set()
        await asyncio.Event().wait()

    upstream.script(plays(agno_text("x")))
    async with pipeline(nats_server.url, agents(upstream), PIPELINE) as penstock:
        monkeypatch.setattr(LegRecords, "delete", hangs_once)
        run_id = await penstock.start_run("agno", "hello", session_id="s-cancelled")
        async with asyncio.timeout(30):
            await hangs.wait()
        [held] = connector_of(penstock)._commands.registry.legs.values()
        held.task.cancel()
        await penstock.ended(run_id)
        await nothing_is_left(penstock, run_id, "s-cancelled")
        kind, _ = the_end(await penstock.raw(run_id))
    assert kind == "end"


async def test_a_span_that_cannot_be_recorded_makes_no_second_last_frame(
    nats_server: NatsServer,
    upstream: Misbehaving,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    upstream.script(plays(agno_text("x")))
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        monkeypatch.setattr("penstock_connector.legs.runner.span_of", raises)
        monkeypatch.setattr(spans, "is_on", lambda: True)
        run_id = await penstock.start_run("agno", "hello", session_id="s-fails-span")
        *_, last = await penstock.ended(run_id)
        monkeypatch.setattr(spans, "is_on", lambda: False)
        await nothing_is_left(penstock, run_id, "s-fails-span")
        assert the_end(await penstock.raw(run_id))[0] == "end"
    assert last.type == "lifecycle.completed"
    assert len(failures(caplog, run_id)) == 1


async def test_a_leg_whose_task_is_cancelled_in_its_last_write_has_one_last_frame(
    nats_server: NatsServer, upstream: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frame is stored, and its acknowledgement comes after the task was cancelled."""
    stored, may_answer, write = asyncio.Event(), asyncio.Event(), RawWriter.write

    async def answers_late(self: RawWriter, kind: str, *arguments: Any, **more: Any) -> int:
        sequence = await write(self, kind, *arguments, **more)
        if kind == "end":
            stored.set()
            await may_answer.wait()
        return sequence

    monkeypatch.setattr(RawWriter, "write", answers_late)
    upstream.script(plays(agno_text("x")))
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        run_id = await penstock.start_run("agno", "hello", session_id="s-late-answer")
        async with asyncio.timeout(30):
            await stored.wait()
        held = connector_of(penstock)._commands.registry.legs[run_id]
        held.task.cancel()
        await asyncio.wait({held.task}, timeout=0.2)
        may_answer.set()
        await nothing_is_left(penstock, run_id, "s-late-answer")
        assert the_end(await penstock.raw(run_id))[0] == "end"


async def test_a_leg_that_was_taken_over_during_a_loss_does_nothing_to_its_new_holder(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    """NATS has lost frames, so the number of the former holder's last frame is not in RAW."""
    goes_on = asyncio.Event()

    async def slow(answer: Answer) -> None:
        await answer.head()
        await answer.send(STARTED)
        await goes_on.wait()
        await answer.send(agno("RunContent", content="x", event_index=1))
        await answer.left()

    upstream.script(slow)
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        run_id = await penstock.start_run("agno", "hello", session_id="s-overtaken")
        await penstock.events_until(run_id, "custom.event")  # the frame with STARTED is stored
        await upstream.called()
        held = connector_of(penstock)._commands.registry.legs[run_id]
        holder = await RawWriter.resume(penstock.bus, run_id, "upstream", "another/1")
        await holder.write("claim", b'{"calls":true}', leg=1)
        held.leg.writer.raw.last = holder.last + 1000
        goes_on.set()
        async with asyncio.timeout(30):
            await asyncio.wait({held.task})
        assert held.task.result().label == "taken_over"
        assert await holder.holds()
        await holder.write("lost", b'{"code":"internal","error":"x"}', leg=1)
    assert not [request for request in upstream.requests if request.path.endswith("/cancel")]
