"""An automatic decision pauses nothing, asks nobody, and is recorded and announced."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from penstock.bus.records.approvals import Deciders
from penstock.settings import Config
from penstock_approvals.lifecycle.decisions import Approvals
from penstock_approvals.service import ApprovalsService
from penstock_approvals.store.policies import Policies
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import Pipeline, Services, pipeline, types
from support.drive.short import in_short
from support.drive.waiting import eventually
from support.fakes.pauses import confirmation, continues, pause, start_and_pause, user_input
from support.fakes.policies import person, vote, written
from support.real.approving import approvals_process
from support.real.nats import NatsServer

ONE: Services = (NormalizerService, ApprovalsService)
WITHOUT: Services = (NormalizerService,)
POLICY = """\
rules:
  - {id: never, when: 'args.path == "/etc"', outcome: reject, note: Not there.}
  - {id: files, match: {tool: delete_file}, outcome: approve}
"""
WRITES = 7  # the number of writes of an automatic decision: see `test_crashes`


async def done(penstock: Pipeline, run_id: str) -> None:
    async def sent() -> bool:
        left = await penstock.bus.bucket("approvals").keys("outbox.*")
        return bool(await continues(penstock, run_id)) and not left

    await eventually(sent, 30, "the continue")


async def test_an_automatic_outcome_pauses_nothing_and_is_announced(
    nats: NatsServer, tmp_path: Path
) -> None:
    policy = written(tmp_path, POLICY)
    async with pipeline(nats.url, Config(), ONE, policy=policy) as penstock:
        run_id = await start_and_pause(
            penstock, confirmation("t1", path="/etc"), confirmation("t2", path="/tmp")
        )
        await done(penstock, run_id)
        events = await penstock.events_until(run_id, "approval.decided")
        record = await penstock.approval(events[-1].data["approval_id"])
        [command] = await continues(penstock, run_id)
        waiting = (await penstock.http.get("/v1/approvals?status=pending")).json()["approvals"]
        late = await penstock.ask(record.approval_id, vote(record, person("u1")))
    assert types(events)[-2:] == ["approval.requested", "approval.decided"]
    decided = events[-1].data
    assert (decided["outcome"], decided["by"], decided["automatic"]) == ("mixed", "policy", True)
    assert decided["policy"] == "never@1"
    assert (command.items[0].decision, command.items[0].note) == ("reject", "Not there.")
    assert record.policy is not None
    assert (record.status, record.policy.version) == ("decided", 1)
    assert [each.rule_id for each in record.rulings] == ["never", "files"]
    assert run_id not in [each["run_id"] for each in waiting]
    assert late.status == 409


@pytest.mark.parametrize(
    ("roles", "decided"), [(["finance"], True), (["sales"], False), ([], False)]
)
async def test_a_rule_may_be_for_users_with_a_role(
    nats: NatsServer, tmp_path: Path, roles: list[str], decided: bool
) -> None:
    policy = written(
        tmp_path,
        "rules:\n"
        "  - {id: trusted, match: {roles: [finance]}, when: '\"finance\" in roles', "
        "outcome: approve}\n",
    )
    async with pipeline(nats.url, Config(), ONE, policy=policy) as penstock:
        run_id = await start_and_pause(penstock, roles=roles)
        last = "approval.decided" if decided else "lifecycle.paused"
        assert types(await penstock.events_until(run_id, last))[-1] == last


async def test_what_needs_a_value_is_asked(nats: NatsServer, tmp_path: Path) -> None:
    policy = written(tmp_path, "default: {outcome: approve}\n")
    async with pipeline(nats.url, Config(), ONE, policy=policy) as penstock:
        approval = await pause(penstock, confirmation("t1"), user_input("t2"))
    assert approval.status == "pending"


async def test_a_repeat_of_an_automatic_request_sends_nothing_again(
    nats: NatsServer, tmp_path: Path
) -> None:
    policy = written(tmp_path, POLICY)
    async with pipeline(nats.url, Config(), ONE, policy=policy) as penstock:
        run_id = await start_and_pause(penstock)
        await done(penstock, run_id)
        events = await penstock.events_until(run_id, "approval.decided")
        requested = await penstock.bus.tail("EVENTS", f"approval.requested.{run_id}")
        assert requested is not None
        await Approvals(penstock.bus, "again").on_event(requested)
        said = await penstock.raw(run_id, "approvals")
        commands = await continues(penstock, run_id)
    assert types(events).count("lifecycle.paused") == 0
    assert (len(said), len(commands)) == (1, 1)


async def test_if_the_record_of_an_automatic_decision_is_lost_only_the_requester_is_asked(
    nats: NatsServer, tmp_path: Path
) -> None:
    async with pipeline(nats.url, Config(), WITHOUT) as penstock:
        policies = Policies(penstock.bus, written(tmp_path, POLICY))
        await policies.load()
        run_id = await start_and_pause(penstock)
        *_, asked = await penstock.events_until(run_id, "approval.requested")
        requested = await penstock.bus.tail("EVENTS", f"approval.requested.{run_id}")
        assert requested is not None
        await Approvals(penstock.bus, "again", policies=policies).ask_again(requested)
        record = await penstock.approval(asked.data["approval_id"])
    assert (record.status, record.deciders) == ("pending", [Deciders(users=["requester"])])


@pytest.mark.parametrize("write", in_short(range(1, WRITES + 1), [4]))
async def test_a_kill_at_any_write_of_an_automatic_decision_leaves_it_taken_once(
    fresh_nats: NatsServer, tmp_path: Path, write: int
) -> None:
    policy = written(tmp_path, POLICY)
    async with pipeline(fresh_nats.url, Config(), WITHOUT) as penstock:
        dies = approvals_process(
            fresh_nats.url, dies_in=("on_event", write), ack_wait_s=1, policy=policy
        )
        async with dies as victim:
            run_id = await start_and_pause(penstock)
            assert await victim.process.ended() == -signal.SIGKILL
        services: Services = (ApprovalsService,)
        async with pipeline(
            fresh_nats.url, Config(), services, policy=policy, ack_wait_s=1, outbox_s=0.1
        ):
            await done(penstock, run_id)
            events = await penstock.events_until(run_id, "approval.decided")
            said = await penstock.raw(run_id, "approvals")
    assert types(events)[-2:] == ["approval.requested", "approval.decided"]
    assert len(said) == 1
