"""Several people decide one approval, over both ways, at the same moment."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from penstock.settings import Config
from penstock_approvals.service import ApprovalsService
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import Services, pipeline
from support.drive.waiting import eventually
from support.fakes.pauses import continues, of_type, pause
from support.fakes.policies import person, vote, written
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


@pytest.mark.parametrize("rejections", [0, 3])
async def test_of_two_hundred_racing_deciders_two_decide(
    nats: NatsServer, tmp_path: Path, rejections: int
) -> None:
    policy = written(tmp_path, NEEDS_TWO)
    async with pipeline(nats.url, Config(), TWO, policy=policy) as penstock:
        approval = await pause(penstock)

        async def decide(number: int) -> int:
            say = "reject" if number < rejections else "approve"
            # Each person sends the vote twice, as a client does that got no answer.
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
