"""A decision goes upstream at most once, with the stored objects, whichever connector is killed."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import orjson
import pytest

from penstock import telemetry
from penstock.bus import RawWriter
from penstock.bus.records.approvals import ApprovalRecord, ContinueCommand, Decided
from penstock.bus.records.legs import PauseRecord, Sent
from penstock.settings import Config
from penstock_connector.service import ConnectorService
from penstock_normalizer.service import NormalizerService
from support.drive.dead_letters import all_letters
from support.drive.pipeline import PIPELINE, Pipeline, Services, pipeline, types
from support.drive.waiting import eventually
from support.fakes.misbehaving import Misbehaving, agents, misbehaving, plays, stalls
from support.fakes.raw import agno_approved, agno_pause, agno_text
from support.real.connectors import DEAD, FAST
from support.real.nats import NatsServer
from support.recorded.released import VERSIONS, left

TWO: Services = (*PIPELINE, ConnectorService)
# Services without approvals: the tests make the continue command themselves.
UNASKED: Services = (NormalizerService, ConnectorService)
UNASKED_TWO: Services = (*UNASKED, ConnectorService)


async def paused_run(penstock: Pipeline) -> ContinueCommand:
    """Pause a run; return the continue command that its approval would publish."""
    run_id = await penstock.start_run("agno", "delete")
    *_, requested = await penstock.events_until(run_id, "approval.requested")
    (item,) = requested.data["items"]
    record = await penstock.record(run_id)
    command = ContinueCommand(
        run_id=run_id,
        agent="agno",
        session_id=record.session_id,
        user_id="u1",
        leg=2,
        approval_id=requested.data["approval_id"],
        items=[Decided(item_id=item["item_id"], decision="approve", note="fine")],
    )
    await penstock.write_down(command, requested)
    return command


def continues(upstream: Misbehaving) -> list[dict[str, str]]:
    return [call.form for call in upstream.calls if call.path.endswith("/continue")]


async def sending(penstock: Pipeline, command: ContinueCommand, state: str) -> bool:
    """Wait until the record of the sending has this state."""

    async def probe() -> bool:
        entry = await penstock.bus.bucket("sent").get(command.approval_id)
        return entry is not None and Sent.model_validate_json(entry.value or b"").state == state

    return await eventually(probe, what=f"the sending {state}")


async def test_the_stored_objects_go_upstream_with_nothing_but_the_decision_set(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_pause()), plays(agno_approved()))
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        run_id = await penstock.start_run("agno", "delete")
        *_, paused = await penstock.events_until(run_id, "lifecycle.paused")
        await penstock.decide(paused.data["approval_id"], note="be careful")
        events = await penstock.ended(run_id)
        frames = await penstock.raw(run_id)
        assert await penstock.body(run_id, 1) == agno_pause()
        assert await penstock.body(run_id, 2) == agno_approved()
    (form,) = continues(upstream)
    (tool,) = orjson.loads(form["tools"])
    assert tool == {
        "tool_call_id": "t1",
        "tool_name": "delete_file",
        "tool_args": {"path": "/x"},
        "requires_confirmation": True,
        "confirmed": True,
        "confirmation_note": "be careful",
        "result": None,
    }
    assert types(events)[-1] == "lifecycle.completed"
    assert [event.leg for event in events if event.type.startswith("lifecycle.")] == [1, 1, 2, 2]
    assert [frame.kind for frame in frames] == ["open", "bytes", "end"] * 2


async def test_a_continue_that_is_delivered_again_is_sent_once(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_pause()), plays(agno_approved()))
    async with pipeline(nats_server.url, agents(upstream), UNASKED_TWO) as penstock:
        command = await paused_run(penstock)
        for _ in range(5):
            await penstock.command("continue", command)
        *_, last = await penstock.ended(command.run_id)
        await sending(penstock, command, "done")
        await penstock.command("continue", command)
        upstream.script(plays(agno_text("x")))
        await penstock.ended(await penstock.start_run("agno", "another"))
        frames = await penstock.raw(command.run_id)
    assert last.type == "lifecycle.completed"
    assert len(continues(upstream)) == 1
    assert [frame.kind for frame in frames] == ["open", "bytes", "end"] * 2


async def test_what_a_dead_connector_claimed_and_did_not_send_is_sent_by_another(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_pause()), plays(agno_approved()))
    async with pipeline(nats_server.url, agents(upstream), UNASKED, **FAST) as penstock:
        command = await paused_run(penstock)
        await penstock.bus.bucket("sent").create(command.approval_id, Sent(pod=DEAD).dump())
        await penstock.command("continue", command)
        *_, last = await penstock.ended(command.run_id)
        await sending(penstock, command, "done")
    assert last.type == "lifecycle.completed"
    assert len(continues(upstream)) == 1


async def test_a_decision_that_cannot_reach_the_server_does_not_hide_that_the_run_had_begun(
    nats_server: NatsServer,
) -> None:
    async with AsyncExitStack() as server:
        upstream = await server.enter_async_context(misbehaving())
        upstream.script(plays(agno_pause()))
        async with pipeline(nats_server.url, agents(upstream), UNASKED) as penstock:
            command = await paused_run(penstock)
            await server.aclose()
            await penstock.command("continue", command)
            *_, last = await penstock.ended(command.run_id)
    assert last.data["code"] == "upstream_lost"
    assert last.data["retryable"] is True


async def test_what_a_dead_connector_had_opened_is_never_sent_again(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_pause()), plays(agno_approved()))
    async with pipeline(nats_server.url, agents(upstream), UNASKED, **FAST) as penstock:
        command = await paused_run(penstock)
        await penstock.bus.bucket("sent").create(command.approval_id, Sent(pod=DEAD).dump())
        dead = await RawWriter.resume(penstock.bus, command.run_id, "upstream", f"{DEAD}/1")
        opened = {"agent": "agno", "approval_id": command.approval_id, "items": []}
        await dead.write("open", orjson.dumps(opened), leg=2)
        await penstock.command("continue", command)
        *_, last = await penstock.ended(command.run_id)
        await sending(penstock, command, "outcome_unknown")
    assert last.type == "lifecycle.failed"
    assert last.data["code"] == "outcome_unknown"
    assert not continues(upstream)


async def test_a_decision_on_a_run_that_was_cancelled_meanwhile_is_not_sent(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_pause()), plays(agno_approved()))
    async with pipeline(nats_server.url, agents(upstream), UNASKED) as penstock:
        command = await paused_run(penstock)
        await penstock.cancel(command.run_id)
        await penstock.ended(command.run_id)
        await penstock.command("continue", command)
        await sending(penstock, command, "refused")
        events = await penstock.ended(command.run_id)
    assert types(events)[-1] == "lifecycle.cancelled"
    assert not continues(upstream)


async def test_a_decision_and_a_cancel_at_once_end_the_run_once(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_pause()))
    async with pipeline(nats_server.url, agents(upstream), TWO) as penstock:
        commands = [await paused_run(penstock) for _ in range(10)]
        upstream.script(plays(agno_approved()))
        for command in commands:
            await penstock.command("continue", command)
            await penstock.cancel(command.run_id)
        for command in commands:
            events = await penstock.ended(command.run_id)
            assert types(events)[-1] in ("lifecycle.completed", "lifecycle.cancelled")
    sent = [form["session_id"] for form in continues(upstream)]
    assert len(sent) == len(set(sent))


async def test_a_continue_that_breaks_before_an_answer_is_of_unknown_outcome(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    async def hangs_up(answer: Any) -> None:
        answer.cut()

    upstream.script(plays(agno_pause()), hangs_up)
    async with pipeline(nats_server.url, agents(upstream), UNASKED) as penstock:
        command = await paused_run(penstock)
        await penstock.command("continue", command)
        *_, last = await penstock.ended(command.run_id)
        await sending(penstock, command, "outcome_unknown")
    assert last.data["code"] == "outcome_unknown"
    assert len(continues(upstream)) == 1


async def test_a_continued_run_can_be_cancelled(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_pause()), stalls)
    async with pipeline(nats_server.url, agents(upstream), UNASKED, cancel_grace_s=0.2) as penstock:
        command = await paused_run(penstock)
        await penstock.command("continue", command)
        await upstream.called(2)
        await penstock.cancel(command.run_id)
        *_, last = await penstock.ended(command.run_id)
    assert last.type == "lifecycle.cancelled"


async def test_a_decision_for_an_agent_that_is_no_longer_configured_ends_the_run(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_pause()))
    async with pipeline(nats_server.url, agents(upstream), UNASKED) as penstock:
        command = await paused_run(penstock)
    async with pipeline(nats_server.url, Config(), UNASKED) as penstock:
        await penstock.command("continue", command)
        *_, last = await penstock.ended(command.run_id)
    assert last.type == "lifecycle.failed"
    assert last.data["code"] == "internal"


@pytest.mark.parametrize("services", [UNASKED, UNASKED_TWO], ids=["one", "two"])
async def test_a_decision_whose_pause_is_not_kept_ends_the_run(
    nats_server: NatsServer, upstream: Misbehaving, services: Services
) -> None:
    """The same holds if a connector without the sending's claim gets the command again."""
    upstream.script(plays(agno_pause()))
    async with pipeline(nats_server.url, agents(upstream), services) as penstock:
        command = await paused_run(penstock)
        pauses = penstock.bus.bucket("pauses")
        entry = await pauses.get(command.run_id)
        assert entry is not None
        pause = PauseRecord.model_validate_json(entry.value or b"")
        other = pause.model_copy(update={"approval_id": "another"})
        await pauses.put(command.run_id, other.dump())
        await penstock.command("continue", command)
        *_, last = await penstock.ended(command.run_id)
    assert last.data["code"] == "internal"
    assert not continues(upstream)


# continue commands without a decision


async def refused(penstock: Pipeline, command: ContinueCommand | bytes, run_id: str) -> str:
    """Publish a continue command that becomes a dead letter; return the letter's reason."""
    before = len(await all_letters(penstock.bus, run_id=run_id))
    payload = command if isinstance(command, bytes) else command.dump()
    await penstock.publish("continue", run_id, payload)

    async def more() -> str | None:
        found = await all_letters(penstock.bus, run_id=run_id)
        return found[-1].letter.reason if len(found) > before else None

    reason = await eventually(more, 30, what="a dead letter")
    assert reason is not None
    return reason


async def test_a_continue_that_nobody_decided_is_not_sent_and_the_decision_is(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_pause()), plays(agno_approved()))
    counted = telemetry.CONTINUES_REFUSED._value.get()
    async with pipeline(nats_server.url, agents(upstream)) as penstock:
        run_id = await penstock.start_run("agno", "delete")
        *_, paused = await penstock.events_until(run_id, "lifecycle.paused")
        approval = await penstock.approval(paused.data["approval_id"])
        command = ContinueCommand(
            run_id=run_id,
            agent="agno",
            session_id=approval.session_id,
            user_id="u1",
            leg=2,
            approval_id=approval.approval_id,
            items=[Decided(item_id=approval.items[0]["item_id"], decision="approve")],
        )
        assert "is pending" in await refused(penstock, command, run_id)
        assert (await penstock.approval(approval.approval_id)).status == "pending"
        assert continues(upstream) == []
        # An unreadable command must not end the paused run either.
        await refused(penstock, b"{}", run_id)
        await penstock.record(run_id, "paused")
        assert (await penstock.approval(approval.approval_id)).status == "pending"
        await penstock.decide(approval.approval_id)
        *_, last = await penstock.ended(run_id)
    assert last.type == "lifecycle.completed"
    assert len(continues(upstream)) == 1
    assert telemetry.CONTINUES_REFUSED._value.get() == counted + 1


OTHERWISE: dict[str, dict[str, Any]] = {
    "decision": {"decision": "reject"},
    "note": {"note": "another"},
    "value": {"value": {"path": "/etc"}},
}


async def test_a_continue_that_says_something_else_than_was_decided_is_not_sent(
    nats_server: NatsServer, upstream: Misbehaving
) -> None:
    upstream.script(plays(agno_pause()), plays(agno_approved()))
    async with pipeline(nats_server.url, agents(upstream), UNASKED) as penstock:
        command = await paused_run(penstock)
        (item,) = command.items
        others: list[dict[str, Any]] = [
            {"items": [item.model_copy(update=each)]} for each in OTHERWISE.values()
        ]
        others += [{"leg": 3}, {"user_id": "mallory"}, {"session_id": "another"}]
        others.append({"invocation_id": "e-2"})
        for other in others:
            said = await refused(penstock, command.model_copy(update=other), command.run_id)
            assert next(iter(other)) in said
        gone = {"approval_id": "00000000-0000-7000-8000-000000000000"}
        unknown = command.model_copy(update=gone)
        assert "there is no approval" in await refused(penstock, unknown, command.run_id)
        assert continues(upstream) == []
        await penstock.command("continue", command)
        *_, last = await penstock.ended(command.run_id)
    assert last.type == "lifecycle.completed"
    assert len(continues(upstream)) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_the_records_of_a_release_bring_the_commands_that_it_sent(version: str) -> None:
    found = left(version)
    command = ContinueCommand.model_validate_json(found["commands"]["continue"])
    records = [
        ApprovalRecord.model_validate_json(message["payload"])
        for message in found["messages"]["KV_approvals"]
        if message["payload"] and message["subject"].endswith(f"approvals.{command.approval_id}")
    ]
    assert [record.continue_command() for record in records] == [command]
