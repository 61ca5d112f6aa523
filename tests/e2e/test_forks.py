"""Forks of runs of the real agent servers: the conversation up to the point, and no call again."""

from __future__ import annotations

import uuid
from typing import Any

import httpx
import pytest

from support.real.deployment import Deployment, Event
from support.real.upstreams import Upstream

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]


def calls(events: list[Event]) -> list[str]:
    return [each.data["tool"] for each in events if each.type == "llm.tool_call"]


def results(events: list[Event]) -> list[Event]:
    return [each for each in events if each.type == "llm.tool_result"]


async def fork(penstock: Deployment, run_id: str, **body: Any) -> httpx.Response:
    return await penstock.http.post(f"{penstock.edge()}/v1/runs/{run_id}/fork", json=body)


async def forked(penstock: Deployment, run_id: str, **body: Any) -> list[Event]:
    """Fork a run; return all events of the fork, which must complete."""
    answer = await fork(penstock, run_id, **body)
    assert answer.status_code == 202, answer.text
    record = answer.json()
    events = await penstock.all(record["run_id"])
    assert events[-1].type == "lifecycle.completed", events[-1].data
    assert events[0].data["forked_from"] == record["forked_from"]
    assert record["forked_from"]["run_id"] == run_id
    return events


async def test_agno_goes_on_after_a_result_and_calls_only_what_comes_later(
    penstock: Deployment,
) -> None:
    session = f"forks-{uuid.uuid4().hex[:8]}"
    first = await penstock.run("assistant", "seqtools", session_id=session)
    events = await penstock.all(first)
    assert calls(events) == ["list_documents", "add"]
    one, two = results(events)
    # After the first result, the second tool is called; after the second, none.
    assert calls(await forked(penstock, first, sequence=one.sequence)) == ["add"]
    after = await forked(penstock, first, sequence=two.sequence)
    assert calls(after) == []
    assert after[-1].data["summary"] == events[-1].data["summary"]
    # Before any result, both are called; the run that was forked stays as it is.
    assert calls(await forked(penstock, first, sequence=1)) == ["list_documents", "add"]
    assert [each.data for each in await penstock.all(first)] == [each.data for each in events]
    # At the end the agent has answered, so it must be said something.
    assert (await fork(penstock, first)).status_code == 422
    said = await forked(penstock, first, message="text")
    assert "Hello!" in said[-1].data["summary"]
    assert calls(said) == []


async def decide(penstock: Deployment, run_id: str, decision: str) -> None:
    paused = (await penstock.until(run_id, "lifecycle.paused"))[-1]
    answer = await penstock.decide(paused.data["approval_id"], decision)
    assert answer.status_code == 200, answer.text


async def test_agno_asks_a_person_again_in_a_fork(penstock: Deployment) -> None:
    first = await penstock.run("assistant", "confirm Forked")
    await decide(penstock, first, "approve")
    [result] = results(await penstock.all(first))
    answer = await fork(penstock, first, sequence=result.sequence - 1)
    assert answer.status_code == 202, answer.text
    again = answer.json()["run_id"]
    await decide(penstock, again, "reject")
    [refused] = results(await penstock.all(again))
    assert refused.data["outcome"] == "rejected"


async def test_a_fork_at_agno_that_is_cancelled_stops_and_leaves_the_first_run(
    penstock: Deployment,
) -> None:
    first = await penstock.run("assistant", "text")
    await penstock.all(first)
    answer = await fork(penstock, first, message="slow")
    run_id = answer.json()["run_id"]
    await penstock.until(run_id, "llm.stream")
    cancelled = await penstock.http.post(f"{penstock.edge()}/v1/runs/{run_id}/cancel")
    assert cancelled.status_code == 200, cancelled.text
    assert await penstock.status(run_id) == "cancelled"
    assert await penstock.status(first) == "completed"


async def test_adk_goes_on_in_a_session_with_the_events_up_to_the_point(
    penstock: Deployment, adk_server: Upstream
) -> None:
    first = await penstock.run("adk", "weather")
    events = await penstock.all(first)
    [result] = results(events)

    async def session_of(run: list[Event]) -> dict[str, Any]:
        """The session at the ADK server of a run, as this server tells it."""
        about = run[0].body
        path = f"/apps/demo/users/anonymous/sessions/{about['session_id']}"
        session: dict[str, Any] = (await penstock.http.get(f"{adk_server.url}{path}")).json()
        return session

    def kinds(session: dict[str, Any]) -> list[str]:
        parts = [part for each in session["events"] for part in each["content"]["parts"]]
        return [
            next(iter(part.keys() & {"text", "functionCall", "functionResponse"})) for part in parts
        ]

    assert (await fork(penstock, first, sequence=result.sequence)).status_code == 422
    after = await forked(penstock, first, sequence=result.sequence, message="plain hi")
    assert calls(after) == []
    assert after[-1].data["summary"] == "Hello from demo_agent."
    whole, cut = kinds(await session_of(events)), kinds(await session_of(after))
    until = whole.index("functionResponse") + 1
    assert cut[:until] == whole[:until]
    assert cut[until:] == ["text", "text"]  # what was said in the fork, and its answer
    before = await forked(penstock, first, sequence=result.sequence - 1, message="plain hi")
    assert "functionCall" not in kinds(await session_of(before))
    stateful = await penstock.run("adk", "setstate")
    state = (await session_of(await penstock.all(stateful)))["state"]
    # `last_answer` has the answer of each run.
    own = {name: state[name] for name in state if ":" not in name and name != "last_answer"}
    kept = await session_of(await forked(penstock, stateful, message="plain hi"))
    assert own.items() <= kept["state"].items()
    assert own


async def test_what_cannot_be_forked_says_why(penstock: Deployment) -> None:
    team = await penstock.run("team", "text")
    await penstock.all(team)
    record = (await penstock.http.get(f"{penstock.edge()}/v1/runs/{team}")).json()
    assert record["no_fork"] == "Agno cannot fork a team's run"
    refused = await fork(penstock, team, message="go on")
    assert refused.status_code == 409
    assert refused.json()["detail"] == record["no_fork"]
