"""Several people decide one approval, also at the same moment."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from penstock.settings import Config
from penstock_approvals.outcomes.votes import without_vote
from penstock_approvals.service import ApprovalsService
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import Services, pipeline
from support.drive.short import in_short
from support.drive.waiting import eventually
from support.fakes.pauses import continues, of_type, pause
from support.fakes.policies import person, vote, written
from support.real.approving import approvals_process
from support.real.nats import NatsServer

TWO: Services = (NormalizerService, ApprovalsService, ApprovalsService)
NEEDS_TWO = "default: {need: 2, deciders: {roles: [ops], not: [requester]}}\n"


async def test_progress_is_shown_and_the_second_person_decides(
    nats: NatsServer, tmp_path: Path
) -> None:
    policy = written(tmp_path, NEEDS_TWO)
    async with pipeline(nats.url, Config(), TWO, policy=policy) as penstock:
        approval = await pause(penstock)
        first = await penstock.ask(approval.approval_id, vote(approval, person("ada", "ops")))
        again = await penstock.ask(approval.approval_id, vote(approval, person("ada", "ops")))
        mine = await penstock.ask(approval.approval_id, vote(approval, person("u1", "ops")))
        shown = (await penstock.http.get(f"/v1/approvals/{approval.approval_id}")).json()
        assert not await continues(penstock, approval.run_id)
        last = await penstock.ask(approval.approval_id, vote(approval, person("bob", "ops")))
        events = await penstock.events_until(approval.run_id, "approval.decided")
    assert [first.status, again.status, mine.status, last.status] == [200, 409, 403, 200]
    assert (shown["status"], shown["need"]) == ("pending", 2)
    assert [each["by"] for each in shown["votes"]] == ["ada"]
    [paused] = of_type(events, "lifecycle.paused")
    assert paused.data["deciders_required"] == 2
    assert events[-1].data["deciders"] == ["ada", "bob"]
    assert events[-1].data["policy"] == "default@1"


@pytest.mark.parametrize("rejections", in_short([0, 3], [3]))
async def test_of_two_hundred_racing_deciders_two_decide(
    nats: NatsServer, tmp_path: Path, rejections: int
) -> None:
    policy = written(tmp_path, NEEDS_TWO)
    async with pipeline(nats.url, Config(), TWO, policy=policy) as penstock:
        approval = await pause(penstock)

        async def decide(number: int) -> int:
            say = "reject" if number < rejections else "approve"
            # Each person sends the vote twice, as a client does after a lost answer.
            request = vote(approval, person(f"p{number % 150}", "ops"), say, key=f"k{number}")
            return (await penstock.ask(approval.approval_id, request)).status

        statuses = Counter(await asyncio.gather(*(decide(number) for number in range(200))))

        async def sent() -> bool:
            return bool(await continues(penstock, approval.run_id))

        await eventually(sent, what="the continue")
        record = await penstock.approval(approval.approval_id)
        commands = await continues(penstock, approval.run_id)
    assert record.decision is not None
    voters = [each.by for each in record.votes]
    assert statuses == {200: len(voters), 409: 200 - len(voters)}
    assert len(commands) == 1
    assert len(set(voters)) == len(voters) <= 2
    if record.decision.outcome == "approved":
        assert len(voters) == 2
    else:
        assert record.votes[-1].items[0].decision == "reject"


@pytest.mark.parametrize(
    ("voter", "write"),
    in_short([(1, 1), (1, 2), *((2, n) for n in range(1, 8))], [(2, 5)]),
)
async def test_a_kill_at_any_write_of_a_vote_loses_no_vote_and_sends_one_decision(
    fresh_nats: NatsServer, tmp_path: Path, voter: int, write: int
) -> None:
    policy = written(tmp_path, NEEDS_TWO)
    people = [person("ada", "ops"), person("bob", "ops")]
    async with pipeline(fresh_nats.url, Config(), (NormalizerService,)) as penstock:
        async with approvals_process(fresh_nats.url, outbox_s=60, policy=policy):
            approval = await pause(penstock)
            votes = [vote(approval, who, key=f"k-{who.name}") for who in people]
            for request in votes[: voter - 1]:
                await penstock.ask(approval.approval_id, request)
        dies = approvals_process(
            fresh_nats.url, dies_in=("take_vote", write), outbox_s=60, policy=policy
        )
        async with dies as victim:
            await victim.dies_of(penstock.ask(approval.approval_id, votes[voter - 1]))
        services: Services = (ApprovalsService,)
        async with pipeline(fresh_nats.url, Config(), services, policy=policy, outbox_s=0.1):
            # Each client without an answer repeats its vote.
            again = [await penstock.ask(approval.approval_id, each) for each in votes[voter - 1 :]]
            events = await penstock.events_until(approval.run_id, "approval.decided")

            async def sent() -> bool:
                left = await penstock.bus.bucket("approvals").keys("outbox.*")
                return not left and bool(await continues(penstock, approval.run_id))

            await eventually(sent, what="the continue")
            commands = await continues(penstock, approval.run_id)
            record = await penstock.approval(approval.approval_id)
    assert [each.status for each in again] == [200] * len(again)
    assert [each.by for each in record.votes] == ["ada", "bob"]
    assert events[-1].data["deciders"] == ["ada", "bob"]
    assert len(commands) == 1


# The outbox entry, the record, the audit, and the removal of the entry.
TAKE_BACK_WRITES = 4


@pytest.mark.parametrize("write", in_short(range(1, TAKE_BACK_WRITES + 1), [3]))
async def test_a_kill_at_any_write_leaves_the_vote_taken_back_once_or_not_at_all(
    fresh_nats: NatsServer, tmp_path: Path, write: int
) -> None:
    policy = written(tmp_path, NEEDS_TWO)
    async with pipeline(fresh_nats.url, Config(), (NormalizerService,)) as penstock:
        dies = approvals_process(fresh_nats.url, dies_in=("amend", write), policy=policy)
        async with dies as victim:
            approval = await pause(penstock)
            given = vote(approval, person("anonymous", "ops"), key="k")
            await penstock.ask(approval.approval_id, given)
            url = f"{victim.url}/v1/approvals/{approval.approval_id}/decision"
            with suppress(httpx.HTTPError):
                await penstock.http.delete(url)
            assert await victim.process.ended() == -signal.SIGKILL
        services: Services = (ApprovalsService,)
        async with pipeline(
            fresh_nats.url, Config(), services, policy=policy, outbox_s=0.1
        ) as other:
            path = f"/v1/approvals/{approval.approval_id}"
            # Whoever did not get an answer asks again.
            again = await other.http.delete(f"{path}/decision")
            audit = (await other.http.get(f"{path}/audit")).json()
            for name in ("ada", "bob"):
                await other.ask(approval.approval_id, vote(approval, person(name, "ops")))
            events = await penstock.events_until(approval.run_id, "approval.decided")
            late = await other.ask(approval.approval_id, given)

            async def nothing_is_left() -> bool:
                return not await penstock.bus.bucket("approvals").keys("outbox.*")

            await eventually(nothing_is_left, 60, "the entry is removed")
    assert again.status_code == 200, again.text
    assert [each["event"] for each in audit["records"]] == ["requested", "voted", "taken_back"]
    assert audit["intact"]
    assert events[-1].data["deciders"] == ["ada", "bob"]
    assert (late.status, "decided already" in late.detail) == (409, True), "the vote did not count"


async def test_votes_that_are_taken_back_race_with_the_votes_of_others(
    nats: NatsServer, tmp_path: Path
) -> None:
    """The decision counts two votes that stand, and no vote is taken back after it."""
    policy = written(tmp_path, NEEDS_TWO)
    async with pipeline(nats.url, Config(), TWO, policy=policy) as penstock:
        approval = await pause(penstock)
        first, _ = [each._approvals for each in penstock.services[1:]]  # type: ignore[attr-defined]  # Approvals

        async def vacillates(number: int) -> None:
            who = person(f"p{number}", "ops")
            for turn in range(3):
                request = vote(approval, who, key=f"{number} {turn}")
                await penstock.ask(approval.approval_id, request)
                await first.amend(approval.approval_id, who, without_vote)

        await asyncio.gather(*map(vacillates, range(6)))
        for name in ("ada", "bob"):
            await penstock.ask(approval.approval_id, vote(approval, person(name, "ops")))
        await penstock.events_until(approval.run_id, "approval.decided")
        record = await penstock.approval(approval.approval_id)
        late = await first.amend(approval.approval_id, person(record.votes[-1].by), without_vote)

        async def sent() -> bool:
            return bool(await continues(penstock, approval.run_id))

        await eventually(sent, what="the continue")
        commands = await continues(penstock, approval.run_id)
    standing = [each for each in record.votes if each.taken_back is None]
    assert (len(standing), record.votes[-1].taken_back, len(commands)) == (2, None, 1)
    assert (late.status, "decided already" in late.detail) == (409, True)
