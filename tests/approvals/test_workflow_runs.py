"""Approvals of workflows' runs: several at once, and `workflows` gets all news of them."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from penstock.bus import streams, subjects
from penstock.bus.read import direct
from penstock.settings import Config
from penstock_approvals.lifecycle.decisions import Approvals
from penstock_approvals.lifecycle.restore import Restore
from penstock_approvals.outcomes.remarks import with_remark
from penstock_approvals.service import ApprovalsService
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import Pipeline, Services, pipeline
from support.drive.waiting import eventually
from support.fakes.pauses import continues, end, of_type
from support.fakes.policies import later_bus, person, vote, written
from support.fakes.workflow_runs import WorkflowRun
from support.real.nats import NatsServer

BOTH: Services = (NormalizerService, ApprovalsService)
OWNER = person("carol", "owners")
POLICY = """rules:
  - id: owners
    match: {agent: review, tool: code-owners}
    outcome: ask
    deciders: {roles: [owners], not: [requester]}
    deadline: 1h
    escalate: [{after: 30m, to: {roles: [leads]}}]
    remind: [20m]
  - id: small
    match: {agent: review, tool: small-change}
    outcome: approve
"""


async def told(run: WorkflowRun, *kinds: str) -> None:
    """Wait until `workflows` has got these news, in this order."""

    async def are_there() -> bool:
        return [each.news for each in await run.news()] == list(kinds)

    await eventually(are_there, 30, f"the news {kinds}")


async def status(penstock: Pipeline, approval_id: str, wanted: str) -> None:
    async def is_it() -> bool:
        return (await penstock.approval(approval_id)).status == wanted

    await eventually(is_it, 30, f"approval {approval_id} is {wanted}")


async def test_two_approvals_of_a_workflow_are_decided_one_after_the_other(
    nats: NatsServer, tmp_path: Path
) -> None:
    policy = written(tmp_path, POLICY)
    async with pipeline(nats.url, Config(), BOTH, policy=policy, outbox_s=0.1) as penstock:
        run = await WorkflowRun(penstock).begin()
        first, second = await run.ask("sign_off"), await run.ask("release")
        await told(run, "asked", "asked")
        asked = await run.news()
        record = await penstock.approval(second)
        own = await penstock.ask(second, vote(record, person("u1", "owners")))
        replies = [await penstock.ask(second, vote(record, OWNER, note="fine"))]
        replies.append(await penstock.ask(second, vote(record, OWNER)))
        await told(run, "asked", "asked", "decided")
        late = await penstock.approval(first)
        await penstock.ask(first, vote(late, OWNER, "reject"))
        await told(run, "asked", "asked", "decided", "decided")
        await run.say("lifecycle.completed", summary="done")
        events = await penstock.ended(run.run_id)
        told_by_connector = await continues(penstock, run.run_id)
        written_frames = await run.frames_of_approvals()
        *_, approved, rejected = await run.news()
    assert [each.approval_id for each in asked] == [first, second]
    assert asked[0].event is not None
    assert asked[0].event["type"] == "lifecycle.paused"
    assert asked[0].event["data"]["policy"] == "owners@1"
    assert (own.status, own.detail) == (
        403,
        "the policy does not let the user whose run asks decide",
    )
    assert [reply.status for reply in replies] == [200, 409]
    assert (approved.approval_id, approved.items and approved.items[0].decision) == (
        second,
        "approve",
    )
    assert approved.event is not None
    assert approved.event["data"]["by"] == "carol"
    assert (rejected.approval_id, rejected.items and rejected.items[0].decision) == (
        first,
        "reject",
    )
    # The events of the news come from `workflows`, which does not run here.
    assert not of_type(events, "approval.decided")
    assert (told_by_connector, written_frames) == ([], 0)


async def test_a_rule_decides_a_workflows_request_without_people(
    nats: NatsServer, tmp_path: Path
) -> None:
    policy = written(tmp_path, POLICY)
    async with pipeline(nats.url, Config(), BOTH, policy=policy, outbox_s=0.1) as penstock:
        run = await WorkflowRun(penstock).begin()
        await run.ask("sign_off", policy="small-change")
        await told(run, "decided")
        [news] = await run.news()
        assert news.event is not None
        assert news.event["data"]["automatic"]


async def test_open_approvals_are_withdrawn_when_their_workflow_ends(
    nats: NatsServer, tmp_path: Path
) -> None:
    async with pipeline(nats.url, Config(), BOTH, outbox_s=0.1) as penstock:
        run = await WorkflowRun(penstock).begin()
        ids = [await run.ask("one"), await run.ask("two"), await run.ask("three")]
        await told(run, "asked", "asked", "asked")
        await penstock.ask(ids[0], vote(await penstock.approval(ids[0]), person("u1")))
        await end(penstock, run.run_id)
        for approval_id in ids[1:]:
            await status(penstock, approval_id, "withdrawn")

        events = await penstock.events_until(
            run.run_id, lambda event: event.data.get("approval_id") == ids[2] and event.sequence > 5
        )
        withdrawn = [each.data["approval_id"] for each in of_type(events, "approval.withdrawn")]
        # The event of the end is delivered again.
        again = Approvals(penstock.bus, "again")
        await again._ends.ended(run.run_id)
        assert await run.frames_of_approvals() == 2
        assert withdrawn == ids[1:]
        assert (await penstock.approval(ids[0])).status == "decided"
        assert not await penstock.bus.bucket("approvals").entries(f"of.{run.run_id}.*")


async def test_a_workflow_that_no_longer_asks_withdraws_its_request(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), BOTH, outbox_s=0.1) as penstock:
        run = await WorkflowRun(penstock).begin()
        gone, other = await run.ask("one"), await run.ask("two")
        await told(run, "asked", "asked")
        await run.say("approval.withdrawn", approval_id=gone, reason="the step has timed out")
        await status(penstock, gone, "withdrawn")
        record = await penstock.approval(gone)
        refused = await penstock.ask(gone, vote(record, person("u1")))
        assert record.reason == "the step has timed out"
        assert refused.status == 409
        assert (await penstock.approval(other)).status == "pending"
        assert await run.frames_of_approvals() == 0


async def test_nobody_decides_after_the_time_for_which_the_workflow_waits(
    nats: NatsServer, tmp_path: Path
) -> None:
    """The policy would give an hour. Each approval of a run has its own schedules."""
    policy = written(tmp_path, POLICY)
    async with pipeline(nats.url, Config(), BOTH, policy=policy, outbox_s=0.1) as penstock:
        run = await WorkflowRun(penstock).begin()
        longer = await run.ask("release")
        until = (penstock.bus.clock.now() + timedelta(seconds=1.5)).isoformat()
        short = await run.ask("sign_off", expires_at=until)
        await status(penstock, short, "expired")
        await told(run, "asked", "asked", "expired", "decided")
        *_, expired, decided = await run.news()
        assert (expired.items, expired.event and expired.event["type"]) == (
            None,
            "approval.expired",
        )
        assert decided.items is not None
        assert (decided.items[0].decision, decided.items[0].expired) == ("reject", True)
        record = await penstock.approval(longer)
        assert record.status == "pending"
        pattern = f"schedule.approvals.*.{run.run_id}-1"
        kept = [f"escalation-1-{longer}", f"escalation-2-{longer}", f"expiry-{longer}"]

        async def only_those_of_longer_are_left() -> bool:
            found = direct.replay(penstock.bus, streams.SCHEDULES, pattern)
            return [stored.subject.split(".")[2] async for stored in found] == kept

        await eventually(only_those_of_longer_are_left, 30, f"only {kept} are scheduled")
        later = later_bus(penstock.bus, timedelta(minutes=31))
        escalated = Approvals(later, "later")
        await escalated.on_due(longer)
        question = partial(with_remark, kind="question", text="Why?")
        assert (await escalated.amend(longer, OWNER, question)).status == 200
        latest = later_bus(penstock.bus, timedelta(minutes=41))
        await Approvals(latest, "latest").on_due(longer)
        steps = (await run.news())[-3:]
        assert [(each.approval_id, each.news) for each in steps] == [(longer, "escalated")] * 3
        events = [each.event for each in steps if each.event is not None]
        assert [(each["type"], each["data"]["step"]) for each in events] == [
            *(("approval.escalated", 1), ("approval.remarked", 2), ("approval.reminded", 3))
        ]


@pytest.mark.parametrize("lost", ["record", "news"])
async def test_what_nats_has_lost_of_a_workflows_approvals_is_written_again(
    nats: NatsServer, lost: str
) -> None:
    async with pipeline(nats.url, Config(), BOTH, outbox_s=0.1) as penstock:
        run = await WorkflowRun(penstock).begin()
        ids = [await run.ask("one"), await run.ask("two")]
        await told(run, "asked", "asked")
        bucket = penstock.bus.bucket("approvals")
        again = Restore(penstock.bus, Approvals(penstock.bus, "again"))
        if lost == "record":
            for approval_id in ids:
                await bucket.delete(approval_id)
            await again._all_requests_again(run.run_id)
            for approval_id in ids:
                assert (await penstock.approval(approval_id)).status == "pending"
        else:
            record = await penstock.approval(ids[0])
            await penstock.ask(ids[0], vote(record, person("u1")))
            await told(run, "asked", "asked", "decided")
            subject = subjects.command("workflows", "continue", run.run_id)
            sent = await penstock.bus.tail(streams.COMMANDS, subject)
            assert sent is not None
            await again._resend_outcome(await penstock.approval(ids[0]))
            # The server has seen the message id, so nothing is stored twice.
            assert len(await run.news()) == 3


async def test_news_of_a_decision_is_sent_after_the_deciding_process_has_ended(
    nats: NatsServer,
) -> None:
    async with pipeline(nats.url, Config(), BOTH, outbox_s=3600) as penstock:
        run = await WorkflowRun(penstock).begin()
        approval_id = await run.ask("sign_off")
        await told(run, "asked")
        ended = Approvals(penstock.bus, "ended")
        request = vote(await penstock.approval(approval_id), person("u1"), note="fine")
        reply = await ended.take_vote(approval_id, request)
        assert reply.status == 200
        assert [each.news for each in await run.news()] == ["asked"]
        for _ in range(2):  # the second sweep finds nothing to send
            await Approvals(penstock.bus, "other").outbox.sweep()
        await told(run, "asked", "decided")
        news = (await run.news())[-1]
        assert news.items is not None
        assert (news.items[0].decision, news.items[0].note) == ("approve", "fine")
        history = await ended.audit.history(await penstock.approval(approval_id))
    assert [link.record["event"] for link in history.records] == ["requested", "decided", "sent"]
