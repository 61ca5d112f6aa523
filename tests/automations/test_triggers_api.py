"""Rules with schedules and hooks over HTTP: next times are shown, and new secrets only once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import orjson
import pytest
import pytest_asyncio
from standardwebhooks.webhooks import Webhook

from penstock_automations.rules.secrets import HIDDEN, check_secret
from support.drive.automations_api import ADMIN, AutomationsApi, automations_api, caller
from support.real.nats import NatsServer

pytestmark = pytest.mark.asyncio(loop_scope="module")
MORNING = {"cron": "0 9 * * mon-fri", "timezone": "Europe/Rome"}


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("triggers"), name="nats of triggers")
    server.start()
    yield server
    server.remove()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(nats: NatsServer) -> AsyncIterator[AutomationsApi]:
    async with automations_api(nats.url) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def api(served: AutomationsApi) -> AsyncIterator[AutomationsApi]:
    yield served
    for rule in (await served.ask("GET", "", ADMIN)).json()["automations"]:
        assert (await served.ask("DELETE", f"/{rule['id']}", ADMIN)).status_code == 200


def with_trigger(api: AutomationsApi, id: str, **trigger: Any) -> dict[str, Any]:
    rule = api.rule(id)
    del rule["subjects"]
    return {**rule, **trigger}


async def make(api: AutomationsApi, id: str, **trigger: Any) -> dict[str, Any]:
    made = await api.ask("POST", "", caller(), with_trigger(api, id, **trigger))
    assert made.status_code == 201, made.text
    answer: dict[str, Any] = made.json()
    return answer


async def hooked(
    api: AutomationsApi, id: str, secret: str, body: bytes, caller_id: str
) -> httpx.Response:
    """Send a signed request to the hook, as a caller without any token of Penstock."""
    now = datetime.now(UTC)
    headers = {
        "content-type": "application/json",
        "webhook-id": caller_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(secret).sign(caller_id, now, body.decode()),
    }
    return await api.http.post(f"/v1/hooks/{id}", content=body, headers=headers)


async def test_a_rule_with_a_schedule_shows_its_next_times(api: AutomationsApi) -> None:
    made = await make(api, "morning", schedule=MORNING)
    times = [datetime.fromisoformat(each) for each in made["next_times"]]
    assert len(times) == 5
    assert times == sorted(times)
    assert times[0] > datetime.now(UTC)
    assert {each.minute for each in times} == {0}
    assert {each.weekday() for each in times} <= set(range(5))
    shown = (await api.ask("GET", "/morning")).json()
    assert shown["next_times"] == made["next_times"]
    # A rule that was read can be sent back unchanged.
    again = await api.ask("PUT", "/morning", caller(), shown)
    assert (again.status_code, again.json()["version"]) == (200, 1)
    paused = await api.ask("POST", "/morning/pause")
    assert paused.json()["next_times"] == []
    assert (await api.ask("POST", "/morning/resume")).json()["next_times"] == made["next_times"]
    other = await api.ask("PATCH", "/morning", caller(), {"schedule": {"timezone": "Asia/Tokyo"}})
    assert other.json()["next_times"] != made["next_times"]


@pytest.mark.parametrize(
    ("trigger", "field", "reason"),
    [
        ({"schedule": {"cron": "* * * * * *"}}, "schedule.cron", "five fields"),
        ({"schedule": {"cron": "61 * * * *"}}, "schedule.cron", "Bad minute"),
        (
            {"schedule": {**MORNING, "timezone": "Mars/Olympus"}},
            "schedule.timezone",
            "no time zone",
        ),
        ({"hook": {"tokens": ["short"]}}, "hook.tokens.0", "24"),
        ({"schedule": MORNING, "hook": {}}, "subjects", "exactly one trigger"),
        ({}, "subjects", "exactly one trigger"),
        ({"hook": {}, "order": "run"}, "order", "only events of runs"),
        ({"hook": {}, "action": {"decide": {"decision": "approve"}}}, "action", "approval"),
        ({"schedule": MORNING, "action": {"decide": {"decision": "reject"}}}, "action", "approval"),
    ],
)
async def test_a_wrong_trigger_is_refused_with_its_field(
    api: AutomationsApi, trigger: dict[str, Any], field: str, reason: str
) -> None:
    answer = await api.ask("POST", "", caller(), with_trigger(api, "wrong", **trigger))
    assert answer.status_code == 422, answer.text
    [error] = answer.json()["errors"]
    assert error["field"] == field
    assert reason in error["message"]
    assert (await api.ask("GET", "/wrong")).status_code == 404


async def test_the_secret_of_a_hook_is_shown_once_and_can_be_replaced(api: AutomationsApi) -> None:
    made = await make(api, "orders", hook={})
    first = made["new_secrets"]["hook"]
    check_secret(first)
    assert made["hook"]["secrets"] == [HIDDEN]
    assert first not in (await api.ask("GET", "/orders")).text
    assert (await hooked(api, "orders", first, b"{}", "m1")).status_code == 202
    rotated = await api.ask("POST", "/orders/secrets", caller(), {"of": "hook"})
    second = rotated.json()["new_secrets"]["hook"]
    for number, secret in enumerate((first, second)):
        assert (await hooked(api, "orders", secret, b"{}", f"n{number}")).status_code == 202
    ended = await api.ask("DELETE", "/orders/secrets/previous", of="hook")
    assert ended.status_code == 200
    assert (await hooked(api, "orders", first, b"{}", "o1")).status_code == 404
    assert (await hooked(api, "orders", second, b"{}", "o2")).status_code == 202


async def test_the_delivery_of_a_hook_is_found_by_the_id_that_its_caller_got(
    api: AutomationsApi,
) -> None:
    made = await make(api, "found", hook={})
    body = orjson.dumps({"order": 7})
    answer = await hooked(api, "found", made["new_secrets"]["hook"], body, "m1")
    delivery_id = answer.json()["delivery_id"]
    await api.receiver.count(1, "/found")
    shown = await api.ask("GET", f"/found/deliveries/{delivery_id}")
    assert shown.status_code == 200, shown.text
    assert shown.json()["id"] == delivery_id
