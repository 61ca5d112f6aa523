"""/v1/runs/{id}/fork: a run that goes on after an event of an earlier one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from penstock.bus import Bus
from penstock.settings import AuthSettings
from penstock.web.auth import Auth, AuthConfig
from penstock_edge.sources import read_run
from penstock_edge.surfaces.v1 import forks
from support.drive.clients import Client, MakeEdge
from support.drive.secured import bearer
from support.drive.workflows import define, sequence
from support.fakes.issuer import SECRET
from support.fakes.pretend import PretendRun, command_of

CHAIN = sequence("a", "b", "c", name="chain")
INPUT = {"id": "1", "message": "go"}


async def told(
    bus: Bus, *, ends: bool = True, input: dict[str, Any] = INPUT, **fields: Any
) -> PretendRun:
    """Publish a run of a workflow whose step `c` failed. If it ends, its last event has the number
    10."""
    await define(bus, CHAIN)
    run = PretendRun(bus)
    common = {"target": "workflows", "agent": "chain", "message": "go", "status": "failed"}
    await run.record(**common | {"sequence": 10} | fields)
    await run.started()
    of_run = {"run_id": run.run_id}
    await run.say("workflow.started", workflow="chain", version="1", input=input, **of_run)
    for step in ("step_a", "step_b"):
        about = {**of_run, "step_id": step, "child_run_id": f"child of {step}"}
        await run.say("workflow.step_started", description="", kind="step", **about)
        await run.say("workflow.step_completed", output="done", **about)
    about = {**of_run, "step_id": "step_c"}
    await run.say("workflow.step_started", description="", kind="step", **about)
    error = {"code": "broken", "message": "it broke"}
    await run.say("workflow.step_failed", error=error, **about)
    await run.say("workflow.failed", error=error, **of_run)
    if ends:
        await run.say("lifecycle.failed", error="it broke", code="broken", step="c")
    return run


async def fork(
    edge: Client, run: PretendRun, headers: Mapping[str, str] | None = None, **body: Any
) -> httpx.Response:
    return await edge.post(f"/v1/runs/{run.run_id}/fork", json=body, headers=headers)


@pytest.mark.parametrize(
    ("sequence", "steps"),
    [
        (1, []),
        (3, []),
        (4, ["step_a"]),
        (5, ["step_a"]),
        (6, ["step_a", "step_b"]),
        (10, ["step_a", "step_b"]),
        (None, ["step_a", "step_b"]),
    ],
)
async def test_a_fork_takes_over_the_steps_that_had_completed_at_its_point(
    edge: Client, bus: Bus, sequence: int | None, steps: list[str]
) -> None:
    run = await told(bus, tags={"team": "payments"})
    answer = await fork(edge, run, sequence=sequence)
    assert answer.status_code == 202, answer.text
    record = answer.json()
    assert record["tags"] == {"team": "payments"}
    point = {"run_id": run.run_id, "sequence": sequence or 10}
    assert record["forked_from"] == point
    assert (record["agent"], record["message"]) == ("chain", "go")
    assert record["session_id"] != run.session_id
    command = await command_of(bus, record["run_id"], target="workflows")
    assert command["forked_from"] == point
    assert command["taken_over"]["steps"] == steps
    assert (command["workflow"], command["version"]) == ("chain", "1")
    assert command["input"] == INPUT
    query = {} if sequence is None else {"sequence": str(sequence)}
    seen = (await edge.get(f"/v1/runs/{run.run_id}/fork", params=query)).json()
    assert seen["possible"] is True
    assert seen["sequence"] == point["sequence"]
    assert seen["taken_over"]["steps"] == steps
    later = [step for step in ("step_a", "step_b", "step_c") if step not in steps]
    assert seen["later_steps"] == later


async def test_the_fork_of_a_run_without_a_message_has_none_in_its_input(
    edge: Client, bus: Bus
) -> None:
    """The message in the record is what its input says."""
    run = await told(bus, message="1 go", input={"id": "1"})
    forked = (await fork(edge, run)).json()
    command = await command_of(bus, forked["run_id"], target="workflows")
    assert (command["input"], command["message"]) == ({"id": "1"}, "")
    assert forked["message"] == "1"


async def test_the_steps_in_which_people_decide_are_asked_again(edge: Client, bus: Bus) -> None:
    run = await told(bus, ends=False)
    about = {"run_id": run.run_id, "step_id": "step_ask"}
    await run.say("workflow.step_started", description="", kind="approve", **about)
    await run.say("workflow.step_completed", output={"decision": "approved"}, **about)
    await run.say("lifecycle.failed", error="it broke", code="broken", step="c")
    seen = (await edge.get(f"/v1/runs/{run.run_id}/fork")).json()
    assert seen["taken_over"]["steps"] == ["step_a", "step_b"]
    assert seen["asks_again"] == ["step_ask"]
    record = (await fork(edge, run)).json()
    # The workflows service compares the new decision with this one.
    command = await command_of(bus, record["run_id"], target="workflows")
    assert command["taken_over"]["steps"] == ["step_a", "step_b", "step_ask"]


async def test_a_fork_has_the_version_of_its_first_run(edge: Client, bus: Bus) -> None:
    run = await told(bus)
    await define(bus, {**CHAIN, "version": "2", "steps": {"z": {"set": "1"}}})
    record = (await fork(edge, run)).json()
    assert (await command_of(bus, record["run_id"], target="workflows"))["version"] == "1"


async def test_a_repeated_fork_with_its_key_gets_the_first_one(edge: Client, bus: Bus) -> None:
    run, other = await told(bus), await told(bus)
    key = {"idempotency-key": run.run_id}
    first = await fork(edge, run, key, sequence=4)
    again = await fork(edge, run, key, sequence=4)
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json()["run_id"] == again.json()["run_id"]
    assert (await fork(edge, run, key, sequence=6)).status_code == 409
    assert (await fork(edge, other, key, sequence=4)).status_code == 409


@pytest.mark.parametrize(
    ("fields", "body", "status", "reason"),
    [
        ({"ends": False, "status": "running", "sequence": 1}, {}, 409, "has not ended"),
        ({}, {"message": "and now?"}, 409, "takes no message"),
        ({}, {"sequence": 11}, 422, "the run has 10 events"),
        ({}, {"sequence": 0}, 422, "sequence"),
        ({}, {"sequence": "4"}, 422, "sequence"),
        ({}, {"more": 1}, 422, "more"),
        ({"sequence": 99}, {}, 422, "event 99 of the run is not stored"),
    ],
)
async def test_a_run_that_cannot_be_forked_is_refused_with_the_reason(
    edge: Client,
    bus: Bus,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
    body: dict[str, Any],
    status: int,
    reason: str,
) -> None:
    monkeypatch.setattr(read_run, "LATE_S", 0.1)
    run = await told(bus, **fields)
    answer = await fork(edge, run, **body)
    assert answer.status_code == status, answer.text
    assert reason in answer.text
    listed = (await edge.get("/v1/runs", params={"agent": "chain", "status": "queued"})).json()
    assert not [each for each in listed["runs"] if each["forked_from"]["run_id"] == run.run_id]


async def test_a_run_with_too_many_events_is_not_forked(
    edge: Client, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "EVENTS_READ", 5)
    monkeypatch.setattr(read_run, "BATCH", 1)
    answer = await fork(edge, await told(bus))
    assert (answer.status_code, "too many events" in answer.text) == (422, True)


async def test_a_run_whose_first_events_are_gone_is_410(edge: Client, bus: Bus) -> None:
    run = PretendRun(bus)
    await run.record(target="workflows", agent="chain", status="completed", sequence=2)
    assert (await fork(edge, run)).status_code == 410


async def test_the_reason_is_known_before_somebody_tries(edge: Client, bus: Bus) -> None:
    run = await told(bus, ends=False, status="paused", sequence=1)
    seen = (await edge.get(f"/v1/runs/{run.run_id}/fork")).json()
    assert seen["possible"] is False
    assert "has not ended" in seen["reason"]
    gone = PretendRun(bus)
    await gone.record(agent="gone", status="completed")
    told_before = (await edge.get(f"/v1/runs/{gone.run_id}")).json()["no_fork"]
    assert told_before == "there is no agent gone any more"
    ended = await told(bus)
    assert "no_fork" not in (await edge.get(f"/v1/runs/{ended.run_id}")).json()
    assert seen["taken_over"]["steps"] == []


async def test_whose_the_fork_of_anothers_run_is_and_who_may_make_it(
    make_edge: MakeEdge, bus: Bus
) -> None:
    auth = AuthConfig(**AuthSettings(jwt_secret=SECRET).model_dump())
    edge = await make_edge(auth=Auth(auth))

    async def first(agent: str) -> PretendRun:
        run = PretendRun(bus)
        common = {"user_id": "alice", "tenant": "red", "status": "completed"}
        await run.record(agent=agent, sequence=3, **common)
        await run.started()
        await run.text("Hello")
        await run.completed()
        return run

    agno, adk = await first("assistant"), await first("helper")
    said = {"message": "and now?"}
    assert (await fork(edge, adk, bearer("bob"), **said)).status_code == 404
    assert (await edge.get(f"/v1/runs/{adk.run_id}/fork", headers=bearer("bob"))).status_code == 404
    # An administrator may see the run. Agno's fork would be in the session of its user.
    root = bearer("root", scope="read start administer")
    assert (await fork(edge, agno, root, **said)).status_code == 403
    own = (await fork(edge, adk, root, **said)).json()
    assert own["user_id"] == "root"
    assert own.get("tenant") is None
    assert own["session_id"] != adk.session_id
    deputy = bearer("root", scope="read start act-as")
    theirs = (await fork(edge, agno, deputy, **said)).json()
    assert (theirs["user_id"], theirs["session_id"]) == ("alice", agno.session_id)
    assert theirs["started_by"] == ["root"]
    # The key of one user is none of another.
    key = {"idempotency-key": adk.run_id}
    assert (await fork(edge, adk, bearer("alice") | key, **said)).status_code == 202
    assert (await fork(edge, adk, root | key, **said)).status_code == 202
    reader = bearer("alice", scope="read")
    assert (await fork(edge, adk, reader, **said)).status_code == 403
