"""A push tells of one run: of its state when the push is added, and of all that follows."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from penstock.bus import Bus, BusError, subjects
from penstock.bus.records.webhooks import Push, PushReply, PushRequest
from penstock.dialects.a2a import TaskFold
from penstock_automations.rules.model import Rule
from penstock_automations.rules.pushes import prefix
from penstock_automations.rules.store import RuleStore
from support.drive.automations import (
    Automations,
    DrivenRun,
    automations,
    rule,
    user,
    without_service,
)
from support.drive.waiting import eventually
from support.fakes.receiver import Receiver, answers
from support.real.automating import automations_process
from support.real.nats import NatsServer

pytestmark = pytest.mark.asyncio(loop_scope="module")
ENDED = "TASK_STATE_COMPLETED"
# Of each of a push's three deliveries in order: its place in the queue, its job,
# automation.triggered, (the request), its record, its outcome, the end of its place.
WRITES = 15


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(nats_server: NatsServer) -> AsyncIterator[Automations]:
    async with automations(nats_server.url) as running:
        yield running
        running.receiver.bad_signatures.clear()  # nobody knows the secrets of these rules


async def ask(bus: Bus, run_id: str, user: str = "u1", **fields: Any) -> PushReply:
    request = PushRequest(user_id=user, scopes=["automate"], **fields)
    answer = await bus.request(subjects.push(run_id), request.dump(), 10)
    return PushReply.model_validate_json(answer.data)


def push_to(receiver: Receiver, path: str, **fields: Any) -> Push:
    return Push(id="p", url=receiver.url(path), **fields)


def told(receiver: Receiver, path: str) -> list[str]:
    """Return of each request its kind, and the state if it has one."""
    kinds = []
    for each in receiver.got(path):
        [(kind, body)] = each.json.items()
        kinds.append(body["status"]["state"] if "status" in body else kind)
    return kinds


async def begun(made: Automations, user: str = "u1") -> DrivenRun:
    run = await made.run(user)
    await run.open()
    await made.penstock.events_until(run.run_id, "lifecycle.started")
    return run


async def forgotten(bus: Bus, run_id: str) -> None:
    async def gone() -> bool:
        return not (await ask(bus, run_id)).pushes

    await eventually(gone, what="the end of the push")


async def test_a_push_tells_of_the_present_state_and_of_all_that_follows_until_the_end(
    made: Automations,
) -> None:
    run = await begun(made)
    push = push_to(made.receiver, "/all", token="t-1", scheme="Bearer", credentials="c-1")
    reply = await ask(made.bus, run.run_id, add=push)
    assert [(each.id, each.scheme, each.token, each.credentials) for each in reply.pushes] == [
        ("p", "Bearer", None, None)
    ]
    await run.text("Hi there")
    await run.complete()
    await made.receiver.until(lambda: ENDED in told(made.receiver, "/all"))
    assert told(made.receiver, "/all") == ["TASK_STATE_SUBMITTED", "artifactUpdate", ENDED]
    fold = TaskFold()
    for each in made.receiver.got("/all"):
        assert each.headers["x-a2a-notification-token"] == "t-1"
        assert each.headers["authorization"] == "Bearer c-1"
        fold.add(each.json)
    task = fold.task()
    assert (task["id"], task["history"][0]["parts"]) == (run.run_id, [{"text": "hello"}])
    assert task["artifacts"][0]["parts"] == [{"text": "Hi there"}]
    await forgotten(made.bus, run.run_id)


async def test_a_push_that_is_removed_tells_nothing_more_and_a_repeat_changes_nothing(
    made: Automations,
) -> None:
    run = await begun(made)
    for _ in range(2):
        reply = await ask(made.bus, run.run_id, add=push_to(made.receiver, "/removed"))
        assert len(reply.pushes) == 1
    await made.receiver.count(1, "/removed")
    for _ in range(2):
        assert (await ask(made.bus, run.run_id, remove="p")).pushes == []
    other = push_to(made.receiver, "/other")
    await ask(made.bus, run.run_id, add=other)
    await run.complete()
    await made.receiver.until(lambda: ENDED in told(made.receiver, "/other"))
    assert told(made.receiver, "/other")[0] == "TASK_STATE_SUBMITTED", "also what /removed got"
    assert told(made.receiver, "/removed") == ["TASK_STATE_SUBMITTED"]


async def test_a_push_that_is_added_after_the_end_tells_of_the_end_and_is_forgotten(
    made: Automations,
) -> None:
    run = await begun(made)
    await run.complete()
    await made.penstock.ended(run.run_id)
    await ask(made.bus, run.run_id, add=push_to(made.receiver, "/late"))
    await made.receiver.count(1, "/late")
    assert told(made.receiver, "/late") == [ENDED]
    await forgotten(made.bus, run.run_id)


async def test_a_push_of_another_user_tells_nothing_of_the_run(made: Automations) -> None:
    run = await begun(made)
    assert (await ask(made.bus, run.run_id, "u2", add=push_to(made.receiver, "/u2"))).pushes
    assert (await ask(made.bus, run.run_id)).pushes == []
    await ask(made.bus, run.run_id, add=push_to(made.receiver, "/u1"))
    await run.complete()
    await made.receiver.until(lambda: ENDED in told(made.receiver, "/u1"))
    assert made.receiver.got("/u2") == []


@pytest.mark.parametrize("is_removed", [True, False])
async def test_a_push_that_replaces_another_tells_its_own_url_of_the_present_state(
    made: Automations, is_removed: bool
) -> None:
    run, old, new = await begun(made), f"/down-{is_removed}", f"/new-{is_removed}"
    await run.complete()
    await made.penstock.ended(run.run_id)
    # The delivery to the earlier URL still waits when the later one is made.
    made.receiver.usual[old] = answers(503, retry_after="1")
    await ask(made.bus, run.run_id, add=push_to(made.receiver, old))
    await made.receiver.count(1, old)
    if is_removed:
        await ask(made.bus, run.run_id, remove="p")
    reply = await ask(made.bus, run.run_id, add=push_to(made.receiver, new))
    assert [each.url for each in reply.pushes] == [made.receiver.url(new)]
    await made.receiver.count(1, new)
    assert told(made.receiver, new) == [ENDED]
    await forgotten(made.bus, run.run_id)


async def test_rules_that_a_user_made_of_pushes_are_no_pushes_and_show_no_secret(
    made: Automations,
) -> None:
    run = await begun(made)
    other = rule(f"{prefix(run.run_id)}other", made.receiver.url(), "lifecycle.completed")
    await made.store.apply(other, user("u1"))
    push = push_to(made.receiver, "/mine", scheme="Basic", credentials="abc")
    [shown] = (await ask(made.bus, run.run_id, add=push)).pushes
    assert (shown.id, shown.scheme) == ("p", "Basic")
    own = [each for each in await made.store.all() if each.id.startswith(prefix(run.run_id))]
    [stored] = [each for each in own if each.id != other.id]
    fields = stored.record.rule.model_dump()
    fields["action"]["webhook"]["auth"]["header"]["value"] = "secret-without-a-scheme"
    await made.store.apply(Rule.model_validate(fields), user("u1"))
    [shown] = (await ask(made.bus, run.run_id)).pushes
    assert shown.scheme is None
    for each in (other.id, stored.id):
        await made.store.delete(each)


@pytest.mark.parametrize(
    "url", ["https://10.0.0.1/hook", "https://[::1]/", "http://example.com/", "nothing"]
)
async def test_a_push_to_a_guarded_address_is_refused(made: Automations, url: str) -> None:
    run = await made.run()
    reply = await ask(made.bus, run.run_id, add=Push(id="p", url=url))
    assert reply.status == 422
    assert "url" in reply.detail
    assert (await ask(made.bus, run.run_id)).pushes == []


async def test_a_receiver_that_is_gone_ends_its_push(made: Automations) -> None:
    run = await begun(made)
    made.receiver.usual["/gone"] = answers(410)
    await ask(made.bus, run.run_id, add=push_to(made.receiver, "/gone"))
    await forgotten(made.bus, run.run_id)


@pytest.mark.chaos
@pytest.mark.parametrize("write", range(1, WRITES + 1))
async def test_a_kill_at_any_step_loses_no_state_and_leaves_no_push(
    fresh_nats: NatsServer, write: int
) -> None:
    async with without_service(fresh_nats.url) as made:
        run = await begun(made)
        async with automations_process(fresh_nats.url, dies_before=write) as victim:
            push = push_to(made.receiver, "/hook")
            with suppress(BusError):  # the process may be killed before it answers
                await ask(made.bus, run.run_id, add=push)
            await run.complete()
            assert await victim.process.ended() == -signal.SIGKILL
        async with automations_process(fresh_nats.url):
            # A client that got no answer repeats its request.
            await ask(made.bus, run.run_id, add=push)
            await made.receiver.until(lambda: ENDED in told(made.receiver, "/hook"))
            await forgotten(made.bus, run.run_id)
        kinds = list(dict.fromkeys(told(made.receiver, "/hook")))
        assert kinds == ["TASK_STATE_SUBMITTED", "artifactUpdate", ENDED]
        assert await RuleStore(made.bus).all() == []
        made.receiver.bad_signatures.clear()
