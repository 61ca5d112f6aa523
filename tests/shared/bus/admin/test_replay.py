"""A dead letter is replayed once to its original subject; a refused replay gives the reason."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.bus import Bus, BusUnavailable, Message, streams
from penstock.bus import messages as bus_messages
from penstock.bus.admin.replay import CannotReplay, replay_letter
from penstock.bus.read import direct
from penstock.bus.records.approvals import ContinueCommand
from penstock.bus.records.legs import Sent
from penstock.bus.records.runs import RunRecord, RunStatus
from penstock.bus.state import deadletters
from penstock.bus.state.deadletters import DeadLetter, Letter
from penstock.bus.write import objects
from support.drive.bus import new_run_id
from support.drive.dead_letters import a_cancel, buried, letter_about, stored_command


async def run_that_is(bus: Bus, run_id: str, status: RunStatus, code: str | None = None) -> None:
    now = bus_messages.now()
    record = RunRecord(
        run_id=run_id,
        agent="a",
        session_id="s",
        user_id="u",
        status=status,
        code=code,
        created_at=now,
        updated_at=now,
    )
    await bus.bucket("runs").put(run_id, record.dump())


def a_continue(run_id: str, approval_id: str) -> bytes:
    command = ContinueCommand(
        run_id=run_id, agent="a", session_id="s", leg=2, approval_id=approval_id, items=[]
    )
    return command.dump()


async def again(bus: Bus, found: Letter) -> Letter:
    """Read the dead letter again."""
    letter = await deadletters.find(bus, found.number)
    assert letter is not None
    return letter


async def why_not(bus: Bus, letter: DeadLetter) -> str:
    found = await buried(bus, letter)
    with pytest.raises(CannotReplay) as refusal:
        await replay_letter(bus, found)
    assert (await again(bus, found)).mark is None
    return str(refusal.value)


async def test_a_command_goes_back_to_its_subject_with_its_headers(bus: Bus) -> None:
    headers = {"traceparent": "00-1", "Nats-Msg-Id": "of the first time"}
    found = await buried(bus, letter_about(subject := a_cancel(), b"{}", headers=headers))
    assert await replay_letter(bus, found)
    stored = await bus.tail(streams.COMMANDS, subject)
    assert stored is not None
    assert stored.payload == b"{}"
    assert stored.headers["traceparent"] == "00-1"
    mark = (await again(bus, found)).mark
    assert mark is not None
    assert mark.state == "replayed"


async def test_a_replayed_letter_is_not_replayed_again(bus: Bus) -> None:
    found = await buried(bus, letter_about(subject := a_cancel()))
    assert await replay_letter(bus, found)
    assert not await replay_letter(bus, await again(bus, found))
    assert await stored_command(bus, subject) == 1


async def test_two_who_put_back_at_once_do_it_once(bus: Bus) -> None:
    found = await buried(bus, letter_about(subject := a_cancel()))
    await replay_letter(bus, found)
    await replay_letter(bus, found)  # `found` was read before the first replay wrote its mark
    assert await stored_command(bus, subject) == 1


@pytest.mark.parametrize("stored", [True, False])
async def test_a_replay_that_is_killed_between_publish_and_mark_replays_once(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    found = await buried(bus, letter_about(subject := a_cancel()))
    publish = bus.publisher.publish

    async def cut(message: Message, *more: Any) -> int:
        if message.subject != subject:
            return await publish(message, *more)
        if stored:
            await publish(message, *more)
        raise BusUnavailable("cut off, as the test wants")

    with monkeypatch.context() as patched:
        patched.setattr(bus.publisher, "publish", cut)
        with pytest.raises(BusUnavailable):
            await replay_letter(bus, found)
    half_done = await again(bus, found)
    assert half_done.mark is not None
    assert half_done.mark.state == "replaying"
    assert await replay_letter(bus, half_done)
    assert await stored_command(bus, subject) == 1


@pytest.mark.parametrize("service", ["approvals"])
async def test_an_event_goes_to_the_service_that_gave_it_up(bus: Bus, service: str) -> None:
    run_id = new_run_id()
    letter = letter_about(f"approval.requested.{run_id}", b"x" * 700_000, service=service)
    found = await buried(bus, letter)
    assert await replay_letter(bus, found)
    stored = await bus.tail(streams.COMMANDS, f"command.{service}.replay.{run_id}")
    assert stored is not None
    whole = await objects.unwrap(bus, stored.payload)
    assert DeadLetter.model_validate_json(whole) == letter
    assert letter.message.payload == b"x" * 700_000
    assert [e async for e in direct.replay(bus, streams.EVENTS, letter.subject)] == []


@pytest.mark.parametrize(
    ("kind", "status", "code", "words"),
    [
        ("start", "failed", "internal", "ended (failed, code internal).*cannot be started again"),
        ("start", "running", None, "has been started meanwhile"),
        ("continue", "failed", "internal", "ended (failed, code internal).*cannot go on"),
        ("cancel", "completed", None, "ended (completed): there is nothing to cancel"),
    ],
)
async def test_a_command_whose_run_is_past_it_is_refused(
    bus: Bus, kind: str, status: Any, code: str | None, words: str
) -> None:
    run_id = new_run_id()
    await run_that_is(bus, run_id, status, code)
    why = await why_not(bus, letter_about(subject := f"command.connector.{kind}.{run_id}"))
    before, _, after = words.partition(".*")
    assert before in why
    assert after in why
    assert await stored_command(bus, subject) == 0


async def test_a_start_that_nobody_has_carried_out_goes_back(bus: Bus) -> None:
    run_id = new_run_id()
    await run_that_is(bus, run_id, "queued")
    found = await buried(bus, letter_about(f"command.connector.start.{run_id}"))
    assert await replay_letter(bus, found)


@pytest.mark.parametrize("state", ["done", "refused", "outcome_unknown"])
async def test_a_decision_that_was_dealt_with_is_never_sent_again(bus: Bus, state: Any) -> None:
    run_id, approval_id = new_run_id(), new_run_id()
    await run_that_is(bus, run_id, "running")
    await bus.bucket("sent").put(approval_id, Sent(pod="p", state=state).dump())
    payload = a_continue(run_id, approval_id)
    why = await why_not(bus, letter_about(f"command.connector.continue.{run_id}", payload))
    assert f"dealt with ({state})" in why


async def test_a_decision_that_was_not_sent_goes_back(bus: Bus) -> None:
    run_id, approval_id = new_run_id(), new_run_id()
    await run_that_is(bus, run_id, "paused")
    payload = a_continue(run_id, approval_id)
    found = await buried(bus, letter_about(f"command.connector.continue.{run_id}", payload))
    assert await replay_letter(bus, found)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("failed", "never taken back"),
        ("completed", "never taken back"),
        ("running", "continued without"),
    ],
)
async def test_a_source_frame_is_not_replayed_and_the_reason_is_reported(
    bus: Bus, status: Any, words: str
) -> None:
    run_id = new_run_id()
    await run_that_is(bus, run_id, status)
    letter = letter_about(f"rawp.3.{run_id}.upstream", service="normalizer")
    assert words in await why_not(bus, letter)


async def test_what_a_subscriber_gave_up_is_the_subscribers(bus: Bus) -> None:
    letter = letter_about(f"llm.stream.{new_run_id()}", service="billing")
    assert "billing, which takes no replays" in await why_not(bus, letter)


async def test_a_decision_that_cannot_be_read_is_refused(bus: Bus) -> None:
    letter = letter_about(f"command.connector.continue.{new_run_id()}", b"\xff")
    assert "its command cannot be read" in await why_not(bus, letter)


@pytest.mark.parametrize("claimed", ["edge", "connector"])
async def test_a_letter_that_an_edge_wrote_publishes_no_command(bus: Bus, claimed: str) -> None:
    run_id, approval_id = new_run_id(), new_run_id()
    await run_that_is(bus, run_id, "paused")
    subject = f"command.connector.continue.{run_id}"
    forged = letter_about(subject, a_continue(run_id, approval_id), service=claimed)
    # The NATS user of an edge may publish there, and nowhere else among the dead letters.
    await bus.publisher.publish(Message(f"deadletter.edge.{run_id}", forged.dump(), {}))
    [found] = [each async for each in deadletters.letters(bus, "edge", run_id)]
    with pytest.raises(CannotReplay, match="edge wrote it about a command to connector"):
        await replay_letter(bus, found)
    assert await stored_command(bus, subject) == 0


async def test_a_letter_that_an_edge_wrote_makes_no_event_for_approvals(bus: Bus) -> None:
    run_id = new_run_id()
    forged = letter_about(f"approval.requested.{run_id}", service="approvals")
    await bus.publisher.publish(Message(f"deadletter.edge.{run_id}", forged.dump(), {}))
    [found] = [each async for each in deadletters.letters(bus, "edge", run_id)]
    with pytest.raises(CannotReplay, match="edge, which takes no replays"):
        await replay_letter(bus, found)
    assert await stored_command(bus, f"command.approvals.replay.{run_id}") == 0
