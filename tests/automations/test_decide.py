"""A rule decides an approval with its owner's rights, once, and only the request that it saw."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from penstock.bus import Msg, subjects
from penstock.bus.records.approvals import ApprovalRecord, DecideReply, DecideRequest
from penstock_approvals.service import ApprovalsService
from penstock_automations.delivery.records import DeliveryRecord
from penstock_automations.jobs.job import Job
from penstock_automations.jobs.publish import publish
from penstock_automations.rules.records import Owner
from penstock_normalizer.service import NormalizerService
from support.drive.automations import Automations, automations, rule_with, user
from support.drive.pipeline import Event, Pipeline
from support.drive.waiting import eventually
from support.fakes.pauses import confirmation, continues, start_and_pause, user_input
from support.fakes.policies import person, vote, written
from support.fakes.recorder import recording
from support.real.nats import NatsServer

WITH_APPROVALS = (NormalizerService, ApprovalsService)
APPROVE = {"decide": {"decision": "approve", "note": "rule for {{ event.data.items[0].tool }}"}}
ASKED = "approval.requested"


@asynccontextmanager
async def deciding(nats: NatsServer) -> AsyncIterator[Automations]:
    async with automations(nats.url, others=WITH_APPROVALS) as made:
        yield made


async def decided(penstock: Pipeline, run_id: str) -> ApprovalRecord:
    [event] = [
        each
        for each in await penstock.events_until(run_id, "approval.decided")
        if each.type == "approval.decided"
    ]

    async def probe() -> ApprovalRecord | None:
        record = await penstock.approval(event.data["approval_id"])
        return record if record.status == "decided" else None

    found = await eventually(probe, what="the decision")
    assert found is not None
    return found


async def outcome_of(made: Automations, run_id: str) -> Event:
    [outcome] = await made.outcomes(run_id, 1)
    return outcome


@pytest.mark.parametrize(("decision", "done"), [("approve", "approved"), ("reject", "rejected")])
async def test_a_rule_decides_all_items_on_behalf_of_its_owner(
    nats_server: NatsServer, decision: str, done: str
) -> None:
    action = {"decide": {**APPROVE["decide"], "decision": decision}}
    async with deciding(nats_server) as made:
        await made.apply(rule_with("gate", action, ASKED))
        run_id = await start_and_pause(made.penstock, confirmation("t1"), confirmation("t2"))
        record = await decided(made.penstock, run_id)
        outcome = await outcome_of(made, run_id)
        assert outcome.type == "automation.completed"
        assert outcome.data["result"] == f"{done} approval {record.approval_id}"
        assert record.decision is not None
        assert record.decision.outcome == done
        assert [each.item_id for each in record.decision.items] == ["t1", "t2"]
        assert record.decision.by == "automation gate"
        decider = record.decision.decider
        assert decider is not None
        assert (decider.channel, decider.on_behalf_of) == ("automation", "u1")
        assert decider.scopes == user("u1").scopes
        assert record.decision.note == "rule for delete_file"

        async def sent() -> bool:
            return len(await continues(made.penstock, run_id)) == 1

        await eventually(sent, what="the run's continuation")


async def test_the_approval_is_linked_to_the_delivery_that_decided_it(
    nats_server: NatsServer,
) -> None:
    with recording() as recorder:
        async with deciding(nats_server) as made:
            await made.apply(rule_with("traced", APPROVE, ASKED))
            run_id = await start_and_pause(made.penstock)
            record = await decided(made.penstock, run_id)
            await outcome_of(made, run_id)

            async def delivered() -> str | None:
                found = [each.context for each in recorder.spans if "delivery" in each.name]
                return found[0] if found else None

            context = await eventually(delivered, what="the span of the delivery")
    assert [vote.traceparent for vote in record.votes] == [context]


async def test_a_repeated_job_gets_the_answer_of_the_first_decision(
    nats_server: NatsServer,
) -> None:
    async with deciding(nats_server) as made:
        record = await made.apply(rule_with("again", APPROVE, ASKED))
        run_id = await start_and_pause(made.penstock)
        await outcome_of(made, run_id)
        events = await made.penstock.events_until(run_id, ASKED)
        delivery = await made.delivery("again", run_id, events[-1].sequence)
        key = f"again.{run_id}-{events[-1].sequence}"
        deliveries = made.bus.bucket("deliveries")
        entry = await deliveries.get(key)
        assert entry is not None
        await deliveries.delete(key, entry.revision)
        job = Job.parse(orjson.dumps(delivery.job))
        assert job.uid == record.uid
        await publish(made.bus, job.replayed())

        async def repeated() -> str | None:
            found = await deliveries.get(key)
            return DeliveryRecord.model_validate_json(found.value).status if found else None

        assert await eventually(repeated, what="the repeated delivery") == "delivered"
        assert len(await continues(made.penstock, run_id)) == 1


NO_DECIDE = Owner(user_id="u1", scopes=["automate", "start", "read"])


async def test_an_owner_that_never_had_the_scope_decides_nothing(nats_server: NatsServer) -> None:
    async with deciding(nats_server) as made:
        await made.store.apply(rule_with("powerless", APPROVE, ASKED), NO_DECIDE)
        await made.settled()
        run_id = await start_and_pause(made.penstock)
        outcome = await outcome_of(made, run_id)
        assert outcome.data["error"]["code"] == "not_allowed"
        assert "the scope decide" in outcome.data["error"]["message"]
        approval = await made.penstock.approval(await approval_of(made, run_id))
        assert approval.status == "pending"


async def test_a_rule_of_another_user_does_not_decide(nats_server: NatsServer) -> None:
    async with deciding(nats_server) as made:
        await made.apply(rule_with("foreign", APPROVE, ASKED), "mallory")
        await made.apply(rule_with("witness", {"decide": {"decision": "reject"}}, ASKED))
        run_id = await start_and_pause(made.penstock)
        record = await decided(made.penstock, run_id)
        assert record.decision is not None
        assert record.decision.outcome == "rejected"
        assert (await outcome_of(made, run_id)).data["automation"] == "witness"


async def test_items_that_need_an_answer_are_left_to_people(nats_server: NatsServer) -> None:
    async with deciding(nats_server) as made:
        await made.apply(rule_with("mixed", APPROVE, ASKED))
        run_id = await start_and_pause(made.penstock, confirmation("t1"), user_input("t2"))
        outcome = await outcome_of(made, run_id)
        assert outcome.data["error"]["code"] == "cannot_decide"
        assert "t2" in outcome.data["error"]["message"]
        assert outcome.data["error"]["retryable"] is False
        approval = await made.penstock.approval(await approval_of(made, run_id))
        assert approval.status == "pending"


async def test_a_request_that_was_decided_before_is_a_final_outcome(
    nats_server: NatsServer,
) -> None:
    async with deciding(nats_server) as made:
        for name in ("first", "second"):
            await made.apply(rule_with(name, APPROVE, ASKED))
        run_id = await start_and_pause(made.penstock)
        outcomes = await made.outcomes(run_id, 2)
        by_type = {each.type: each for each in outcomes}
        assert by_type.keys() == {"automation.completed", "automation.failed"}
        error = by_type["automation.failed"].data["error"]
        assert (error["code"], error["retryable"]) == ("not_pending", False)
        assert "decided already" in error["message"]
        assert len(await continues(made.penstock, run_id)) == 1


IN_OPS = Owner(user_id="u1", roles=["ops"], scopes=user("u1").scopes)
TWO_OF_OPS = "default: {need: 2, deciders: {roles: [ops]}}\n"


async def test_the_rules_of_one_owner_have_one_vote(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    policy = written(tmp_path, TWO_OF_OPS)
    async with automations(nats_server.url, others=WITH_APPROVALS, policy=policy) as made:
        for name in ("ballot", "stuffing"):
            await made.store.apply(rule_with(name, APPROVE, ASKED), IN_OPS)
        await made.settled()
        run_id = await start_and_pause(made.penstock)
        done, refused = sorted(await made.outcomes(run_id, 2), key=lambda each: each.type)
        approval_id = await approval_of(made, run_id)
        assert done.data["result"] == (
            f"voted to approve approval {approval_id}, which needs more votes"
        )
        assert refused.data["error"]["code"] == "not_pending"
        assert "u1 has decided this already" in refused.data["error"]["message"]
        approval = await made.penstock.approval(approval_id)
        assert (approval.status, [each.by for each in approval.votes]) == ("pending", ["u1"])
        bob = vote(approval, person("bob", "ops"), key="k")
        assert (await made.penstock.ask(approval_id, bob)).status == 200
        # A caller that repeats a vote gets the answer of the vote, even if others have decided
        # since.
        [cast] = approval.votes
        again = DecideRequest(
            decider=cast.decider,
            items=cast.items,
            note=cast.note,
            idempotency_key=cast.idempotency_key,
        )
        assert (await made.penstock.ask(approval_id, again)).status == 200


async def test_a_policy_that_excludes_the_owner_excludes_the_owners_rules(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    policy = written(tmp_path, "default: {deciders: {roles: [ops], not: [requester]}}\n")
    async with automations(nats_server.url, others=WITH_APPROVALS, policy=policy) as made:
        await made.store.apply(rule_with("selfish", APPROVE, ASKED), IN_OPS)
        await made.settled()
        run_id = await start_and_pause(made.penstock)
        outcome = await outcome_of(made, run_id)
        assert outcome.data["error"]["code"] == "not_allowed"
        assert "does not let the user whose run asks decide" in outcome.data["error"]["message"]


async def approval_of(made: Automations, run_id: str) -> str:
    events = await made.penstock.events_until(run_id, ASKED)
    return str(events[-1].data["approval_id"])


@asynccontextmanager
async def answering(made: Automations, *statuses: int) -> AsyncIterator[list[DecideRequest]]:
    """Play an approvals service that answers each decision with the next status; 0 is no answer."""
    asked: list[DecideRequest] = []

    async def on_decide(msg: Msg) -> None:
        status = statuses[min(len(asked), len(statuses) - 1)]
        asked.append(DecideRequest.model_validate_json(msg.data))
        if status:
            reply = DecideReply.model_validate({"status": status, "detail": f"it is {status}"})
            await made.bus.client.publish(msg.reply, reply.dump())

    subscription = await made.bus.subscribe(subjects.decide("*"), on_decide)
    yield asked
    await subscription.unsubscribe()


async def test_the_decision_carries_the_digest_that_matched_and_one_key(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the first request is lost."""
    monkeypatch.setattr("penstock.runs.decide.ANSWER_S", 0.3)
    async with automations(nats_server.url) as made, answering(made, 0, 200) as asked:
        await made.apply(rule_with("early", APPROVE, ASKED))
        run_id = await start_and_pause(made.penstock)
        outcome = await outcome_of(made, run_id)
        assert outcome.type == "automation.completed"
        assert outcome.data["attempts"] == 1
        events = await made.penstock.events_until(run_id, ASKED)
        assert {each.digest for each in asked} == {events[-1].data["digest"]}
        assert {each.idempotency_key for each in asked} == {outcome.data["delivery_id"]}
        decider = asked[0].decider
        assert (decider.name, decider.on_behalf_of) == ("automation early", "u1")


@pytest.mark.parametrize(
    ("status", "code", "attempts"),
    [(404, "unknown_approval", 4), (409, "not_pending", 1), (422, "cannot_decide", 1)],
)
async def test_a_refusal_is_an_outcome_with_its_reason(
    nats_server: NatsServer, status: int, code: str, attempts: int
) -> None:
    async with automations(nats_server.url) as made, answering(made, status):
        await made.apply(rule_with(f"refused-{status}", APPROVE, ASKED))
        run_id = await start_and_pause(made.penstock)
        outcome = await outcome_of(made, run_id)
        assert outcome.data["error"]["code"] == code
        assert outcome.data["error"]["message"] == f"it is {status}"
        assert outcome.data["attempts"] == attempts


async def test_an_approvals_service_that_is_away_is_asked_again_later(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url, retry_delays_s=(1.0,) * 15) as made:
        await made.apply(rule_with("patient", APPROVE, ASKED))
        run_id = await start_and_pause(made.penstock)
        events = await made.penstock.events_until(run_id, ASKED)
        record = await made.delivery("patient", run_id, events[-1].sequence)
        assert record.attempts[0].code == "unavailable"
        async with answering(made, 200):
            assert (await outcome_of(made, run_id)).type == "automation.completed"
