"""Each escalation and reminder that is reached is announced once, in order, and only while the run
waits."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import orjson
import pytest

from penstock.bus import streams, subjects
from penstock.bus.read import direct
from penstock.bus.records.approvals import ApprovalRecord
from penstock.settings import Config
from penstock_approvals.api.changes import name_of
from penstock_approvals.lifecycle.decisions import Approvals
from penstock_approvals.outcomes.automatic import expiring_at_most, reached_count
from penstock_approvals.runs.events import request_events
from penstock_approvals.service import ApprovalsService
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import Event, Pipeline, Services, pipeline
from support.drive.short import in_short
from support.drive.waiting import eventually
from support.fakes.pauses import end, pause
from support.fakes.policies import later_bus, person, vote, written
from support.real.approving import approvals_process
from support.real.nats import NatsServer

ONE: Services = (NormalizerService, ApprovalsService)
WITHOUT: Services = (NormalizerService,)
AGAIN: Services = (ApprovalsService,)
LEADS = "{after: 1s, to: {roles: [leads]}}"
CHIEF = "{after: 2s, to: {users: [chief, requester]}}"
TWO_STEPS = f"default: {{deadline: 1h, escalate: [{LEADS}, {CHIEF}]}}\n"
ADA = person("u1")


def told(events: list[Event]) -> list[str]:
    """Return what the timeline says from the pause on; of escalations with their numbers."""
    names = [f"{each.type} {each.data.get('step', '')}".strip() for each in events]
    return names[names.index("lifecycle.paused") :]


async def announced(penstock: Pipeline, approval: ApprovalRecord) -> list[str]:
    """Return what the approvals service has announced of the run, in the order of RAW."""
    found = [
        orjson.loads(each.payload) for each in await penstock.raw(approval.run_id, "approvals")
    ]
    return [f"{each['type']} {each['data'].get('step', '')}".strip() for each in found]


async def until(penstock: Pipeline, approval: ApprovalRecord, step: int) -> list[Event]:
    """Return the events of the run up to the announcement of a step."""
    return await penstock.events_until(
        approval.run_id,
        lambda event: event.type == "approval.escalated" and event.data["step"] == step,
    )


async def test_each_step_is_announced_with_whom_it_lets_decide(
    nats: NatsServer, tmp_path: Path
) -> None:
    policy = written(tmp_path, TWO_STEPS)
    async with pipeline(nats.url, Config(), ONE, policy=policy, outbox_s=0.1) as penstock:
        approval = await pause(penstock)
        events = await until(penstock, approval, 2)
        record = await penstock.approval(approval.approval_id)
        chief = person("chief")
        assert (await penstock.ask(approval.approval_id, vote(record, chief))).status == 200
        events = await penstock.events_until(approval.run_id, "approval.decided")
        said = await announced(penstock, approval)
    assert said == told(events)
    assert said == [
        *("lifecycle.paused", "approval.escalated 1", "approval.escalated 2", "approval.decided")
    ]
    facts = {"approval_id": approval.approval_id, "expires_at": approval.expires_at}
    assert [each.data for each in events if each.type == "approval.escalated"] == [
        {**facts, "step": 1, "to": {"roles": ["leads"], "users": []}},
        {**facts, "step": 2, "to": {"roles": [], "users": ["chief", "u1"]}},
    ]
    assert name_of(record) == "approval.escalated", "the name of the live change"


async def test_steps_come_before_the_expiry_and_none_comes_after_it(
    nats: NatsServer, tmp_path: Path
) -> None:
    terms = f"deadline: 3s, remind: [1s], escalate: [{LEADS}]"
    policy = written(tmp_path, f"default: {{{terms}}}\n")
    async with pipeline(nats.url, Config(), ONE, policy=policy, outbox_s=0.1) as penstock:
        approval = await pause(penstock)
        events = await penstock.events_until(approval.run_id, "approval.decided")
        audit = await penstock.http.get(f"/v1/approvals/{approval.approval_id}/audit")
    assert told(events) == [
        *("lifecycle.paused", "approval.escalated 1", "approval.reminded 2"),
        *("approval.expired", "approval.decided"),
    ]
    [reminded] = [each.data for each in events if each.type == "approval.reminded"]
    facts = {"approval_id": approval.approval_id, "expires_at": approval.expires_at}
    assert reminded == {**facts, "step": 2}
    recorded = [each["event"] for each in audit.json()["records"]]
    assert recorded[:4] == ["requested", "escalated", "reminded", "expired"]


@pytest.mark.parametrize("ending", ["decided", "withdrawn"])
async def test_an_approval_that_has_ended_is_not_escalated_later(
    nats: NatsServer, tmp_path: Path, ending: str
) -> None:
    steps = "[{after: 30m, to: {roles: [leads]}}]"
    policy = written(tmp_path, f"default: {{deadline: 2h, escalate: {steps}}}\n")
    async with pipeline(nats.url, Config(), ONE, policy=policy, outbox_s=0.1) as penstock:
        approval = await pause(penstock)
        if ending == "decided":
            await penstock.ask(approval.approval_id, vote(approval, ADA))
        else:
            await end(penstock, approval.run_id)
        await penstock.events_until(approval.run_id, f"approval.{ending}")
        late = Approvals(later_bus(penstock.bus, timedelta(hours=1)), "late")
        await late.on_due(approval.approval_id)
        record = await penstock.approval(approval.approval_id)
        said = await announced(penstock, approval)
    assert (record.status, record.escalated) == (ending, 0)
    assert said == ["lifecycle.paused", f"approval.{ending}"]


async def test_after_an_outage_each_step_that_was_reached_is_announced_once_in_order(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    policy = written(tmp_path, TWO_STEPS)
    async with pipeline(fresh_nats.url, Config(), WITHOUT) as penstock:
        async with approvals_process(fresh_nats.url, policy=policy) as victim:
            approval = await pause(penstock)
            await victim.kill()
        at = datetime.fromisoformat(approval.escalations[-1].at)
        await asyncio.sleep((at - datetime.now(UTC)).total_seconds() + 1.1)
        before = await penstock.approval(approval.approval_id)
        async with pipeline(fresh_nats.url, Config(), AGAIN, policy=policy, ack_wait_s=1):
            events = await until(penstock, approval, 2)
            again = Approvals(penstock.bus, "again")
            await again.on_due(approval.approval_id)
            said = await announced(penstock, approval)
    assert before.escalated == 0, "the process was killed before the first step"
    assert told(events) == said
    assert said == ["lifecycle.paused", "approval.escalated 1", "approval.escalated 2"]


async def test_a_step_that_is_noticed_after_the_deadline_is_not_announced(
    nats: NatsServer, tmp_path: Path
) -> None:
    steps = "[{after: 30m, to: {roles: [leads]}}]"
    policy = written(tmp_path, f"default: {{deadline: 1h, escalate: {steps}}}\n")
    async with pipeline(nats.url, Config(), ONE, policy=policy, outbox_s=0.1) as penstock:
        approval = await pause(penstock)
        late = Approvals(later_bus(penstock.bus, timedelta(hours=2)), "late")
        await late.on_due(approval.approval_id)
        events = await penstock.events_until(approval.run_id, "approval.decided")
    assert told(events) == ["lifecycle.paused", "approval.expired", "approval.decided"]


# The record, the audit, the event. Then a message that waits already is scheduled again.
WRITES = 4


@pytest.mark.parametrize("write", in_short(range(1, WRITES + 1), [3]))
async def test_a_kill_at_any_write_of_a_step_leaves_it_announced_once(
    fresh_nats: NatsServer, tmp_path: Path, write: int
) -> None:
    """Odd writes are those of an escalation, even ones of a reminder, which takes the same way."""
    step, terms = ("escalated", f"escalate: [{LEADS}]"), ("reminded", "remind: [3599s]")
    kind, term = step if write % 2 else terms
    policy = written(tmp_path, f"default: {{deadline: 1h, {term}}}\n")
    async with pipeline(fresh_nats.url, Config(), WITHOUT) as penstock:
        dies = approvals_process(
            fresh_nats.url, dies_in=("on_due", write), ack_wait_s=1, outbox_s=60, policy=policy
        )
        async with dies as victim:
            approval = await pause(penstock)
            assert await victim.process.ended() == -signal.SIGKILL
        async with pipeline(
            fresh_nats.url, Config(), AGAIN, policy=policy, ack_wait_s=1, outbox_s=0.1
        ):
            await penstock.events_until(approval.run_id, f"approval.{kind}")

            async def handled() -> bool:
                subject = f"due.approvals.escalation-1.{approval.run_id}-1"
                return await penstock.bus.tail(streams.SCHEDULES, subject) is None

            await eventually(handled, 30, "the message of the step is handled")
            await penstock.ask(approval.approval_id, vote(approval, ADA))
            events = await penstock.events_until(approval.run_id, "approval.decided")
            said = await announced(penstock, approval)
    assert said == ["lifecycle.paused", f"approval.{kind} 1", "approval.decided"]
    assert told(events) == said


async def test_a_decision_announces_the_step_that_a_killed_process_left_unsaid(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    """The step is in the record, and the decision comes before its message is delivered again."""
    policy = written(tmp_path, f"default: {{deadline: 1h, escalate: [{LEADS}]}}\n")
    async with pipeline(fresh_nats.url, Config(), WITHOUT) as penstock:
        async with approvals_process(fresh_nats.url, dies_in=("on_due", 2), policy=policy) as dies:
            approval = await pause(penstock)
            assert await dies.process.ended() == -signal.SIGKILL
        lead = person("lee", "leads")
        async with pipeline(fresh_nats.url, Config(), AGAIN, policy=policy, outbox_s=0.1) as other:
            await other.ask(approval.approval_id, vote(approval, lead))
            events = await penstock.events_until(approval.run_id, "approval.decided")
    assert told(events) == ["lifecycle.paused", "approval.escalated 1", "approval.decided"]


async def test_steps_whose_announcements_have_aged_out_of_raw_are_not_announced_again(
    nats: NatsServer, tmp_path: Path
) -> None:
    """RAW keeps frames for a day; an approval may wait for longer."""
    steps = "[{after: 1s, to: {roles: [leads]}}, {after: 30m, to: {users: [chief]}}]"
    policy = written(tmp_path, f"default: {{deadline: 2h, escalate: {steps}}}\n")
    async with pipeline(nats.url, Config(), ONE, policy=policy, outbox_s=0.1) as penstock:
        approval = await pause(penstock)
        await until(penstock, approval, 1)
        aged = subjects.raw_of_run(approval.run_id)
        await penstock.bus.api(f"STREAM.PURGE.{streams.RAW}", {"filter": aged})
        late = Approvals(later_bus(penstock.bus, timedelta(hours=1)), "late")
        await late.on_due(approval.approval_id)
        second = await announced(penstock, approval)
        await penstock.bus.api(f"STREAM.PURGE.{streams.RAW}", {"filter": aged})
        await penstock.ask(approval.approval_id, vote(approval, ADA))
        await penstock.events_until(approval.run_id, "approval.decided")
        last = await announced(penstock, approval)
    assert (second, last) == (["approval.escalated 2"], ["approval.decided"])


async def test_a_step_that_a_killed_process_left_unsaid_is_announced_without_frames_in_raw(
    nats: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most reminders come days after the request, when RAW has no frame of the run any more."""
    policy = written(tmp_path, "default: {deadline: 2h, remind: [1h]}\n")
    async with pipeline(nats.url, Config(), ONE, policy=policy, outbox_s=0.1) as penstock:
        approval = await pause(penstock)
        await penstock.events_until(approval.run_id, "lifecycle.paused")
        aged = subjects.raw_of_run(approval.run_id)
        await penstock.bus.api(f"STREAM.PURGE.{streams.RAW}", {"filter": aged})
        in_time = later_bus(penstock.bus, timedelta(minutes=90))
        dies, after = (Approvals(in_time, pod) for pod in ("dies", "after"))
        monkeypatch.setattr(dies, "_announcements", None)  # the process ends before it announces
        with pytest.raises(AttributeError):
            await dies.on_due(approval.approval_id)
        for _ in range(2):  # the message is delivered again
            await after.on_due(approval.approval_id)
        events = await penstock.events_until(approval.run_id, "approval.reminded")
        said = await announced(penstock, approval)
    assert said == ["approval.reminded 1"]
    assert told(events) == ["lifecycle.paused", *said]


async def test_a_message_that_comes_too_early_is_scheduled_again(
    nats: NatsServer, tmp_path: Path
) -> None:
    """A message is deleted after it was handled, so without a new one nothing would expire."""
    policy = written(tmp_path, "default: {deadline: 1h}\n")
    async with pipeline(nats.url, Config(), ONE, policy=policy) as penstock:
        approval = await pause(penstock)
        await penstock.bus.api(f"STREAM.PURGE.{streams.SCHEDULES}", {"filter": "schedule.>"})
        await Approvals(penstock.bus, "early").on_due(approval.approval_id)
        found = direct.replay(penstock.bus, streams.SCHEDULES, "schedule.approvals.>")
        left = [each.subject async for each in found]
    assert left == [f"schedule.approvals.expiry.{approval.run_id}-1"]


@pytest.mark.parametrize(
    ("until", "kept"),
    [
        ("2026-11-22T10:40:00.5Z", ["10:10:00Z", "10:10:00.500000+00:00"]),
        ("2026-11-22T10:30:00Z", ["10:10:00Z"]),
    ],
)
def test_reminders_come_before_an_earlier_deadline_of_the_workflow(
    until: str, kept: list[str]
) -> None:
    """A reminder that would have come before the request is left out."""
    day = "2026-11-22T"
    steps = [{"at": f"{day}10:10:00Z", "to": {"roles": ["r"]}}, {"at": f"{day}11:30:00Z"}]
    record = ApprovalRecord.model_validate(
        {
            **{"approval_id": "a", "run_id": "r", "agent": "x", "session_id": "s", "user_id": "u"},
            **{"leg": 1, "digest": "d", "items": [], "escalations": steps},
            **{"requested_at": f"{day}10:00:00Z", "updated_at": f"{day}10:00:00Z"},
            "expires_at": f"{day}12:00:00Z",
        }
    )
    earlier = expiring_at_most(record, until)
    assert [each.at.removeprefix(day) for each in earlier.escalations] == kept
    assert earlier.expires_at == until


def test_the_events_of_a_record_are_those_of_the_steps_that_it_counts() -> None:
    steps = [{"at": f"2026-11-22T10:0{n}:00.000Z", "to": {"roles": [f"r{n}"]}} for n in (1, 2, 3)]
    record = ApprovalRecord.model_validate(
        {
            **{"approval_id": "a", "run_id": "r", "agent": "x", "session_id": "s", "user_id": "u"},
            **{"leg": 1, "digest": "d", "items": [], "escalations": steps, "escalated": 2},
            **{"requested_at": "2026-11-22T10:00:00Z", "updated_at": "2026-11-22T10:02:00Z"},
        }
    )
    (first, _), *escalated = request_events(record)
    assert first == "lifecycle.paused"
    assert [data["step"] for _, data in escalated] == [1, 2]
    assert all("expires_at" not in data for _, data in escalated)
    assert name_of(record) == "approval.escalated"
    reminder = [steps[0], {"at": steps[1]["at"], "to": None}]
    reminded = ApprovalRecord.model_validate(record.model_dump() | {"escalations": reminder})
    assert [type_ for type_, _ in request_events(reminded)[1:]] == [
        *("approval.escalated", "approval.reminded")
    ]
    assert name_of(reminded) == "approval.reminded", "the name of the live change"
    assert reached_count(record, datetime(2026, 11, 22, 10, 2, 30, tzinfo=UTC)) == 2


# The outbox entry, the record, the audit, the event, and the removal of the entry.
REMARK_WRITES = 5


@pytest.mark.parametrize("write", in_short(range(1, REMARK_WRITES + 1), [3]))
async def test_a_kill_at_any_write_leaves_a_question_told_once(
    fresh_nats: NatsServer, tmp_path: Path, write: int
) -> None:
    policy = written(tmp_path, "default: {deciders: {}}\n")
    async with pipeline(fresh_nats.url, Config(), WITHOUT) as penstock:
        dies = approvals_process(fresh_nats.url, dies_in=("amend", write), policy=policy)
        async with dies as victim:
            approval = await pause(penstock)
            path = f"/v1/approvals/{approval.approval_id}/remarks"
            body = {"kind": "question", "text": "Why?"}
            with suppress(httpx.HTTPError):
                await penstock.http.post(f"{victim.url}{path}", json=body)
            assert await victim.process.ended() == -signal.SIGKILL
        async with pipeline(fresh_nats.url, Config(), AGAIN, policy=policy, outbox_s=0.1) as other:
            if write > 2:  # the question is in the record, so it is told without a repeat
                await penstock.events_until(approval.run_id, "approval.remarked")
            # Whoever did not get an answer asks again.
            again = await other.http.post(path, json=body)
            assert again.status_code == 200, again.text
            await other.ask(approval.approval_id, vote(approval, ADA))
            events = await penstock.events_until(approval.run_id, "approval.decided")
            said = await announced(penstock, approval)
    assert said == ["lifecycle.paused", "approval.remarked 1", "approval.decided"]
    assert told(events) == said
    assert len(again.json()["remarks"]) == 1
