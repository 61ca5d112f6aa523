"""If a process is killed before any write, the audit still has each action once."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from penstock.bus.records.approvals import ApprovalRecord, DecideRequest
from penstock.settings import Config
from penstock_approvals.audit.trail import Audit
from penstock_approvals.audit.verify import Verifier
from penstock_approvals.service import ApprovalsService
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import Pipeline, Services, pipeline
from support.drive.waiting import eventually
from support.fakes.pauses import end, pause
from support.fakes.policies import person, vote, written
from support.real.approving import approvals_process
from support.real.nats import NatsServer

WITHOUT: Services = (NormalizerService,)
AGAIN: Services = (ApprovalsService,)
TWO = "default: {need: 2, deciders: {roles: [ops]}}\n"
SOON = "default: {deadline: 2s}\n"
# The numbers of writes. The deciding vote has the writes of a decision: see `test_crashes`. A vote
# has: record, audit. An expiry has: record, audit (expired, decided), two events, command, audit,
# outbox. A withdrawal has: record, audit, event.
VOTE, DECISION, EXPIRY, WITHDRAWAL = 2, 7, 8, 3


def numbers(writes: int) -> range:
    return range(1, writes + 1)


def mark(is_quick: bool) -> list[pytest.MarkDecorator]:
    """Return the marks of a case. One case of each kind is not marked, so it is always tested."""
    return [] if is_quick else [pytest.mark.chaos]


async def audited(penstock: Pipeline, approval: ApprovalRecord, *expected: str) -> None:
    """Wait until the run's chain has these events, and check that it has no others."""
    trail = Audit(penstock.bus)

    async def complete() -> bool:
        key = f"outbox.{approval.approval_id}"
        is_sent = await penstock.bus.bucket("approvals").get(key) is None
        return is_sent and len(await trail.chain(approval.run_id)) >= len(expected)

    await eventually(complete, 30, f"the audit has {expected}")
    chain = await trail.chain(approval.run_id)
    assert [each.record["event"] for each in chain] == list(expected)
    verifier = Verifier()
    for each in chain:
        verifier.take(approval.run_id, each.payload, each.n)
    assert verifier.findings() == []


async def asked(penstock: Pipeline, approval: ApprovalRecord, request: DecideRequest) -> int:
    """Send a decision over NATS; return the status of the reply, or 0 without a reply."""
    with suppress(Exception):
        return (await penstock.ask(approval.approval_id, request)).status
    return 0


@pytest.mark.parametrize(
    ("voter", "write"),
    [
        *(pytest.param("ada", write, marks=pytest.mark.chaos) for write in numbers(VOTE)),
        *(pytest.param("bob", write, marks=mark(write == 3)) for write in numbers(DECISION)),
    ],
)
async def test_a_kill_at_any_write_of_a_vote(
    fresh_nats: NatsServer, tmp_path: Path, voter: str, write: int
) -> None:
    policy = written(tmp_path, TWO)
    url = fresh_nats.url
    async with pipeline(url, Config(), WITHOUT) as penstock:
        async with approvals_process(url, policy=policy):
            approval = await pause(penstock)
            votes = {name: vote(approval, person(name, "ops"), key=name) for name in ("ada", "bob")}
            if voter == "bob":
                assert await asked(penstock, approval, votes["ada"]) == 200
        dies = approvals_process(url, dies_in=("take_vote", write), outbox_s=60, policy=policy)
        async with dies as victim:
            await victim.dies_of(asked(penstock, approval, votes[voter]))
        async with pipeline(url, Config(), AGAIN, policy=policy, outbox_s=0.1):
            for request in votes.values():
                assert await asked(penstock, approval, request) == 200
            await audited(penstock, approval, "requested", "voted", "decided", "sent")


@pytest.mark.parametrize(
    "write", [pytest.param(write, marks=mark(write == 4)) for write in numbers(EXPIRY)]
)
async def test_a_kill_at_any_write_of_an_expiry(
    fresh_nats: NatsServer, tmp_path: Path, write: int
) -> None:
    policy = written(tmp_path, SOON)
    url = fresh_nats.url
    async with pipeline(url, Config(), WITHOUT) as penstock:
        dies = approvals_process(
            url, dies_in=("on_due", write), outbox_s=60, ack_wait_s=1, policy=policy
        )
        async with dies as victim:
            approval = await pause(penstock)
            assert await victim.process.ended() == -signal.SIGKILL
        async with pipeline(url, Config(), AGAIN, policy=policy, outbox_s=0.1, ack_wait_s=1):
            await audited(penstock, approval, "requested", "expired", "decided", "sent")


@pytest.mark.parametrize(
    "write", [pytest.param(write, marks=mark(write == 2)) for write in numbers(WITHDRAWAL)]
)
async def test_a_kill_at_any_write_of_a_withdrawal(fresh_nats: NatsServer, write: int) -> None:
    url = fresh_nats.url
    async with pipeline(url, Config(), WITHOUT) as penstock:
        async with approvals_process(url):
            approval = await pause(penstock)
        async with approvals_process(url, dies_in=("on_event", write), ack_wait_s=1) as victim:
            await end(penstock, approval.run_id)
            assert await victim.process.ended() == -signal.SIGKILL
        async with pipeline(url, Config(), AGAIN, ack_wait_s=1):
            await audited(penstock, approval, "requested", "withdrawn")


async def test_an_escalation_is_audited_when_it_is_reached(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    lines = "default: {deadline: 1h, escalate: [{after: 1s, to: {roles: [lead]}}]}\n"
    policy = written(tmp_path, lines)
    services: Services = (*WITHOUT, *AGAIN)
    async with pipeline(fresh_nats.url, Config(), services, policy=policy) as penstock:
        approval = await pause(penstock)
        await audited(penstock, approval, "requested", "escalated")


async def test_the_api_answers_while_the_audit_is_written_by_others(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    """The audit of an approval is read in the middle of a chain that grows."""
    services: Services = (*WITHOUT, *AGAIN)
    async with pipeline(fresh_nats.url, Config(), services) as penstock:
        approval = await pause(penstock)
        path = f"/v1/approvals/{approval.approval_id}/audit"
        await penstock.decide(approval.approval_id)
        answers: list[httpx.Response] = []
        while len(answers) < 20:
            answers.append(await penstock.http.get(path))
    assert all(answer.json()["intact"] for answer in answers)
