"""A deadline holds by the server's clock, with and without a scheduled message."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.bus import Msg, streams, subjects
from penstock.bus.read import direct
from penstock.bus.records.approvals import ApprovalRecord
from penstock.bus.records.runs import CancelCommand
from penstock.settings import Config
from penstock_approvals.lifecycle.decisions import Approvals
from penstock_approvals.lifecycle.restore import Restore
from penstock_approvals.runs.announcements import Announcements
from penstock_approvals.service import ApprovalsService
from penstock_approvals.store.policies import Policies
from penstock_normalizer.service import NormalizerService
from support.drive.bus import connected, new_run_id
from support.drive.pipeline import Pipeline, Services, pipeline, types
from support.drive.short import in_short
from support.drive.waiting import eventually
from support.fakes.pauses import confirmation, continues, end, of_type, pause, user_input
from support.fakes.policies import person, vote, written
from support.real.approving import approvals_process
from support.real.nats import NatsServer

ONE: Services = (NormalizerService, ApprovalsService)
ADA = person("u1")


def asks(deadline: str = "1s", **more: str) -> str:
    """Return the lines of a policy that asks the requester with this deadline."""
    fields = {"deadline": deadline, **more}
    return f"default: {{{', '.join(f'{name}: {value}' for name, value in fields.items())}}}\n"


async def cancels(penstock: Pipeline, run_id: str) -> list[CancelCommand]:
    subject = subjects.command("connector", "cancel", run_id)
    found = direct.replay(penstock.bus, streams.COMMANDS, subject)
    return [CancelCommand.model_validate_json(stored.payload) async for stored in found]


async def expired(penstock: Pipeline, approval: ApprovalRecord) -> ApprovalRecord:
    """Wait until the approval has expired and everything was sent; return its record."""

    async def done() -> bool:
        key = f"outbox.{approval.approval_id}"
        is_sent = await penstock.bus.bucket("approvals").get(key) is None
        return is_sent and (await penstock.approval(approval.approval_id)).status == "expired"

    await eventually(done, 30, "the end of the deadline")
    return await penstock.approval(approval.approval_id)


async def scheduled(penstock: Pipeline, approval: ApprovalRecord) -> list[str]:
    """Return the subjects of the approval's messages in SCHEDULES."""
    found = direct.replay(penstock.bus, streams.SCHEDULES, f"*.approvals.*.{approval.run_id}-1")
    return [stored.subject async for stored in found]


async def nothing_scheduled(penstock: Pipeline, approval: ApprovalRecord) -> None:
    """Wait until SCHEDULES has no message about the approval."""

    async def none() -> bool:
        return not await scheduled(penstock, approval)

    await eventually(none, 30, "that no message is scheduled or due")


async def test_at_the_deadline_the_run_continues_rejected_and_nobody_has_rejected_it(
    nats: NatsServer, tmp_path: Path
) -> None:
    policy = written(tmp_path, asks())
    async with pipeline(nats.url, Config(), ONE, policy=policy, outbox_s=0.1) as penstock:
        approval = await pause(penstock)
        record = await expired(penstock, approval)
        events = await penstock.events_until(approval.run_id, "approval.decided")
        [command] = await continues(penstock, approval.run_id)
        late = await penstock.ask(approval.approval_id, vote(approval, ADA))
        await nothing_scheduled(penstock, approval)
    [paused] = of_type(events, "lifecycle.paused")
    assert paused.data["expires_at"] == approval.expires_at
    assert paused.data["policy"] == "default@1"
    assert types(events)[-2:] == ["approval.expired", "approval.decided"]
    assert events[-2].data["reason"] == f"not decided by {approval.expires_at}"
    decided = events[-1].data
    assert (decided["by"], decided["automatic"], decided["outcome"]) == ("policy", True, "rejected")
    assert decided["items"] == [{"item_id": "t1", "decision": "reject", "expired": True}]
    assert record.decision is not None
    assert command.items[0].expired
    assert "nobody decided by" in (command.items[0].note or "")
    assert (late.status, "it has expired" in late.detail) == (409, True)


async def test_a_due_message_is_acknowledged_before_it_is_deleted(
    nats: NatsServer, tmp_path: Path
) -> None:
    """Otherwise NATS reports each deadline as a message that its consumer has given up."""
    policy = written(tmp_path, asks())
    reported: list[bytes] = []

    async def noted(msg: Msg) -> None:
        reported.append(msg.data)

    async with pipeline(nats.url, Config(), ONE, policy=policy, outbox_s=0.1) as penstock:
        subject = f"{subjects.TERMINATED}.{streams.SCHEDULES}.approvals"
        listening = await penstock.bus.subscribe(subject, noted)
        approval = await pause(penstock)
        await expired(penstock, approval)
        await nothing_scheduled(penstock, approval)
        await asyncio.sleep(0.2)  # time for a report that must not come
        await listening.unsubscribe()
    assert reported == []


@pytest.mark.parametrize("on_deadline", ["reject", "leave"])
async def test_an_expiry_that_nats_has_lost_is_recorded_again_and_sends_nothing(
    nats: NatsServer, tmp_path: Path, on_deadline: str
) -> None:
    policy = written(tmp_path, asks(on_deadline=on_deadline))
    async with pipeline(nats.url, Config(), ONE, policy=policy, outbox_s=0.1) as penstock:
        approval = await pause(penstock)
        record = await expired(penstock, approval)
        await penstock.events_until(approval.run_id, "approval.expired")
        if record.decision is not None:
            await penstock.events_until(approval.run_id, "approval.decided")
        await penstock.bus.bucket("approvals").put(approval.approval_id, approval.dump())
        await Restore(penstock.bus, Approvals(penstock.bus, "again"))._restore_status(approval)
        again = await penstock.approval(approval.approval_id)
        commands = await continues(penstock, approval.run_id)
    assert (again.status, again.reason) == ("expired", record.reason)
    assert (again.decision is None) == (record.decision is None)
    assert len(commands) == (on_deadline == "reject")


@pytest.mark.parametrize(
    ("on_deadline", "tools", "continued", "cancelled"),
    [
        ("approve", [confirmation()], ["approve"], False),
        ("leave", [confirmation()], [], False),
        ("reject", [user_input()], [], True),
        ("approve", [user_input()], [], True),
        ("reject", [confirmation("t1"), user_input("t2")], [], True),
    ],
)
async def test_the_policy_says_what_the_deadline_means(
    nats: NatsServer,
    tmp_path: Path,
    on_deadline: str,
    tools: list[dict[str, Any]],
    continued: list[str],
    cancelled: bool,
) -> None:
    policy = written(tmp_path, asks(on_deadline=on_deadline))
    async with pipeline(nats.url, Config(), ONE, policy=policy, outbox_s=0.1) as penstock:
        approval = await pause(penstock, *tools)
        await expired(penstock, approval)
        await penstock.events_until(approval.run_id, "approval.expired")
        commands = await continues(penstock, approval.run_id)
        ends = await cancels(penstock, approval.run_id)
    assert [item.decision for command in commands for item in command.items] == continued
    assert [(each.by, each.reason) for each in ends] == (
        [("policy", "approval_expired")] if cancelled else []
    )


async def test_a_decision_after_the_deadline_is_refused_while_no_schedule_fires(
    nats: NatsServer, tmp_path: Path
) -> None:
    """The scheduled message is removed, as if the scheduler were 5 s late."""
    policy = written(tmp_path, asks("4s"))
    async with pipeline(nats.url, Config(), ONE, policy=policy, outbox_s=0.1) as penstock:
        approval = await pause(penstock)
        await penstock.bus.api("STREAM.PURGE.SCHEDULES", {"filter": "schedule.approvals.>"})
        await asyncio.sleep(9.5)
        before = await penstock.approval(approval.approval_id)
        late = await penstock.ask(approval.approval_id, vote(approval, ADA))
        record = await expired(penstock, approval)
    assert before.status == "pending", "nothing has noticed the deadline so far"
    assert (late.status, "it has expired" in late.detail) == (409, True)
    assert record.votes == []


async def test_a_decision_in_time_removes_the_schedules(nats: NatsServer, tmp_path: Path) -> None:
    escalate = "[{after: 30m, to: {roles: [leads]}}]"
    policy = written(tmp_path, asks("1h", escalate=escalate))
    async with pipeline(nats.url, Config(), ONE, policy=policy, outbox_s=0.1) as penstock:
        decided, withdrawn = await pause(penstock), await pause(penstock)
        before = await scheduled(penstock, decided)
        assert (await penstock.ask(decided.approval_id, vote(decided, ADA))).status == 200
        await end(penstock, withdrawn.run_id)

        async def none() -> bool:
            left = [await scheduled(penstock, each) for each in (decided, withdrawn)]
            return left == [[], []]

        await eventually(none, what="no schedules")
    assert sorted(before) == [
        f"schedule.approvals.{step}.{decided.run_id}-1" for step in ("escalation-1", "expiry")
    ]


async def test_an_escalation_lets_further_people_decide(
    nats: NatsServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "penstock_approvals")
    escalate = "[{after: 1s, to: {roles: [leads]}}]"
    policy = written(tmp_path, asks("1h", escalate=escalate))
    lead = person("lee", "leads")
    async with pipeline(nats.url, Config(), ONE, policy=policy, outbox_s=0.1) as penstock:
        approval = await pause(penstock)
        early = await penstock.ask(approval.approval_id, vote(approval, lead))

        async def escalated() -> bool:
            return (await penstock.approval(approval.approval_id)).escalated == 1

        await eventually(escalated, what="the escalation")
        taken = await penstock.ask(approval.approval_id, vote(approval, lead))
    assert (early.status, taken.status) == (403, 200)
    about = f"run {approval.run_id}: approval {approval.approval_id}"
    assert caplog.messages.count(f"{about} was escalated to role leads") == 1


async def test_a_schedule_that_fires_again_or_too_early_changes_nothing(
    nats: NatsServer, tmp_path: Path
) -> None:
    policy = written(tmp_path, asks("1h"))
    async with pipeline(nats.url, Config(), ONE, policy=policy) as penstock:
        approval = await pause(penstock)
        again = Approvals(penstock.bus, "approvals-again")
        await again.on_due(approval.approval_id)
        early = await penstock.approval(approval.approval_id)
        await penstock.ask(approval.approval_id, vote(approval, ADA))
        await again.on_due(approval.approval_id)
        await again.on_due("there-is-none")
        decided = await penstock.approval(approval.approval_id)
        commands = await continues(penstock, approval.run_id)
    assert (early, decided.status, len(commands)) == (approval, "decided", 1)


async def test_of_the_deadline_and_a_decision_at_the_same_moment_one_wins(
    nats: NatsServer, tmp_path: Path
) -> None:
    policy = written(tmp_path, asks("1s"))
    async with pipeline(nats.url, Config(), ONE, policy=policy, outbox_s=0.1) as penstock:
        approvals = [await pause(penstock) for _ in range(10)]
        policies = Policies(penstock.bus)
        others = [Approvals(penstock.bus, f"pod-{n}", policies=policies) for n in range(2)]

        async def at_once(approval: ApprovalRecord) -> tuple[int, str, int, list[str]]:
            left_s = -penstock.bus.clock.age_s(approval.expires_at or "")
            await asyncio.sleep(max(0.0, left_s - 0.02))
            asking = asyncio.create_task(penstock.ask(approval.approval_id, vote(approval, ADA)))
            await asyncio.gather(*(each.on_due(approval.approval_id) for each in others))
            answer = await asking

            async def sent() -> bool:
                return bool(await continues(penstock, approval.run_id))

            await eventually(sent, what="the continue")
            record = await penstock.approval(approval.approval_id)
            told = [
                orjson.loads(f.payload) for f in await penstock.raw(approval.run_id, "approvals")
            ]
            commands = await continues(penstock, approval.run_id)
            return answer.status, record.status, len(commands), [each["type"] for each in told]

        found = await asyncio.gather(*map(at_once, approvals))
    ends = {
        (200, "decided"): ["lifecycle.paused", "approval.decided"],
        (409, "expired"): ["lifecycle.paused", "approval.expired", "approval.decided"],
    }
    for status, recorded, commands, told in found:
        assert (commands, told) == (1, ends[status, recorded])


# The writes of an expiry: the outbox entry, the record, the audit, two events, the command, the
# audit, and the removal of the schedule. See `test_crashes`.
EXPIRY_WRITES = 8


@pytest.mark.parametrize("write", in_short(range(1, EXPIRY_WRITES + 1), [3]))
async def test_a_kill_at_any_write_of_an_expiry_leaves_it_announced_and_sent_once(
    fresh_nats: NatsServer, tmp_path: Path, write: int
) -> None:
    policy = written(tmp_path, asks())
    async with pipeline(fresh_nats.url, Config(), (NormalizerService,)) as penstock:
        dies = approvals_process(
            fresh_nats.url, dies_in=("on_due", write), ack_wait_s=1, outbox_s=60, policy=policy
        )
        async with dies as victim:
            approval = await pause(penstock)
            assert await victim.process.ended() == -signal.SIGKILL
        services: Services = (ApprovalsService,)
        async with pipeline(
            fresh_nats.url, Config(), services, policy=policy, ack_wait_s=1, outbox_s=0.1
        ):
            await expired(penstock, approval)
            events = await penstock.events_until(approval.run_id, "approval.decided")
            frames = await penstock.raw(approval.run_id, "approvals")
            commands = await continues(penstock, approval.run_id)
    told = [orjson.loads(frame.payload)["type"] for frame in frames]
    assert told == ["lifecycle.paused", "approval.expired", "approval.decided"]
    assert types(events)[-2:] == told[1:]
    assert len(commands) == 1


async def test_an_expiry_is_announced_once_although_the_pause_was_announced_after_it(
    nats: NatsServer,
) -> None:
    """One process read the request before its deadline; the one that expired it has ended."""
    run_id = new_run_id()
    expired, paused, decided = (
        (type_, {"approval_id": "a"})
        for type_ in ("approval.expired", "lifecycle.paused", "approval.decided")
    )
    async with connected(nats.url) as bus:
        await Announcements(bus, "ended").once(run_id, 1, expired)
        await Announcements(bus, "slow").once(run_id, 1, paused)
        for pod in ("next", "another"):
            await Announcements(bus, pod).once(run_id, 1, expired, decided)
        frames = direct.replay(bus, streams.RAW, subjects.raw_stored(run_id, "approvals"))
        told = [orjson.loads(stored.payload)["type"] async for stored in frames]
    assert told == ["approval.expired", "lifecycle.paused", "approval.decided"]
