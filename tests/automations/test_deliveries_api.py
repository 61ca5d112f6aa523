"""Only the owner of a rule can list, show and replay its deliveries over HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import orjson
import pytest
import pytest_asyncio

from penstock.bus import streams, subjects
from penstock.bus.read import direct
from penstock.bus.state import deadletters
from penstock.events import timestamp
from penstock.telemetry import DELIVERIES
from penstock_automations.actions.webhook.breaker import Breaker
from penstock_automations.delivery import one_delivery
from penstock_automations.delivery.records import Attempt, DeliveryRecord
from penstock_automations.rules.store import RuleStore
from support.drive.automations_api import ADMIN, AutomationsApi, automations_api, caller
from support.drive.bus import new_run_id
from support.drive.short import in_short
from support.drive.waiting import eventually
from support.fakes.receiver import answers, echoes, hangs
from support.real.nats import NatsServer

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("deliveries"), name="nats of deliveries")
    server.start()
    yield server
    server.remove()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(nats: NatsServer) -> AsyncIterator[AutomationsApi]:
    async with automations_api(nats.url, retry_delays_s=[1]) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def api(served: AutomationsApi) -> AsyncIterator[AutomationsApi]:
    served.receiver.requests.clear()
    served.receiver.plans.clear()
    served.receiver.usual.clear()
    yield served
    for rule in (await served.ask("GET", "", ADMIN)).json()["automations"]:
        assert (await served.ask("DELETE", f"/{rule['id']}", ADMIN)).status_code == 200
    # The history of deleted rules would be in the lists of the next test.
    bucket = served.bus.bucket("deliveries")
    for entry in await bucket.entries("deleted.>"):
        await bucket.delete(entry.key)


async def listed(api: AutomationsApi, rule: str = "hook", **query: Any) -> list[dict[str, Any]]:
    answer = await api.ask("GET", f"/{rule}/deliveries", **query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["deliveries"]
    return found


async def until(api: AutomationsApi, status: str, count: int = 1) -> list[dict[str, Any]]:
    """Wait until there are this many deliveries with the status; return them."""

    async def probe() -> list[dict[str, Any]] | None:
        answer = await api.ask("GET", "/deliveries", status=status)
        found: list[dict[str, Any]] = answer.json()["deliveries"]
        return found if len(found) >= count else None

    found = await eventually(probe, what=f"{count} deliveries with the status {status}")
    assert found is not None
    return found


async def stored(api: AutomationsApi, count: int, status: str = "failed") -> list[str]:
    """Store records of deliveries of the rule `hook`, each a second later; return their ids."""
    rule = await RuleStore(api.bus).get("hook")
    assert rule is not None
    ids = []
    for number in range(count):
        run_id = new_run_id()
        job = {"rule": "hook", "version": 1, "uid": rule.record.uid, "type": "llm.tool_call"}
        job |= {"source": "event", "run_id": run_id, "sequence": 1, "event": 1, "raw": 1}
        began_at = 1_700_000_000.0 + number
        record = DeliveryRecord.model_validate(
            {
                "id": f"hook.{run_id}.1",
                "rule": "hook",
                "name": "hook",
                "run_id": run_id,
                "sequence": 1,
                "type": "llm.tool_call",
                "status": status,
                "began_at": began_at,
                "ended_at": began_at,
                "job": job,
            }
        )
        await api.bus.bucket("deliveries").put(f"hook.{run_id}-1", record.dump())
        ids.append(record.id)
    return ids


async def test_deliveries_are_listed_with_their_attempts_and_no_secret(api: AutomationsApi) -> None:
    await api.make("hook", webhook={"auth": {"bearer": "geheim"}})
    api.receiver.plans["/hook"] = [answers(500, "not now"), echoes]
    run = await api.completed()
    [done] = await until(api, "delivered")
    assert (done["run_id"], done["attempts"], done["type"]) == (
        run.run_id,
        2,
        "lifecycle.completed",
    )
    assert done["last"]["status"] == 200
    shown = await api.ask("GET", f"/hook/deliveries/{done['id']}")
    whole = shown.json()
    assert [each.get("status") for each in whole["all_attempts"]] == [500, 200]
    assert whole["all_attempts"][0]["answer"] == "not now"
    assert whole["request"]["headers"]["penstock-delivery"] == done["id"]
    assert "geheim" not in shown.text, "the receiver has answered with its headers"
    assert "geheim" not in str(await listed(api))
    assert "job" not in whole


async def test_a_delivery_that_has_failed_is_made_again_with_the_same_id(
    api: AutomationsApi,
) -> None:
    await api.make("hook")
    api.receiver.usual["/hook"] = answers(500, "broken")
    await api.completed()
    [failed] = await until(api, "failed")
    path = f"/hook/deliveries/{failed['id']}"
    api.receiver.usual.clear()
    answers_ = await asyncio.gather(*(api.ask("POST", f"{path}/replay") for _ in range(3)))
    assert {each.status_code for each in answers_} <= {202, 409}
    [done] = await until(api, "delivered")
    assert (done["id"], done["replay"], done["attempts"]) == (failed["id"], 1, 1)
    assert {each.id for each in api.receiver.got("/hook")} == {failed["id"]}
    assert len(api.receiver.got("/hook")) == 3, "three requests at once are one replay"
    letters = [each async for each in deadletters.letters(api.bus, "automations")]
    [letter] = [each for each in letters if each.letter.run_id == failed["run_id"]]
    assert letter.mark is not None
    assert letter.mark.state == "replayed"
    again = await api.ask("POST", f"{path}/replay")
    assert again.status_code == 202, "also a delivery that was delivered is made again on request"
    await api.receiver.count(4, "/hook")


async def test_a_delivery_that_waits_is_not_made_again(api: AutomationsApi) -> None:
    await api.make("hook")
    [waiting] = await stored(api, 1, "waiting")
    refused = await api.ask("POST", f"/hook/deliveries/{waiting}/replay")
    assert refused.status_code == 409
    assert "retry-now sends it now" in refused.json()["detail"]


async def test_failed_deliveries_of_a_time_are_made_again(api: AutomationsApi) -> None:
    await api.make("hook")
    ids = await stored(api, 130)
    await stored(api, 3, "waiting")
    day = "2023-11-14T22:"
    body = {"since": f"{day}13:30Z", "until": f"{day}15:20Z", "limit": 70}
    first = (await api.ask("POST", "/hook/replay", body=body)).json()
    assert (first["replayed"], first["left_out"]) == (70, 0)
    second = (await api.ask("POST", "/hook/replay", body={**body, "after": first["next"]})).json()
    assert (second["replayed"], second["next"]) == (110 - 70, None)

    async def replayed() -> set[str]:
        bucket = api.bus.bucket("deliveries")
        records = [
            DeliveryRecord.model_validate_json(e.value) for e in await bucket.entries("hook.*")
        ]
        return {record.id for record in records if record.replay and record.id in ids}

    async def all_of_them() -> bool:
        return await replayed() == set(ids[10:120])

    await eventually(all_of_them, what="the replays of these deliveries and no others")
    waiting = await api.ask("POST", "/hook/replay", body={"status": "waiting"})
    assert waiting.json()["replayed"] == 0
    assert waiting.json()["left_out"] >= 3


async def test_pages_have_each_delivery_once_the_newest_first(api: AutomationsApi) -> None:
    await api.make("hook")
    ids = await stored(api, 125)
    assert [each["id"] for each in await listed(api, limit=3)] == ids[:-4:-1]
    found: list[str] = []
    after: str | None = None
    while True:
        query: dict[str, Any] = {"limit": 50} | ({"after": after} if after else {})
        page = (await api.ask("GET", "/hook/deliveries", **query)).json()
        found += [each["id"] for each in page["deliveries"]]
        after = page["next"]
        if after is None:
            break
        if len(found) == 50:
            await stored(api, 1)  # an old one, which has the same place as the first
    assert found[:124] == ids[:0:-1]
    of_time = {"since": "2023-11-14T22:13:30Z", "until": "2023-11-14T22:13:32Z"}
    assert [each["id"] for each in await listed(api, **of_time)] == [ids[11], ids[10]]
    assert await listed(api, status="delivered") == []
    for wrong in ({"status": "nope"}, {"after": "x"}, {"since": "now"}, {"limit": 0}, {"x": 1}):
        answer = await api.ask("GET", "/hook/deliveries", **wrong)
        assert answer.status_code == 422, answer.text


async def test_the_deliveries_of_all_rules_of_a_caller_are_one_list(api: AutomationsApi) -> None:
    await api.make("hook")
    [first, second] = await stored(api, 2)
    await api.make("mine", user="bob")
    await api.make("other", "lifecycle.completed")
    api.receiver.plans["/other"] = [answers(410)]
    run = await api.completed()
    [third] = [each["id"] for each in await until(api, "failed", 3) if each["rule"] == "other"]
    found = await api.ask("GET", "/deliveries", status="failed", limit=2)
    assert [each["id"] for each in found.json()["deliveries"]] == [third, second]
    assert third.startswith(f"other.{run.run_id}")
    rest = await api.ask("GET", "/deliveries", status="failed", after=found.json()["next"])
    assert [each["id"] for each in rest.json()["deliveries"]] == [first]
    for stranger in (caller("bob"), caller("bob", "act-as")):
        assert (await api.ask("GET", "/deliveries", stranger)).json()["deliveries"] == []
        assert (await api.ask("POST", "/replay", stranger, {})).json()["replayed"] == 0
    everything = await api.ask("GET", "/deliveries", ADMIN)
    assert {each["id"] for each in everything.json()["deliveries"]} >= {first, second, third}
    replayed = await api.ask("POST", "/replay", body={"until": "2024-01-01T00:00:00Z"})
    assert replayed.json() == {"replayed": 2, "left_out": 0, "next": None}


async def test_a_list_of_rules_counts_the_deliveries_of_each_since_a_time(
    api: AutomationsApi,
) -> None:
    await api.make("hook")
    await stored(api, 3)
    await stored(api, 2, "waiting")
    await stored(api, 1, "delivered")
    await api.make("other")

    async def outcomes(since: str) -> dict[str, Any]:
        rules = (await api.ask("GET", "", outcomes_since=since)).json()["automations"]
        return {rule["id"]: [*rule["outcomes"].values()] for rule in rules}

    first = {"hook": [2, 1, 3], "other": [0, 0, 0]}  # waiting, delivered, failed
    assert await outcomes("2023-11-14T22:13:20Z") == first
    assert await outcomes("2023-11-14T22:13:21Z") == first | {"hook": [1, 0, 2]}
    assert (await api.ask("GET", "", outcomes_since="yesterday")).status_code == 422
    assert "outcomes" not in (await api.ask("GET", "")).json()["automations"][0]


async def test_deliveries_are_of_one_rule_and_not_of_another_with_the_same_id(
    api: AutomationsApi,
) -> None:
    await api.make("hook")
    [alices] = await stored(api, 1)
    assert len(await listed(api)) == 1
    await api.ask("DELETE", "/hook")
    await api.make("hook", user="bob")
    bob = caller("bob")
    assert (await api.ask("GET", "/hook/deliveries", bob)).json()["deliveries"] == []
    shown = await api.ask("GET", f"/hook/deliveries/{alices}", bob)
    assert shown.status_code == 404
    assert (await api.ask("POST", f"/hook/deliveries/{alices}/replay", bob)).status_code == 404
    assert (await api.ask("POST", "/hook/replay", bob, {})).json()["replayed"] == 0


async def test_another_users_deliveries_are_as_if_there_were_none(api: AutomationsApi) -> None:
    await api.make("hook")
    await api.make("mine", user="bob")
    [id] = await stored(api, 1)
    paths = {
        "/hook/deliveries": "GET",
        f"/hook/deliveries/{id}": "GET",
        f"/hook/deliveries/{id}/replay": "POST",
        "/hook/replay": "POST",
        f"/mine/deliveries/{id}": "GET",
        f"/mine/deliveries/{id}/replay": "POST",
    }
    for path, method in paths.items():
        body: Any = {} if path == "/hook/replay" else None
        for stranger in (caller("bob"), caller("bob", "act-as")):
            answer = await api.ask(method, path, stranger, body)
            assert answer.status_code == 404, path
    assert (await api.ask("GET", f"/hook/deliveries/{id}", ADMIN)).status_code == 200


@pytest.mark.parametrize("id", ["hook", "hook.", "hook.*", "hook.>", "other.x.1", "hook.a.b.c"])
async def test_ids_that_are_none_are_unknown(api: AutomationsApi, id: str) -> None:
    await api.make("hook")
    assert (await api.ask("GET", f"/hook/deliveries/{id}")).status_code == 404


async def test_endpoints_that_get_no_requests_are_shown_to_the_owner_of_their_rules(
    api: AutomationsApi,
) -> None:
    await api.make("hook", "llm.tool_call")
    api.receiver.usual["/hook"] = answers(503)
    run = await api.run()
    await run.open()
    for number in range(6):
        await run.tool(number)

    async def shown(headers: dict[str, str]) -> list[dict[str, Any]]:
        answer = await api.ask("GET", "/endpoints", headers)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["endpoints"]
        return found

    async def is_open() -> bool:
        return bool(await shown(caller()))

    await eventually(is_open, what="the open breaker")
    [endpoint] = await shown(caller())
    assert endpoint["endpoint"] == f"http://127.0.0.1:{api.receiver.port}"
    assert (endpoint["state"], endpoint["failures"] >= 5) == ("open", True)
    assert endpoint["next_at"] > timestamp(int(api.bus.clock.time() * 1000))
    assert await shown(ADMIN) == [endpoint]
    assert await shown(caller("bob")) == []
    bucket = api.bus.bucket("endpoints")
    [entry] = await bucket.entries()
    past = {**orjson.loads(entry.value), "next_at": "2023-11-14T22:13:20.000Z"}
    await bucket.put(entry.key, orjson.dumps(past))
    assert [each["next_at"] for each in await shown(caller())] == [None], "a request may be made"

    async def is_gone() -> bool:
        return await shown(ADMIN) == []

    assert (await api.ask("DELETE", "/hook")).status_code == 200
    await eventually(is_gone, what="the end of the deleted rule's endpoint")


async def test_a_record_that_cannot_be_read_harms_no_list(
    api: AutomationsApi, caplog: pytest.LogCaptureFixture
) -> None:
    await api.make("hook")
    await api.bus.bucket("deliveries").put("hook.broken-1", b"nonsense")
    [id] = await stored(api, 1)
    assert [each["id"] for each in await listed(api)] == [id]
    assert "hook.broken-1 is left out" in caplog.text
    assert (await api.ask("GET", "/hook/deliveries/hook.broken.1")).status_code == 404


async def test_a_replay_does_not_change_the_place_in_the_list(api: AutomationsApi) -> None:
    await api.make("hook")
    ids = await stored(api, 3)
    key = f"{ids[0].rpartition('.')[0]}-1"
    entry = await api.bus.bucket("deliveries").get(key)
    assert entry is not None
    record = DeliveryRecord.model_validate_json(entry.value)
    first = Attempt(number=1, at="2023-11-14T22:13:20.000Z", seconds=1, status=500)
    later = record.model_copy(update={"attempts": [first], "began_at": 1_800_000_000.0})
    await api.bus.bucket("deliveries").put(key, later.dump())
    assert [each["id"] for each in await listed(api)] == ids[::-1]


async def test_a_waiting_delivery_is_tried_at_once_past_the_breaker(api: AutomationsApi) -> None:
    api.receiver.usual["/hook"] = answers(500, retry_after="3600")
    await api.make("hook", "llm.tool_call", webhook={"concurrency": 1})
    run = await api.run()
    await run.open()
    for number in range(7):  # five failures open the breaker
        await run.tool(number)
    waiting = await until(api, "waiting", 7)
    await eventually(partial(_waits_for, api, {"retry", "breaker"}), what="the reasons")
    refused = await api.ask("POST", f"/hook/deliveries/{waiting[0]['id']}/retry-now", caller("bob"))
    assert refused.status_code == 404
    api.receiver.usual.clear()
    done = await api.ask("POST", f"/hook/deliveries/{waiting[0]['id']}/retry-now")
    assert done.status_code == 202
    await until(api, "delivered", 1)
    rest = await api.ask("POST", "/retry-now", body={})
    assert rest.status_code == 202
    await until(api, "delivered", 7)
    over = await api.ask("POST", f"/hook/deliveries/{waiting[0]['id']}/retry-now")
    assert over.status_code == 409
    assert "replay makes it again" in over.json()["detail"]


async def test_every_waiting_delivery_is_tried_at_once_although_the_receiver_still_fails(
    api: AutomationsApi,
) -> None:
    api.receiver.usual["/hook"] = answers(500, retry_after="3600")
    await api.make("hook", "llm.tool_call", webhook={"concurrency": 1})
    run = await api.run()
    await run.open()
    for number in range(9):  # five failures open the breaker
        await run.tool(number)
    await until(api, "waiting", 9)
    await eventually(partial(_waits_for, api, {"retry", "breaker"}), what="the reasons")
    never_tried = {each["id"] for each in await listed(api) if each["attempts"] == 0}
    assert never_tried
    before = len(api.receiver.requests)
    retried = await api.ask("POST", "/hook/retry-now", body={})
    assert retried.json()["retried"] == 9
    await api.receiver.count(before + 9, "/hook")
    await eventually(partial(_waits_for, api, {"retry", None}), what="the results")
    made = {each["id"]: each["attempts"] for each in await listed(api)}
    assert {made[id] for id in never_tried} == {1}
    await run.tool(9)
    [put_off] = await until_put_off(api, "breaker", 1)
    assert put_off["attempts"] == 0, "for all others, the breaker is still open"


async def test_what_waits_for_a_silent_receiver_is_listed_with_the_reason(
    api: AutomationsApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_delivery, "LISTED_AFTER_S", 1.0)
    api.receiver.usual["/hook"] = hangs()
    await api.make("hook", "llm.tool_call", webhook={"concurrency": 1, "timeout_s": 20})
    run = await api.run()
    await run.open()
    for number in range(5):
        await run.tool(number)
    await until(api, "waiting", 5)
    assert {(each["waits_for"], each["attempts"]) for each in await listed(api)} == {
        ("receiver", 0)
    }
    assert (await api.ask("DELETE", "/hook")).status_code == 200


async def test_what_waits_behind_the_first_delivery_of_its_run_is_listed_and_delivered_in_order(
    api: AutomationsApi,
) -> None:
    """Half of the events come when the first delivery waits already."""
    api.receiver.plans["/hook"] = [answers(500, retry_after="3600")]
    await api.make("hook", "llm.tool_call", order="run")
    run = await api.run()
    await run.open()
    for number in range(3):
        await run.tool(number)
    first = {each["waits_for"]: each["id"] for each in await until(api, "waiting", 3)}
    for number in range(3, 6):
        await run.tool(number)
    waiting = await until(api, "waiting", 6)
    assert Counter(each["waits_for"] for each in waiting) == {"retry": 1, "order": 5}
    path = f"/hook/deliveries/{first['order']}/retry-now"
    answer = await api.ask("POST", path)
    assert answer.status_code == 409
    assert "an earlier delivery of its run comes first" in answer.json()["detail"]
    assert (await api.ask("POST", "/hook/retry-now", body={})).json() == {
        "retried": 1,
        "left_out": 5,
        "next": None,
    }
    delivered = await until(api, "delivered", 6)
    got = [each.id for each in api.receiver.got()]
    assert got[0] == first["retry"]
    assert got[1:] == sorted({each["id"] for each in delivered}, key=_sequence)


def _sequence(delivery_id: str) -> int:
    return int(delivery_id.rpartition(".")[2])


@pytest.mark.parametrize("way", in_short(["test", "replay", "resume"], ["resume"]))
async def test_deliveries_that_were_put_off_are_tried_when_the_receiver_works(
    api: AutomationsApi, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Without being woken, they would be tried after an hour."""
    monkeypatch.setattr(one_delivery, "PAUSED_S", (3600.0, 3600.0))
    monkeypatch.setattr(Breaker.__init__, "__defaults__", (3600.0,))
    await api.make("hook", "llm.tool_call", webhook={"concurrency": 1})
    run = await api.run()
    await run.open()
    await run.tool(0)
    [first] = await until(api, "delivered")
    reason = "pause" if way == "resume" else "breaker"
    api.receiver.usual["/hook"] = answers(500, retry_after="1" if way == "resume" else "3600")
    for number in range(1, 8):
        await run.tool(number)
    if way == "resume":
        await until(api, "waiting", 7)
        assert (await api.ask("POST", "/hook/pause", body={})).status_code == 200
    put_off = await until_put_off(api, reason, 2)
    api.receiver.usual.clear()
    path = {"replay": f"/hook/deliveries/{first['id']}/replay"}.get(way, f"/hook/{way}")
    assert (await api.ask("POST", path)).is_success
    ids = {each["id"] for each in put_off}

    async def delivered() -> bool:
        return ids <= {each["id"] for each in await listed(api) if each["status"] == "delivered"}

    await eventually(delivered, what="what was put off is delivered")
    if way != "resume":  # what waits for its next attempt keeps its time
        assert Counter(each["waits_for"] for each in await listed(api))["retry"] == 5


async def until_put_off(api: AutomationsApi, reason: str, count: int) -> list[dict[str, Any]]:
    async def probe() -> list[dict[str, Any]] | None:
        found = [each for each in await listed(api) if each["waits_for"] == reason]
        return found if len(found) >= count else None

    found = await eventually(probe, what=f"{count} deliveries that wait for {reason}")
    assert found is not None
    return found


async def _waits_for(api: AutomationsApi, reasons: set[str | None]) -> bool:
    return {each["waits_for"] for each in await listed(api)} == reasons


@pytest.mark.parametrize("order", in_short(["none", "run"], ["run"]))
async def test_a_deleted_rule_keeps_its_history_and_makes_no_dead_letter(
    api: AutomationsApi, order: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock_automations")
    await api.make("hook", "llm.tool_call", order=order)
    assert (await api.ask("POST", "/hook/pause", body={"reason": "a test"})).status_code == 200
    assert (await api.ask("POST", "/hook/retry-now", body={})).status_code == 409
    assert (await api.ask("POST", "/hook/resume")).status_code == 200
    api.receiver.usual["/hook"] = answers(500, retry_after="3600")
    run = await api.run()
    await run.open()
    for number in range(7):
        await run.tool(number)
    await until(api, "waiting", 7)
    await run.tool(7)  # while the breaker is open, so nothing of this delivery has begun
    await until(api, "waiting", 8)
    before, dropped = await _dead_letters(api), DELIVERIES.labels("dropped")._value.get()
    caplog.clear()
    deleted = await api.ask("DELETE", "/hook")
    assert (deleted.status_code, deleted.json()) == (200, {"id": "hook", "waiting": 8})
    failed = await until(api, "failed", 8)
    assert {each["last"]["code"] for each in failed} == {"rule_deleted"}
    assert 0 in {each["attempts"] for each in failed}, "the breaker or the order has stopped some"
    await eventually(partial(_outcomes_are, api, run.run_id, failed), what="the outcomes")
    assert len(await listed(api)) == 8, "the history can be read until it expires"
    assert (await api.ask("GET", "/hook/deliveries", caller("bob"))).status_code == 404
    assert await _dead_letters(api) == before
    assert DELIVERIES.labels("dropped")._value.get() == dropped + 8
    lines = [each.getMessage() for each in caplog.records]
    assert "rule hook was deleted by alice: 8 waiting deliveries fail" in lines
    told = [each for each in lines if any(one["id"] in each for one in failed)]
    assert not told, "no delivery has a line of its own"


async def _outcomes_are(api: AutomationsApi, run_id: str, failed: list[dict[str, Any]]) -> bool:
    """Return whether each delivery has its outcome, and no other, on the timeline of the run."""
    pattern = subjects.event("automation.failed", run_id)
    events = [
        orjson.loads(each.payload)
        async for each in direct.replay(api.bus, streams.events_for(run_id), pattern)
    ]
    outcomes = Counter(
        (each["data"]["delivery_id"], each["data"]["error"]["code"]) for each in events
    )
    return outcomes == Counter((each["id"], "rule_deleted") for each in failed)


async def _dead_letters(api: AutomationsApi) -> int:
    return await deadletters.count(api.bus)
