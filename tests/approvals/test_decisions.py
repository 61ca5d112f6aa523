"""Each request gets one decision, which is published and sent once, whichever pod is killed."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson
import pytest
from prometheus_client import REGISTRY

from penstock.bus import streams, subjects
from penstock.bus.read import direct
from penstock.bus.records.approvals import ApprovalRecord, Decided, DecideRequest
from penstock.bus.state.losses import Loss
from penstock.bus.subjects import key_of
from penstock.settings import Config
from penstock_approvals.lifecycle import outbox
from penstock_approvals.lifecycle.decisions import Approvals
from penstock_approvals.lifecycle.outbox import Phase, phase_of
from penstock_approvals.service import ApprovalsService
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import Pipeline, Services, pipeline, types
from support.drive.waiting import eventually
from support.fakes.pauses import (
    confirmation,
    continues,
    end,
    of_type,
    pause,
    start_and_pause,
    user_input,
)
from support.fakes.policies import anybody
from support.real.nats import NatsServer

ONE: Services = (NormalizerService, ApprovalsService)
TWO: Services = (*ONE, ApprovalsService)
WITHOUT: Services = (NormalizerService,)
YES = DecideRequest(decider=anybody("ada"), items=[Decided(item_id="t1", decision="approve")])


async def sent(penstock: Pipeline, run_id: str) -> bool:
    return bool(await continues(penstock, run_id))


async def outbox_is_empty(penstock: Pipeline) -> bool:
    return not await penstock.bus.bucket("approvals").keys("outbox.*")


async def test_a_pause_becomes_a_request_with_all_its_items(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        approval = await pause(penstock, confirmation("t1"), user_input("t2"))
        events = await penstock.events_until(approval.run_id, "lifecycle.paused")
        requested = of_type(events, "approval.requested")[0]
        alias = key_of("approval", "a", "s", "t2")
        pointer = await penstock.bus.bucket("aliases").get(alias)
    assert types(events)[-2:] == ["approval.requested", "lifecycle.paused"]
    assert events[-1].data == {
        "reason": "approval_required",
        "approval_id": approval.approval_id,
    }
    assert approval.status == "pending"
    assert approval.items == requested.data["items"]
    assert approval.digest == requested.data["digest"]
    assert [item["kind"] for item in approval.items] == ["confirmation", "input"]
    assert (approval.agent, approval.session_id, approval.user_id) == ("a", "s", "u1")
    assert pointer is not None
    assert orjson.loads(pointer.value or b"") == {
        "approval_id": approval.approval_id,
        "run_id": approval.run_id,
        "leg": 1,
        "item_id": "t2",
    }


async def test_a_decision_is_reported_and_sent_on(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        approval = await pause(penstock, confirmation("t1"), confirmation("t2"))
        request = DecideRequest(
            decider=anybody("ada"),
            note="only the first",
            items=[
                Decided(item_id="t1", decision="approve", note="mine"),
                Decided(item_id="t2", decision="reject"),
            ],
        )
        reply = await penstock.ask(approval.approval_id, request)
        *_, decided = await penstock.events_until(approval.run_id, "approval.decided")
        await eventually(lambda: sent(penstock, approval.run_id))
        (command,) = await continues(penstock, approval.run_id)
        await eventually(lambda: outbox_is_empty(penstock))
    assert reply.status == 200
    assert reply.approval is not None
    assert reply.approval.status == "decided"
    assert decided.data == {
        "approval_id": approval.approval_id,
        "outcome": "mixed",
        "by": "ada",
        "automatic": False,
        "note": "only the first",
        "items": [
            {"item_id": "t1", "decision": "approve", "note": "mine"},
            {"item_id": "t2", "decision": "reject"},
        ],
    }
    assert command.leg == 2
    assert [(item.item_id, item.decision, item.note) for item in command.items] == [
        ("t1", "approve", "mine"),
        ("t2", "reject", "only the first"),
    ]


async def test_the_invocation_that_an_answer_named_stands_in_the_record_and_in_the_command(
    nats: NatsServer,
) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        approval = await pause(penstock, confirmation("t1"))
        named = YES.model_copy(update={"invocation_id": "e-1"})
        reply = await penstock.ask(approval.approval_id, named)
        await eventually(lambda: sent(penstock, approval.run_id))
        (command,) = await continues(penstock, approval.run_id)
    assert command.invocation_id == "e-1"
    assert reply.approval is not None
    assert reply.approval.continue_command() == command


async def test_of_many_decisions_at_once_one_wins(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), TWO, outbox_s=0.2) as penstock:
        approval = await pause(penstock)

        async def try_to(number: int) -> int:
            decision = "approve" if number % 2 else "reject"
            items = [{"item_id": "t1", "decision": decision}]
            body = {"items": items, "by": f"person {number}", "digest": approval.digest}
            if number % 3:
                decider = anybody(f"person {number}")
                request = DecideRequest.model_validate({**body, "decider": decider})
                return (await penstock.ask(approval.approval_id, request)).status
            path = f"/v1/approvals/{approval.approval_id}/decision"
            return (await penstock.http.post(path, json=body)).status_code

        statuses = await asyncio.gather(*(try_to(number) for number in range(24)))
        *_, told = await penstock.events_until(approval.run_id, "approval.decided")
        await eventually(lambda: outbox_is_empty(penstock))
        stands = await penstock.approval(approval.approval_id)
        commands = await continues(penstock, approval.run_id)
        said = await penstock.raw(approval.run_id, "approvals")
    assert sorted(statuses) == [200] + [409] * 23
    assert stands.decision is not None
    assert told.data["by"] == stands.decision.by
    assert {command.items[0].decision for command in commands} == {
        stands.decision.items[0].decision
    }
    kinds = [orjson.loads(frame.payload)["type"] for frame in said]
    assert kinds == ["lifecycle.paused", "approval.decided"]


async def test_a_later_decision_is_told_what_stands(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        approval = await pause(penstock)
        await penstock.ask(approval.approval_id, YES)
        late = await penstock.decide(approval.approval_id, "reject")
    assert late.status == 409
    assert "decided already" in late.detail
    assert late.approval is not None
    assert late.approval.decision is not None
    assert late.approval.decision.by == "ada"


@pytest.mark.parametrize("approval_id", ["00000000-0000-4000-8000-000000000000", "x"])
async def test_an_unknown_approval_cannot_be_decided(nats: NatsServer, approval_id: str) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        reply = await penstock.ask(approval_id, YES)
    assert reply.status == 404


async def test_a_decision_that_does_not_fit_changes_nothing(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        approval = await pause(penstock, user_input())
        misfits = [
            DecideRequest(decider=anybody("ada"), items=[]),
            DecideRequest(
                decider=anybody("ada"), items=[Decided(item_id="t2", decision="approve")]
            ),
            DecideRequest(
                decider=anybody("ada"),
                items=[Decided(item_id="t1", decision="approve", value={"to": 1})],
            ),
            DecideRequest(decider=anybody("ada"), items=[Decided(item_id="t1", decision="reject")]),
        ]
        replies = [await penstock.ask(approval.approval_id, misfit) for misfit in misfits]
        stands = await penstock.approval(approval.approval_id)
    assert [reply.status for reply in replies] == [422] * 4
    assert all("t1" in reply.detail or "t2" in reply.detail for reply in replies)
    assert stands == approval


async def test_a_decision_about_another_request_than_was_shown_is_refused(
    nats: NatsServer,
) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        approval = await pause(penstock)
        other = YES.model_copy(update={"digest": "sha256:of-another"})
        same = YES.model_copy(update={"digest": approval.digest})
        refused = await penstock.ask(approval.approval_id, other)
        taken = await penstock.ask(approval.approval_id, same)
    assert (refused.status, taken.status) == (409, 200)
    assert "digest" in refused.detail


async def test_a_request_of_a_run_that_ends_is_withdrawn(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        approval = await pause(penstock)
        await end(penstock, approval.run_id)
        events = await penstock.events_until(approval.run_id, "approval.withdrawn")
        reply = await penstock.ask(approval.approval_id, YES)
        stands = await penstock.approval(approval.approval_id)
        commands = await continues(penstock, approval.run_id)
    assert types(events)[-2:] == ["lifecycle.cancelled", "approval.withdrawn"]
    assert stands.status == "withdrawn"
    assert reply.status == 409
    assert "withdrawn" in reply.detail
    assert not commands


async def test_a_request_of_a_run_that_ended_before_anybody_looked_is_withdrawn(
    nats: NatsServer,
) -> None:
    async with pipeline(nats.url, Config(), WITHOUT) as penstock:
        run_id = await start_and_pause(penstock)
        await end(penstock, run_id)
        await penstock.ended(run_id)
        async with pipeline(nats.url, Config(), (ApprovalsService,)):
            *_, withdrawn = await penstock.events_until(run_id, "approval.withdrawn")
            stands = await penstock.approval(withdrawn.data["approval_id"])
    assert stands.status == "withdrawn"


async def test_a_decision_of_a_killed_process_is_sent_by_another(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), ONE, outbox_s=0.1) as penstock:
        approval = await pause(penstock)
        dead = Approvals(penstock.bus, "approvals-dead")
        assert (await dead.take_vote(approval.approval_id, YES)).status == 200
        await penstock.events_until(approval.run_id, "approval.decided")
        await eventually(lambda: outbox_is_empty(penstock))
        commands = await continues(penstock, approval.run_id)
    assert len(commands) == 1


async def test_a_decision_that_is_sent_on_again_is_reported_and_stored_once(
    nats: NatsServer,
) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        approval = await pause(penstock)
        await penstock.ask(approval.approval_id, YES)
        await eventually(lambda: sent(penstock, approval.run_id))
        again = Approvals(penstock.bus, "approvals-again")
        await asyncio.gather(*(again.outbox.send_on(approval.approval_id) for _ in range(5)))
        commands = await continues(penstock, approval.run_id)
        said = await penstock.raw(approval.run_id, "approvals")
    assert len(commands) == 1
    assert len(said) == 2


async def test_a_decision_that_was_never_taken_leaves_the_outbox(
    nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "ABANDONED_S", 0.5)
    async with pipeline(nats.url, Config(), ONE, outbox_s=0.1) as penstock:
        approval = await pause(penstock)
        bucket = penstock.bus.bucket("approvals")
        await bucket.put(f"outbox.{approval.approval_id}", str(time.time()).encode())
        await eventually(lambda: outbox_is_empty(penstock))
        assert not await continues(penstock, approval.run_id)
        assert (await penstock.ask(approval.approval_id, YES)).status == 200


async def test_an_event_that_is_delivered_again_changes_nothing(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        approval = await pause(penstock)
        await end(penstock, approval.run_id)
        await penstock.events_until(approval.run_id, "approval.withdrawn")
        again = Approvals(penstock.bus, "approvals-again")
        pattern = subjects.events_of_run(approval.run_id)
        for _ in range(2):
            async for stored in direct.replay(penstock.bus, streams.EVENTS, pattern):
                if stored.headers["ce-type"] in ("approval.requested", "lifecycle.cancelled"):
                    await again.on_event(stored)
        other = await pause(penstock)
        await penstock.events_until(other.run_id, "lifecycle.paused")
        stored_types = [
            stored.headers["ce-type"]
            async for stored in direct.replay(penstock.bus, streams.EVENTS, pattern)
        ]
    assert stored_types.count("approval.withdrawn") == 1
    assert stored_types.count("lifecycle.paused") == 1


async def test_a_withdrawal_whose_sender_was_killed_is_sent_by_another(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        approval = await pause(penstock)
        withdrawn = approval.model_copy(
            update={"status": "withdrawn", "reason": "the run has ended"}
        )
        await penstock.bus.bucket("approvals").put(approval.approval_id, withdrawn.dump())
        await end(penstock, approval.run_id)
        *_, last = await penstock.events_until(approval.run_id, "approval.withdrawn")
    assert last.data["reason"] == "the run has ended"


async def test_two_services_share_requests_and_decisions(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), TWO) as penstock:
        approvals = [await pause(penstock) for _ in range(10)]
        replies = await asyncio.gather(
            *(penstock.ask(approval.approval_id, YES) for approval in approvals)
        )
        for approval in approvals:
            await penstock.events_until(approval.run_id, "approval.decided")
        await eventually(lambda: outbox_is_empty(penstock))
        counts = [len(await continues(penstock, approval.run_id)) for approval in approvals]
    assert [reply.status for reply in replies] == [200] * 10
    assert counts == [1] * 10


async def test_a_request_over_core_that_is_no_decision_is_refused(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        approval = await pause(penstock)
        answers = [
            await penstock.bus.request(subjects.decide(approval.approval_id), payload, 5)
            for payload in (b"", b"{", b'{"items": [{"item_id": "t1", "decision": "maybe"}]}')
        ]
        stands = await penstock.approval(approval.approval_id)
    assert [orjson.loads(answer.data)["status"] for answer in answers] == [422] * 3
    assert stands.status == "pending"


async def test_a_decision_with_too_large_a_value_is_refused(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        approval = await pause(penstock, user_input())
        value = {"to": "x" * 600_000, "copies": 1}
        large = DecideRequest(
            decider=anybody("ada"), items=[Decided(item_id="t1", decision="approve", value=value)]
        )
        refused = await penstock.ask(approval.approval_id, large)
        value["to"] = "x" * 500_000
        taken = await penstock.ask(approval.approval_id, large)
    assert (refused.status, taken.status) == (422, 200)
    assert "bytes" in refused.detail


async def test_a_large_decision_is_sealed_with_the_key_of_its_run(fresh_nats: NatsServer) -> None:
    async with pipeline(fresh_nats.url, Config(), ONE, content_keys=("k" * 32,)) as penstock:
        names = [f"t{n}" for n in range(6)]
        approval = await pause(penstock, *map(confirmation, names))
        items = [Decided(item_id=each, decision="approve") for each in names]
        large = DecideRequest(decider=anybody("ada"), items=items, note="x" * 100_000)
        assert (await penstock.ask(approval.approval_id, large)).status == 200
        subject = subjects.command("connector", "continue", approval.run_id)

        async def sent_on() -> bool:
            return await penstock.bus.tail(streams.COMMANDS, subject) is not None

        await eventually(sent_on)
        info = await penstock.bus.api(f"STREAM.INFO.{streams.KEYS}", {"subjects_filter": "key.*"})
        # An erasure destroys the key of the run, and no other.
        assert info["state"]["subjects"].keys() == {subjects.content_key(approval.run_id)}


async def test_a_request_that_is_larger_than_a_message_can_be_decided(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), ONE) as penstock:
        text = "x" * 1_200_000
        approval = await pause(penstock, confirmation(text=text))
        shown = await penstock.http.get(f"/v1/approvals/{approval.approval_id}")
        reply = await penstock.ask(approval.approval_id, YES)
        await eventually(lambda: sent(penstock, approval.run_id))
        stands = await penstock.approval(approval.approval_id)
    assert shown.json()["items"][0]["args"] == {"text": text}
    assert reply.status == 200
    assert stands.status == "decided"


async def test_a_request_that_has_lost_its_object_is_refused_and_blocks_no_other(
    nats: NatsServer,
) -> None:
    async with pipeline(nats.url, Config(), ONE, outbox_s=0.1) as penstock:
        approval, other = await pause(penstock), await pause(penstock)
        bucket = penstock.bus.bucket("approvals")
        await bucket.put(approval.approval_id, b'{"penstock_object":"that-is-gone"}')
        await bucket.put(f"outbox.{approval.approval_id}", b"0")
        reply = await penstock.ask(approval.approval_id, YES)
        shown = await penstock.http.get(f"/v1/approvals/{approval.approval_id}")
        listed = await penstock.http.get("/v1/approvals")
        await eventually(lambda: outbox_is_empty(penstock))
        await penstock.ask(other.approval_id, YES)
        await eventually(lambda: sent(penstock, other.run_id))
    assert (reply.status, shown.status_code, listed.status_code) == (404, 410, 200)
    ids = {each["approval_id"] for each in listed.json()["approvals"]}
    assert other.approval_id in ids
    assert approval.approval_id not in ids


@pytest.mark.parametrize("what", ["remark", "deadline"])
async def test_nothing_changes_an_approval_whose_decision_nats_has_lost(
    nats: NatsServer, what: str
) -> None:
    """Not even before the next search for what was lost, which restores the decision."""
    async with pipeline(nats.url, Config(), ONE, outbox_s=3600) as penstock:
        approval = await pause(penstock)
        await penstock.decide(approval.approval_id)
        await penstock.events_until(approval.run_id, "approval.decided")
        older = approval.model_copy(update={"expires_at": approval.requested_at})
        stored = approval if what == "remark" else older
        await penstock.bus.bucket("approvals").put(approval.approval_id, stored.dump())
        service = penstock.services[1]
        assert isinstance(service, ApprovalsService)
        stream = "KV_approvals"
        loss = Loss(stream, 1, 9, 1, approval.requested_at)
        service.bus.continuity._losses[stream] = (loss,)
        if what == "remark":
            path = f"/v1/approvals/{approval.approval_id}/remarks"
            asked = {"kind": "question", "text": "Which one?"}
            assert (await penstock.http.post(path, json=asked)).status_code == 409
        else:
            await service._approvals.on_due(approval.approval_id)
        now = await penstock.approval(approval.approval_id)
    assert (now.status, now.decision and now.decision.outcome) == ("decided", "approved")
    assert now.remarks is None or now.remarks == []


UNREADABLE = {
    "no JSON": b"{",
    "a field is missing": b'{"approval_id": "x"}',
    "no object": b"[]",
    "empty": b"",
}


@pytest.mark.parametrize("value", UNREADABLE.values(), ids=list(UNREADABLE))
async def test_a_record_that_cannot_be_read_is_reported_and_blocks_no_other(
    nats: NatsServer, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with pipeline(nats.url, Config(), ONE, outbox_s=0.1) as penstock:
        broken, other = await pause(penstock), await pause(penstock)
        bucket = penstock.bus.bucket("approvals")
        # A bucket gives its keys in the order of their writes, so the broken ones come first.
        await bucket.put(f"outbox.{broken.approval_id}", b"0")
        await bucket.put(broken.approval_id, value)
        dead = Approvals(penstock.bus, "approvals-dead")
        assert (await dead.take_vote(other.approval_id, YES)).status == 200
        await eventually(lambda: sent(penstock, other.run_id))

        async def reported() -> bool:
            return REGISTRY.get_sample_value("penstock_outbox_stuck") == 1

        await eventually(reported)
        refused = await penstock.ask(broken.approval_id, YES)
        shown = await penstock.http.get(f"/v1/approvals/{broken.approval_id}")
        listed = await penstock.http.get("/v1/approvals")
        assert await bucket.keys("outbox.*") == [f"outbox.{broken.approval_id}"]
        await bucket.delete(f"outbox.{broken.approval_id}")
    assert (refused.status, shown.status_code, listed.status_code) == (409, 500, 200)
    assert "repair or delete it" in refused.detail
    assert "repair or delete it" in shown.json()["detail"]
    ids = {each["approval_id"] for each in listed.json()["approvals"]}
    assert other.approval_id in ids
    assert broken.approval_id not in ids
    told = [each for each in caplog.messages if "the outbox tries again" in each]
    assert len(told) == 1, "it is reported once, not with every sweep"


async def test_an_outbox_entry_whose_time_cannot_be_read_counts_as_old(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), ONE, outbox_s=0.1) as penstock:
        approval = await pause(penstock)
        await penstock.bus.bucket("approvals").put(f"outbox.{approval.approval_id}", b"yesterday")
        await eventually(lambda: outbox_is_empty(penstock))
        assert (await penstock.ask(approval.approval_id, YES)).status == 200


@pytest.mark.parametrize(
    ("status", "age_s", "phase"),
    [
        ("decided", 0, Phase.TO_SEND),
        ("decided", 3600, Phase.TO_SEND),
        ("pending", 0, Phase.UNDECIDED),
        ("pending", 3600, Phase.ABANDONED),
        ("withdrawn", 0, Phase.UNDECIDED),
        ("withdrawn", 3600, Phase.ABANDONED),
        (None, 3600, Phase.ABANDONED),
    ],
)
def test_the_phase_of_an_entry_follows_from_the_record_and_the_age(
    status: str | None, age_s: float, phase: Phase
) -> None:
    fields = ("approval_id", "run_id", "agent", "session_id", "user_id", "digest")
    at = "2025-12-31T10:00:00.000Z"
    given: dict[str, Any] = dict.fromkeys(fields, "x") | {"leg": 1, "items": []}
    given |= {"requested_at": at, "updated_at": at, "status": status}
    record = None if status is None else ApprovalRecord.model_validate(given)
    assert phase_of(record, 1_000_000 - age_s, 1_000_000) is phase
