"""A process that is killed between decision and send: the decision is published and sent once."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from contextlib import suppress
from typing import Any

import httpx
import orjson
import pytest

from penstock.bus import RawWriter
from penstock.bus.records.approvals import ApprovalRecord, Decided, DecideRequest
from penstock.settings import Config
from penstock_approvals.audit.chain import Link
from penstock_approvals.audit.trail import Audit
from penstock_approvals.audit.verify import Finding, Verifier
from penstock_approvals.lifecycle import outbox
from penstock_approvals.lifecycle.decisions import Approvals
from penstock_approvals.service import ApprovalsService
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import Pipeline, Services, new_run_id, pipeline
from support.drive.short import in_short
from support.drive.waiting import eventually
from support.fakes.pauses import asks, confirmation, continues, pause, start_and_pause
from support.fakes.policies import anybody
from support.real.approving import approvals_process
from support.real.nats import NatsServer

WITHOUT: Services = (NormalizerService,)
YES = DecideRequest(decider=anybody("ada"), items=[Decided(item_id="t1", decision="approve")])
# The number of writes of a decision: the outbox entry, the record (compare-and-set), the audit
# (`decided`), approval.decided, the continue command, the audit (`sent`), and the removal of the
# outbox entry.
WRITES = 7


def decision(approval: ApprovalRecord, say: str = "approve", **more: Any) -> dict[str, Any]:
    items = [{"item_id": approval.items[0]["item_id"], "decision": say}]
    return {"items": items, "digest": approval.digest, **more}


async def post(url: str, approval: ApprovalRecord, body: dict[str, Any]) -> httpx.Response | None:
    """Return the answer; None if the connection broke, so that the outcome is unknown."""
    path = f"{url}/v1/approvals/{approval.approval_id}/decision"
    async with httpx.AsyncClient() as http:
        try:
            return await http.post(path, json=body)
        except httpx.TransportError:
            return None


async def done_once(penstock: Pipeline, approval: ApprovalRecord) -> dict[str, Any]:
    """Check that the decision is published, sent and audited once, and that the outbox is empty.

    Returns the event's data.
    """

    async def nothing_left() -> bool:
        key = f"outbox.{approval.approval_id}"
        return await penstock.bus.bucket("approvals").get(key) is None

    *_, told = await penstock.events_until(approval.run_id, "approval.decided")
    await eventually(nothing_left, 30, "an empty outbox")
    frames = await penstock.raw(approval.run_id, "approvals")
    said = [orjson.loads(frame.payload)["type"] for frame in frames]
    assert said == ["lifecycle.paused", "approval.decided"]
    [command] = await continues(penstock, approval.run_id)
    assert command.approval_id == approval.approval_id
    assert [item.decision for item in command.items] == [
        item["decision"] for item in told.data["items"]
    ]
    chain = await Audit(penstock.bus).chain(approval.run_id)
    assert [each.record["event"] for each in chain] == ["requested", "decided", "sent"]
    assert verified(chain) == []
    return told.data


def verified(chain: list[Link]) -> list[Finding]:
    verifier = Verifier()
    for link in chain:
        verifier.take(str(link.record["run_id"]), link.payload, link.n)
    return verifier.findings()


@pytest.mark.parametrize("write", in_short(range(1, WRITES + 1), [2, 3, WRITES]))
async def test_a_kill_at_any_step_of_a_decision_leaves_it_taken_once(
    nats: NatsServer, write: int
) -> None:
    async with pipeline(nats.url, Config(), WITHOUT) as penstock:
        async with approvals_process(nats.url, dies_in=("take_vote", write), outbox_s=60) as victim:
            approval = await pause(penstock)
            body = decision(approval, idempotency_key=new_run_id())
            first = await post(victim.url, approval, body)
            assert await victim.process.ended() == -signal.SIGKILL
        async with pipeline(nats.url, Config(), (ApprovalsService,), outbox_s=0.1) as other:
            if write > 2:
                # The decision is stored, so the sweep sends it without a second request.
                await done_once(penstock, approval)
            path = f"/v1/approvals/{approval.approval_id}/decision"
            again = await other.http.post(path, json=body)
            told = await done_once(penstock, approval)
    assert again.status_code == 200, again.text
    assert again.json()["decision"]["outcome"] == told["outcome"] == "approved"
    if write <= 2:
        assert first is None
    elif first is not None:
        assert first.json() == again.json()


@pytest.mark.parametrize("write", in_short(range(1, 6), [4]))
async def test_a_kill_while_a_request_is_recorded_leaves_it_asked_once(
    fresh_nats: NatsServer, write: int
) -> None:
    """The process is killed before the record, an alias, the audit, or lifecycle.paused."""
    async with pipeline(fresh_nats.url, Config(), WITHOUT) as penstock:
        dies = approvals_process(fresh_nats.url, dies_in=("on_event", write), ack_wait_s=1)
        async with dies as victim:
            run_id = await start_and_pause(penstock)
            assert await victim.process.ended() == -signal.SIGKILL
        async with pipeline(fresh_nats.url, Config(), (ApprovalsService,), ack_wait_s=1):
            *_, paused = await penstock.events_until(run_id, "lifecycle.paused")
            approval = await penstock.approval(paused.data["approval_id"])
            assert (await penstock.decide(approval.approval_id)).status == 200
            await done_once(penstock, approval)


async def test_a_kill_right_after_the_first_answer_of_many_loses_nothing(nats: NatsServer) -> None:
    async with pipeline(nats.url, Config(), WITHOUT) as penstock:
        async with approvals_process(nats.url, outbox_s=60) as victim:
            approvals = [await pause(penstock) for _ in range(8)]
            bodies = [decision(each, idempotency_key=new_run_id()) for each in approvals]
            asked = [
                asyncio.create_task(post(victim.url, *each))
                for each in zip(approvals, bodies, strict=True)
            ]
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            await victim.kill()
            answers = await asyncio.gather(*asked)
        known = [answer.status_code for answer in answers if answer is not None]
        assert known == [200] * len(known)
        assert known
        async with pipeline(nats.url, Config(), (ApprovalsService,), outbox_s=0.1) as other:
            for approval, answer in zip(approvals, answers, strict=True):
                if answer is not None:
                    await done_once(penstock, approval)
            for approval, body in zip(approvals, bodies, strict=True):
                path = f"/v1/approvals/{approval.approval_id}/decision"
                assert (await other.http.post(path, json=body)).status_code == 200
                await done_once(penstock, approval)


async def test_a_suspended_process_whose_outbox_entry_was_taken_writes_a_new_one(
    nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod sleeps between outbox entry and decision until the entry counts as abandoned.

    If the pod stored the decision without a new entry and then ended, no other pod would know that
    the decision must be sent.
    """
    monkeypatch.setattr(outbox, "ABANDONED_S", 0.3)
    entries: list[bool] = []
    async with pipeline(nats.url, Config(), WITHOUT) as penstock:
        bucket = penstock.bus.bucket("approvals")
        update = bucket.update

        async def slow(key: str, value: bytes, revision: int) -> int | None:
            entry = f"outbox.{key}"

            async def taken_away() -> bool:
                return await bucket.get(entry) is None

            if not entries:
                await eventually(taken_away, what="the entry is taken away")
            entries.append(await bucket.get(entry) is not None)
            return await update(key, value, revision)

        async with pipeline(nats.url, Config(), (ApprovalsService,), outbox_s=0.05):
            approval = await pause(penstock)
            monkeypatch.setattr(bucket, "update", slow)
            sleeper = Approvals(penstock.bus, "approvals-sleeper")
            # the sleeper does not continue after this
            reply = await sleeper.take_vote(approval.approval_id, YES)
            await done_once(penstock, approval)
    assert reply.status == 200
    assert entries == [False, True]


async def test_a_repeat_is_answered_as_the_first_and_only_the_same_is_one(
    nats: NatsServer,
) -> None:
    async with pipeline(nats.url, Config(), (*WITHOUT, ApprovalsService)) as penstock:
        approval = await pause(penstock)
        path = f"/v1/approvals/{approval.approval_id}/decision"
        body = decision(approval, note="checked", by="ada", idempotency_key="k-1")
        first = await penstock.http.post(path, json=body)
        again = await penstock.http.post(path, json=body)
        assert (first.status_code, again.json()) == (200, first.json())
        for other in (
            {"idempotency_key": "k-2"},
            {"idempotency_key": None},
            {"by": "bob"},
            {"note": "other"},
            {"items": [body["items"][0] | {"decision": "reject"}]},
        ):
            refused = await penstock.http.post(path, json=body | other)
            assert refused.status_code == 409, other
        assert "came with another decision" in refused.json()["detail"]
        await done_once(penstock, approval)


@pytest.mark.chaos
async def test_two_processes_that_die_again_and_again_decide_each_request_once(
    nats: NatsServer,
) -> None:
    """Three clients decide each of sixty requests; a client whose connection breaks asks again."""
    chance = random.Random(7)
    over = asyncio.Event()
    places: dict[int, str] = {}
    kills = Counter[int]()

    async def dying(number: int) -> None:
        while not over.is_set():
            async with approvals_process(nats.url, outbox_s=0.3) as process:
                places[number] = process.url
                with suppress(TimeoutError):
                    async with asyncio.timeout(chance.uniform(0.1, 1.0)):
                        await over.wait()
                await process.kill()
                kills[number] += 1

    async def person(approval: ApprovalRecord, number: int) -> int:
        say = chance.choice(["approve", "reject"])
        body = decision(approval, say, by=f"p{number}", idempotency_key=new_run_id())
        while True:
            answer = await post(places[chance.choice(sorted(places))], approval, body)
            if answer is not None and answer.status_code in (200, 409):
                return answer.status_code
            await asyncio.sleep(chance.random() * 0.1)

    async with pipeline(nats.url, Config(), WITHOUT) as penstock:
        approvals = []
        async with approvals_process(nats.url):
            for _ in range(60):
                approvals.append(await pause(penstock))
        tasks = [asyncio.create_task(dying(number)) for number in range(2)]

        async def both() -> bool:
            return len(places) == 2

        await eventually(both, 30, "both processes")
        statuses = []
        for approval in approvals:
            asked = await asyncio.gather(*(person(approval, number) for number in range(3)))
            statuses.append(sorted(asked))
        over.set()
        await asyncio.gather(*tasks)
        async with approvals_process(nats.url, outbox_s=0.1):
            for approval in approvals:
                await done_once(penstock, approval)
    assert statuses == [[200, 409, 409]] * 60
    assert sum(kills.values()) > 5


async def test_a_decision_is_told_once_though_the_run_has_paused_again_since(
    nats: NatsServer,
) -> None:
    """The process was killed before it emptied the outbox, and the run has continued since."""
    async with pipeline(nats.url, Config(), WITHOUT) as penstock:
        async with approvals_process(
            nats.url, dies_in=("take_vote", WRITES), outbox_s=60
        ) as victim:
            first = await pause(penstock)
            await post(victim.url, first, decision(first, idempotency_key=new_run_id()))
            assert await victim.process.ended() == -signal.SIGKILL
        run_id = first.run_id
        async with pipeline(nats.url, Config(), (ApprovalsService,), outbox_s=60):
            upstream = await RawWriter.resume(penstock.bus, run_id, "upstream", "test/2")
            opened = {"agent": "a", "approval_id": first.approval_id, "items": []}
            await upstream.write("open", orjson.dumps(opened), leg=2)
            await upstream.write("bytes", asks(confirmation("t2")), leg=2)
            await upstream.write("end", b'{"outcome":"eof"}', leg=2)
            *_, second = await penstock.events_until(
                run_id, lambda event: event.type == "lifecycle.paused" and event.leg == 2
            )
        async with pipeline(nats.url, Config(), (ApprovalsService,), outbox_s=0.1):

            async def nothing_left() -> bool:
                return not await penstock.bus.bucket("approvals").keys("outbox.*")

            await eventually(nothing_left, 30, "an empty outbox")
            await penstock.decide(second.data["approval_id"])
            events = await penstock.events_until(
                run_id, lambda event: event.type == "approval.decided" and event.leg == 2
            )
        said = [orjson.loads(frame.payload) for frame in await penstock.raw(run_id, "approvals")]
        [command, _] = await continues(penstock, run_id)
    told = [event.data["approval_id"] for event in events if event.type == "approval.decided"]
    assert told == [first.approval_id, second.data["approval_id"]]
    assert [each["type"] for each in said] == ["lifecycle.paused", "approval.decided"] * 2
    assert command.approval_id == first.approval_id
