"""A backfill makes the deliveries of past events from before a rule, of each event once."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from typing import Any

import httpx
import pytest
import pytest_asyncio

from penstock.bus import streams
from penstock.web.answers import cursor_of
from support.drive.automations import rule, user, without_service
from support.drive.automations_api import AutomationsApi, automations_api, caller
from support.drive.waiting import eventually
from support.fakes.receiver import answers
from support.real.automating import automations_process
from support.real.nats import NatsServer
from support.real.ports import free_port

LONG_AGO = "2020-01-01T00:00:00Z"


@pytest_asyncio.fixture
async def api(fresh_nats: NatsServer) -> Any:
    async with automations_api(fresh_nats.url) as running:
        yield running


async def filled(api: AutomationsApi, rule_id: str, **body: Any) -> dict[str, Any]:
    answer = await api.ask("POST", f"/{rule_id}/backfill", body={"since": LONG_AGO, **body})
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_new_rule_gets_the_past_events_that_match_once_each(api: AutomationsApi) -> None:
    before = [await api.completed() for _ in range(3)]
    await api.completed("bob")
    await api.make("late", where='event.data.summary != "x"', order="run")
    after = await api.completed()
    [live] = await api.receiver.count(1, "/late")
    assert live.json["data"]["run_id"] == after.run_id
    first = await filled(api, "late", limit=2)
    assert (first["looked_at"], first["counts"]["matched"]) == (2, 2)
    second = await filled(api, "late", after=first["next"])
    assert (second["looked_at"], second["next"]) == (1, None)
    await api.receiver.count(4, "/late")
    again = await filled(api, "late")
    assert again["counts"]["matched"] == 3, "they match, and have their delivery already"
    await settled(api)
    got = Counter(each.json["data"]["run_id"] for each in api.receiver.got("/late"))
    assert got == Counter(each.run_id for each in (*before, after))


async def settled(api: AutomationsApi) -> None:
    async def none_waits() -> bool:
        jobs = await api.bus.tail(streams.DELIVERIES, "delivery.>")
        later = await api.bus.tail(streams.SCHEDULES, "schedule.automations.>")
        return jobs is None and later is None

    await eventually(none_waits, what="that no job is left")


async def test_a_backfill_does_not_disturb_a_delivery_that_waits(api: AutomationsApi) -> None:
    await api.make("slow")
    api.receiver.plans["/slow"] = [answers(500)]
    await api.completed()
    await api.receiver.count(1, "/slow")
    paused = await api.ask("POST", "/slow/pause")
    assert (await api.ask("POST", "/slow/backfill", body={"since": LONG_AGO})).status_code == 409
    assert paused.status_code == 200
    await api.ask("POST", "/slow/resume")  # so that the event is from before the rule's begin
    assert (await filled(api, "slow"))["counts"]["matched"] == 1
    await api.receiver.count(2, "/slow")
    await settled(api)
    assert len(api.receiver.got("/slow")) == 2, "the attempt that failed, and the next"


async def test_a_backfill_over_an_event_that_was_refused_with_410_does_not_pause_the_rule(
    api: AutomationsApi,
) -> None:
    await api.make("gone")
    api.receiver.plans["/gone"] = [answers(410)]
    await api.completed()

    async def paused() -> bool:
        return (await api.ask("GET", "/gone")).json()["paused"] is not None

    await eventually(paused, what="the pause after a 410")
    await settled(api)
    await api.ask("POST", "/gone/resume")
    assert (await filled(api, "gone"))["counts"]["matched"] == 1
    await settled(api)
    assert not await paused()


async def test_who_may_backfill_and_what_is_refused(api: AutomationsApi) -> None:
    await api.make("mine")
    stranger = await api.ask("POST", "/mine/backfill", caller("bob"), {"since": LONG_AGO})
    assert stranger.status_code == 404
    for body in ({}, {"since": "yesterday"}, {"since": LONG_AGO, "limit": 1001}):
        assert (await api.ask("POST", "/mine/backfill", body=body)).status_code == 422
    for after in ("nonsense", cursor_of(-1, 5), cursor_of(0, -1), cursor_of(0, 2**63)):
        wrong = {"since": LONG_AGO, "after": after}
        assert (await api.ask("POST", "/mine/backfill", body=wrong)).status_code == 422, after
    beyond = {"since": LONG_AGO, "after": cursor_of(99, 1)}
    assert (await api.ask("POST", "/mine/backfill", body=beyond)).json()["looked_at"] == 0
    timed = api.rule("timed") | {"schedule": {"cron": "0 8 * * *"}}
    del timed["subjects"]
    assert (await api.ask("POST", "", body=timed)).status_code == 201
    refused = await api.ask("POST", "/timed/backfill", body={"since": LONG_AGO})
    assert (refused.status_code, "waits for no events" in refused.text) == (409, True)


async def test_a_draft_is_tried_on_past_events_and_not_stored(api: AutomationsApi) -> None:
    run = await api.completed()
    draft = api.rule("draft", where='event.data.summary == "done"')
    body = {"rule": draft, "since": LONG_AGO}
    found = (await api.ask("POST", "/dry-run", body=body)).json()
    assert (found["counts"]["matched"], found["shown"][0]["run_id"]) == (1, run.run_id)
    assert (await api.ask("GET", "/draft")).status_code == 404
    stranger = (await api.ask("POST", "/dry-run", caller("bob"), body)).json()
    assert stranger["looked_at"] == 0, "a caller's draft sees the caller's runs"
    wrong = {**body, "rule": draft | {"where": "event.data.sumary == 'x'", "payload": "some"}}
    refused = await api.ask("POST", "/dry-run", body=wrong)
    assert [each["field"] for each in refused.json()["errors"]] == ["where", "payload"]
    doubtful = {**body, "rule": draft | {"where": "has(event.data.sumary)"}}
    warned = (await api.ask("POST", "/dry-run", body=doubtful)).json()
    assert 'did you mean "summary"?' in warned["warnings"][0]["message"]
    everybody = {**body, "rule": draft | {"all_users": True}}
    assert (await api.ask("POST", "/dry-run", body=everybody)).status_code == 403
    assert (await api.ask("POST", "", body=api.rule("dry-run"))).status_code == 422
    assert api.receiver.got("/draft") == []


async def backfilled(port: int, rule_id: str, page: int) -> None:
    """Backfill as a client does that repeats a request until it is answered."""
    url, after = f"http://127.0.0.1:{port}/v1/automations/{rule_id}/backfill", None
    async with httpx.AsyncClient(timeout=5, trust_env=False) as http:
        while True:
            body = {"since": LONG_AGO, "limit": page, **({"after": after} if after else {})}
            with contextlib.suppress(httpx.TransportError):
                answer = await http.post(url, json=body)
                after = answer.json()["next"] if answer.status_code == 202 else after
                if answer.status_code == 202 and after is None:
                    return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.chaos)])
async def test_each_past_event_has_one_delivery_over_kills(
    fresh_nats: NatsServer, kills: int
) -> None:
    luck, tools = random.Random(3), 60
    async with without_service(fresh_nats.url) as made:
        run = await made.run("anonymous")
        await run.open()
        for number in range(tools):
            await run.tool(number)
        await run.complete()
        await made.penstock.events_until(run.run_id, "lifecycle.completed")
        await made.store.apply(
            rule("late", made.receiver.url(), "llm.tool_call"), user("anonymous")
        )
        port = free_port()
        filling = asyncio.create_task(backfilled(port, "late", 7))
        for number in range(kills + 1):
            async with automations_process(fresh_nats.url, port=port) as process:
                if number < kills:
                    await asyncio.sleep(luck.random() * 0.6)
                    await process.kill()
                    continue
                await asyncio.wait_for(filling, 60)

                async def none_waits() -> bool:
                    return await made.bus.tail(streams.DELIVERIES, "delivery.>") is None

                async def delivered() -> bool:
                    return len({each.id for each in made.receiver.got()}) == tools

                await eventually(delivered, 60, what="all deliveries")
                await eventually(none_waits, 60, what="that no job is left")
        outcomes = Counter(id for type_, id in await made.said(run.run_id) if "completed" in type_)
        assert len(outcomes) == tools
        assert set(outcomes.values()) == {1}, "one outcome for each event"
