"""Over HTTP, rules are shown without secrets, and only their owner changes them, by version."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import httpx
import prometheus_client
import pytest
import pytest_asyncio

from penstock.bus import BusUnavailable, streams
from penstock.bus.read import direct
from penstock.bus.state import deadletters
from penstock.expressions import Budget, Condition
from penstock.web.auth.identity import RunUser
from penstock_automations.matching.consumers import Consumers
from penstock_automations.rules.check import read_rule
from penstock_automations.rules.model import Rule
from penstock_automations.rules.records import Owner
from penstock_automations.rules.secrets import HIDDEN, check_secret
from penstock_automations.rules.store import RuleStore
from penstock_automations.triggers.firing import schedule_subject
from penstock_workflows.definition import load_value
from penstock_workflows.registry import WorkflowStore
from support.drive.automations_api import ADMIN, USER, AutomationsApi, automations_api, caller
from support.drive.secured import bearer
from support.drive.waiting import eventually
from support.fakes.receiver import SECRET, answers, echoes
from support.real.nats import NatsServer

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROOT = caller("root", "administer", "act-as")
OTHER = "whsec_YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXoxMjM0NTY="


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("rules"), name="nats of rules")
    server.start()
    yield server
    server.remove()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(nats: NatsServer) -> AsyncIterator[AutomationsApi]:
    async with automations_api(nats.url, rules_per_user=5) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def api(served: AutomationsApi) -> AsyncIterator[AutomationsApi]:
    served.receiver.requests.clear()
    yield served
    for rule in (await served.ask("GET", "", ADMIN)).json()["automations"]:
        assert (await served.ask("DELETE", f"/{rule['id']}", ADMIN)).status_code == 200


# made and shown


async def test_the_schedule_of_a_workflow_is_no_rule_to_list_or_to_count(
    api: AutomationsApi,
) -> None:
    workflows = WorkflowStore(api.bus)
    fields = {"dsl": "penstock/1", "version": "1", "steps": {"a": {"set": "1"}}}
    schedule = {"cron": "0 0 29 2 *"}
    for name in "abcde":
        loaded = load_value({**fields, "name": name, "schedule": schedule})
        await workflows.put(loaded, "alice", runs_for=RunUser("alice", (), (), ""))
    for name in "abcde":
        next_time = partial(api.bus.tail, streams.SCHEDULES, schedule_subject(f"workflow={name}"))
        await eventually(next_time, what="the next time")
    assert (await api.ask("GET", "")).json() == {"automations": [], "next": None}
    made = await api.make("mine")
    assert (await api.ask("GET", "")).json()["automations"] == [made]
    for name in "abcde":
        await workflows.name_latest(name, None, "alice")


async def test_a_rule_is_made_and_shown_with_its_maker_and_without_secrets(
    api: AutomationsApi,
) -> None:
    auth = {"basic": {"username": "u", "password": "geheim"}}
    made = await api.make("hook", webhook={"auth": auth})
    assert made["owner"]["user_id"] == "alice"
    assert set(made["owner"]["scopes"]) == {"start", "read", "raw", "decide", "automate"}
    assert (made["version"], made["source"], made["all_users"]) == (1, "api", False)
    shown = await api.ask("GET", "/hook")
    assert shown.json() == made
    assert shown.json()["action"]["webhook"]["secrets"] == [HIDDEN]
    assert shown.json()["action"]["webhook"]["auth"]["basic"]["password"] == HIDDEN
    listed = await api.ask("GET", "")
    assert listed.json() == {"automations": [made], "next": None}
    assert "geheim" not in shown.text + listed.text
    assert SECRET not in shown.text + listed.text


async def test_a_made_secret_is_ascii_text_and_is_shown_once(api: AutomationsApi) -> None:
    made = await api.make("hook", webhook={"secrets": []})
    secret = made["new_secrets"]["webhook"]
    check_secret(secret)
    assert base64.b64decode(secret.removeprefix("whsec_")).decode().isalnum()
    again = [
        await api.ask("GET", "/hook"),
        await api.ask("GET", ""),
        await api.ask("PATCH", "/hook", body={"name": "x"}),
    ]
    for answer in again:
        assert answer.status_code == 200
        assert secret not in answer.text
        assert "new_secrets" not in answer.text


async def test_a_rule_matches_every_event_from_its_answer_on(api: AutomationsApi) -> None:
    await api.make("hook")
    await api.completed("bob")
    run = await api.completed()
    [received] = await api.receiver.count(1, "/hook")
    assert received.json["data"]["run_id"] == run.run_id, "a rule sees its owner's runs only"


async def test_a_condition_is_not_evaluated_on_events_of_others(
    api: AutomationsApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.make("of-bob", user="bob", where="event.sequence > 0")
    await api.make("hook", where="event.sequence > 1")
    evaluated: list[str] = []
    holds = Condition.holds

    def counting(condition: Condition, data: dict[str, Any], budget: Budget) -> bool:
        evaluated.append(condition.text)
        return holds(condition, data, budget)

    monkeypatch.setattr(Condition, "holds", counting)
    await api.completed()
    await api.receiver.count(1, "/hook")
    assert evaluated == ["event.sequence > 1"]


async def test_a_rule_of_somebody_who_may_act_for_others_sees_all_runs(api: AutomationsApi) -> None:
    body = api.rule("everybody")
    made = await api.ask("POST", "", caller("service", "act-as"), body)
    assert made.json()["all_users"] is True
    run = await api.completed("bob")
    [received] = await api.receiver.count(1, "/everybody")
    assert received.json["data"]["run_id"] == run.run_id
    narrow = {**api.rule("narrow"), "all_users": False}
    made = await api.ask("POST", "", caller("service", "act-as"), narrow)
    assert made.json()["all_users"] is False
    wide = {**api.rule("wide"), "all_users": True}
    refused = await api.ask("POST", "", caller(), wide)
    assert refused.status_code == 403
    assert "act-as or administer" in refused.json()["detail"]


async def test_a_list_has_pages(api: AutomationsApi) -> None:
    for number in (3, 1, 2):
        await api.make(f"rule-{number}")
    first = (await api.ask("GET", "", limit=2)).json()
    assert [rule["id"] for rule in first["automations"]] == ["rule-1", "rule-2"]
    second = (await api.ask("GET", "", limit=2, after=first["next"])).json()
    assert [rule["id"] for rule in second["automations"]] == ["rule-3"]
    assert second["next"] is None
    for cursor in ("x", "WzFd", first["next"] + "A"):
        assert (await api.ask("GET", "", after=cursor)).status_code == 422


# changed


async def test_a_rule_that_was_read_can_be_sent_back_changed(api: AutomationsApi) -> None:
    made = await api.make("hook", webhook={"auth": {"bearer": "geheim"}})
    changed = await api.ask("PUT", "/hook", body={**made, "subjects": ["lifecycle.failed"]})
    assert changed.status_code == 200, changed.text
    assert (changed.json()["version"], changed.json()["subjects"]) == (2, ["lifecycle.failed"])
    patched = await api.ask("PATCH", "/hook", body={"subjects": ["lifecycle.completed"]})
    assert patched.json()["version"] == 3
    same = await api.ask("PUT", "/hook", body=patched.json())
    assert same.json()["version"] == 3, "a change of nothing is no new version"
    await api.completed()
    [received] = await api.receiver.count(1, "/hook")
    assert received.headers["authorization"] == "Bearer geheim"


async def test_of_two_changes_of_one_version_the_second_is_refused(api: AutomationsApi) -> None:
    await api.make("hook")
    tag = (await api.ask("GET", "/hook")).headers["etag"]
    headers = caller() | {"if-match": tag}
    first = await api.ask("PATCH", "/hook", headers, {"name": "first"})
    assert first.status_code == 200
    for method, path, body in (
        ("PATCH", "/hook", {"name": "second"}),
        ("PUT", "/hook", api.rule("hook")),
        ("DELETE", "/hook", None),
        ("POST", "/hook/secrets", None),
    ):
        answer = await api.ask(method, path, headers, body)
        assert answer.status_code == 412, answer.text
    assert (await api.ask("GET", "/hook")).json()["name"] == "first"
    renewed = caller() | {"if-match": first.headers["etag"]}
    assert (await api.ask("PATCH", "/hook", renewed, {"name": "third"})).status_code == 200


async def test_racing_changes_lose_none_silently(api: AutomationsApi) -> None:
    await api.make("hook")
    answers = await asyncio.gather(
        *(api.ask("PATCH", "/hook", body={"name": f"n{number}"}) for number in range(10))
    )
    done = [each for each in answers if each.status_code == 200]
    assert {each.status_code for each in answers} <= {200, 409}
    final = (await api.ask("GET", "/hook")).json()
    assert final["version"] == 1 + len(done)


async def test_a_patch_removes_what_is_null(api: AutomationsApi) -> None:
    await api.make("hook", where="event.sequence > 1", webhook={"auth": {"bearer": "x"}})
    body = {"where": None, "action": {"webhook": {"auth": None}}}
    patched = (await api.ask("PATCH", "/hook", body=body)).json()
    assert "where" not in patched
    assert "auth" not in patched["action"]["webhook"]


async def test_credentials_are_not_kept_for_another_server(api: AutomationsApi) -> None:
    made = await api.make("hook", webhook={"auth": {"bearer": "geheim"}})
    made["action"]["webhook"]["url"] = "https://elsewhere.example/x"
    moved = {"action": {"webhook": {"url": "https://elsewhere.example/x"}}}
    attempts: list[tuple[str, dict[str, Any]]] = [("PUT", made), ("PATCH", moved)]
    for method, body in attempts:
        refused = await api.ask(method, "/hook", ROOT, body)
        assert refused.status_code == 422
        [problem] = refused.json()["errors"]
        assert problem["field"] == "action.webhook.auth"
    webhook = moved["action"]["webhook"]
    given = {"action": {"webhook": {**webhook, "auth": {"bearer": "neu"}}}}
    assert (await api.ask("PATCH", "/hook", body=given)).status_code == 200


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
async def test_a_signing_secret_is_not_kept_for_another_server(
    api: AutomationsApi, method: str
) -> None:
    async def stored() -> list[str]:
        rule = await RuleStore(api.bus).get("hook")
        assert rule is not None
        assert rule.record.rule.action.webhook is not None
        return rule.record.rule.action.webhook.secrets

    body = await api.make("hook")
    [before] = await stored()
    url = body["action"]["webhook"]["url"]
    body["action"]["webhook"]["url"] = f"{url}/other-path"
    same = await api.ask(method, "/hook", body=body)
    assert same.status_code == 200
    assert "new_secrets" not in same.json()
    assert await stored() == [before]
    body["action"]["webhook"]["url"] = "https://elsewhere.example/x"
    moved = await api.ask(method, "/hook", body=body)
    assert moved.status_code == 200
    [after] = await stored()
    assert after != before
    assert moved.json()["new_secrets"] == {"webhook": after}


async def test_a_caller_that_writes_another_users_rule_needs_act_as(
    api: AutomationsApi,
) -> None:
    made = await api.make("hook")
    writes: list[tuple[str, str, Any]] = [
        ("PATCH", "", {"name": "x"}),
        ("PUT", "", api.rule("hook", name="x")),
        ("POST", "/secrets", None),
    ]
    for method, path, body in writes:
        refused = await api.ask(method, f"/hook{path}", ADMIN, body)
        assert refused.status_code == 403, refused.text
        assert "the rights of alice" in refused.json()["detail"]
    assert (await api.ask("GET", "/hook")).json() == made


async def test_an_administrator_lends_a_rule_no_rights(api: AutomationsApi) -> None:
    made = await api.make("hook")
    changed = await api.ask("PATCH", "/hook", ROOT, {"name": "checked"})
    assert changed.json()["owner"] == made["owner"]
    refused = await api.ask("PATCH", "/hook", ROOT, {"all_users": True})
    assert refused.status_code == 403
    assert "the rule's owner does not have" in refused.json()["detail"]


async def test_a_merge_patch_may_name_its_media_type_and_a_change_one_of_several_tags(
    api: AutomationsApi,
) -> None:
    await api.make("hook")
    tag = (await api.ask("GET", "/hook")).headers["etag"]
    headers = caller() | {
        "content-type": "application/merge-patch+json",
        "if-match": f'"0", {tag}',
    }
    patched = await api.http.patch(
        "/v1/automations/hook", content=b'{"enabled": false}', headers=headers
    )
    assert patched.status_code == 200, patched.text
    assert patched.json()["enabled"] is False
    await api.completed()
    assert (await api.ask("PATCH", "/hook", body=[1])).status_code == 422
    assert (await api.ask("PUT", "/hook", body=api.rule("other"))).status_code == 422


async def test_a_rule_of_the_file_is_shown_and_paused_but_not_changed(api: AutomationsApi) -> None:
    rule = read_rule(api.rule("hook"), Rule)
    store = RuleStore(api.bus)
    await store.apply(rule, Owner(user_id="alice"), source="file")
    shown = await api.ask("GET", "/hook")
    assert shown.json()["source"] == "file"
    writes: list[tuple[str, str, Any]] = [
        ("PUT", "", api.rule("hook")),
        ("PATCH", "", {"name": "x"}),
        ("DELETE", "", None),
        ("POST", "/secrets", None),
        ("DELETE", "/secrets/previous", None),
    ]
    for method, path, body in writes:
        refused = await api.ask(method, f"/hook{path}", body=body)
        assert refused.status_code == 409, refused.text
        assert "comes from the file" in refused.json()["detail"]
    assert (await api.ask("POST", "/hook/pause")).json()["paused"] is not None
    assert (await api.ask("POST", "/hook/resume")).json()["paused"] is None
    assert (await api.ask("POST", "/hook/test")).json()["verdict"] == "delivered"
    await store.apply(rule, Owner(user_id="", scopes=["act-as"]), all_users=True, source="file")
    assert (await api.ask("GET", "/hook")).status_code == 404, "it is the operator's"
    assert (await api.ask("GET", "/hook", ADMIN)).status_code == 200
    await store.delete("hook")


async def test_no_secret_leaves_the_service(
    api: AutomationsApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    auth = {"header": {"name": "x-key", "value": "geheim-1234"}}
    made = await api.make("hook", "lifecycle.*", webhook={"auth": auth, "secrets": []})
    secret = made["new_secrets"]["webhook"]
    del made["new_secrets"]
    api.receiver.secret = secret
    api.receiver.plans["/hook"] = [echoes, answers(410, "x-key: geheim-1234")]
    rotated = await api.ask("POST", "/hook/secrets", body={"secret": OTHER})
    told = [made, rotated.json(), (await api.ask("POST", "/hook/test")).json()]
    run = await api.completed()

    async def paused() -> bool:
        return (await api.ask("GET", "/hook")).json()["paused"] is not None

    await eventually(paused, what="the pause after 410")
    told += [(await api.ask("GET", path)).json() for path in ("", "/hook", "/hook/deliveries")]
    for each in told[-1]["deliveries"]:
        told.append((await api.ask("GET", f"/hook/deliveries/{each['id']}")).json())
    letters = [each async for each in deadletters.letters(api.bus, "automations", run.run_id)]
    assert letters
    assert len(told) > 7
    events = [
        stored.payload
        async for stored in direct.replay(
            api.bus, streams.events_for(run.run_id), f"*.*.{run.run_id}"
        )
    ]
    assert any(b"automation" in each for each in events)
    metrics = prometheus_client.generate_latest().decode()
    shown = (told, letters, [each.letter.payload for each in letters], events, metrics, caplog.text)
    for text in map(str, shown):
        for hidden in ("geheim-1234", secret, OTHER):
            assert hidden not in text
    api.receiver.secret = SECRET


async def test_a_paused_rule_matches_nothing_until_it_is_resumed(api: AutomationsApi) -> None:
    await api.make("hook")
    paused = await api.ask("POST", "/hook/pause", body={"reason": "it moves"})
    assert paused.json()["paused"]["reason"] == "it moves"
    assert paused.json()["paused"]["by"] == "alice"
    assert (await api.ask("PATCH", "/hook", body={"name": "x"})).json()["paused"] is not None
    await api.completed()
    resumed = await api.ask("POST", "/hook/resume")
    assert resumed.json()["paused"] is None
    run = await api.completed()
    [received] = await api.receiver.count(1, "/hook")
    assert received.json["data"]["run_id"] == run.run_id


async def test_a_deleted_rule_is_gone(api: AutomationsApi) -> None:
    await api.make("hook")
    assert (await api.ask("DELETE", "/hook")).status_code == 200
    assert (await api.ask("GET", "/hook")).status_code == 404
    assert (await api.ask("DELETE", "/hook")).status_code == 404
    again = await api.make("hook")
    assert again["version"] == 1


# secrets


async def test_two_secrets_are_valid_while_one_replaces_the_other(api: AutomationsApi) -> None:
    await api.make("hook")
    rotated = await api.ask("POST", "/hook/secrets", body={"secret": OTHER})
    assert rotated.status_code == 200, rotated.text
    assert rotated.json()["action"]["webhook"]["secrets"] == [HIDDEN, HIDDEN]
    assert OTHER not in rotated.text
    await api.completed()
    [received] = await api.receiver.count(1, "/hook")  # the receiver checks the previous one
    assert len(received.headers["webhook-signature"].split(" ")) == 2
    third = await api.ask("POST", "/hook/secrets")
    assert third.status_code == 409
    assert "first remove the previous one" in third.json()["detail"]
    ended = await api.ask("DELETE", "/hook/secrets/previous")
    assert ended.json()["action"]["webhook"]["secrets"] == [HIDDEN]
    made = await api.ask("POST", "/hook/secrets")
    check_secret(made.json()["new_secrets"]["webhook"])
    await api.ask("DELETE", "/hook/secrets/previous")
    wrong = await api.ask("POST", "/hook/secrets", body={"secret": "whsec_x"})
    assert wrong.status_code == 422
    assert wrong.json()["errors"][0]["field"] == "secret"


# refused


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"subjects": ["llm.nope"]}, "subjects.0", "there are no events 'llm.nope'"),
        ({"where": "event.sequence"}, "where", "compare it"),
        ({"wher": "true"}, "wher", "there is no such field"),
        ({"id": "endpoints"}, "id", "choose another id"),
        ({"webhook": {"secrets": ["geheim"]}}, "action.webhook.secrets.0", "begins with whsec_"),
        ({"webhook": {"secrets": [HIDDEN]}}, "action.webhook.secrets.0", "there is none"),
        (
            {"webhook": {"auth": {"header": {"name": "x-key", "value": " geheim"}}}},
            "action.webhook.auth.header.value",
            "pattern",
        ),
        ({"webhook": {"url": "http://hook.example/"}}, "action.webhook.url", "webhooks use https"),
        ({"webhook": {"url": "https://10.0.0.1/"}}, "action.webhook.url", "is not public"),
        ({"webhook": {"url": "https://2130706434/"}}, "action.webhook.url", "is not public"),
        ({"webhook": {"url": "https://0x7f.2/"}}, "action.webhook.url", "is not public"),
        ({"webhook": {"url": "https://[::ffff:10.0.0.1]/"}}, "action.webhook.url", "not public"),
        ({"webhook": {"url": "https://localhost/"}}, "action.webhook.url", "is not public"),
        ({"webhook": {"url": "https://[fe80::1]/"}}, "action.webhook.url", "is not public"),
    ],
)
async def test_a_wrong_rule_is_refused_with_its_field_and_changes_nothing(
    api: AutomationsApi, change: dict[str, Any], field: str, reason: str
) -> None:
    before = await api.make("hook")
    wrong = api.rule("hook")
    webhook = change.pop("webhook", {})
    wrong["action"]["webhook"] |= webhook
    wrong |= change
    replaced = wrong | {"id": "hook"} if change.get("id") is None else None
    other = wrong if "id" in change else wrong | {"id": "other"}
    answers = [await api.ask("POST", "", body=other)]
    if replaced is not None and HIDDEN not in str(webhook):
        answers.append(await api.ask("PUT", "/hook", body=replaced))
    for answer in answers:
        assert answer.status_code == 422, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        [problem] = answer.json()["errors"]
        assert problem["field"] == field
        assert reason in problem["message"]
        assert "geheim" not in answer.text
    assert (await api.ask("GET", "/other")).status_code == 404
    assert (await api.ask("GET", "/hook")).json() == before


async def test_a_condition_is_refused_with_line_and_column(api: AutomationsApi) -> None:
    body = api.rule("hook", where="event.sequence > 1\n  && evnt == 2")
    refused = await api.ask("POST", "", body=body)
    [problem] = refused.json()["errors"]
    assert (problem["field"], problem["line"], problem["column"]) == ("where", 2, 6)
    assert "undeclared reference to 'evnt'" in problem["message"]


async def test_a_body_that_is_no_rule_is_refused(api: AutomationsApi) -> None:
    bodies: list[Any] = [[], "x", 1, {}, {"id": None}]
    for body in bodies:
        refused = await api.http.post("/v1/automations", json=body, headers=caller())
        assert refused.status_code == 422, refused.text
    huge = api.rule("hook", name="x" * 100_000)
    assert (await api.ask("POST", "", body=huge)).status_code == 413
    form = await api.http.post("/v1/automations", content="id=1", headers=caller())
    assert form.status_code == 415, "a foreign page can send such a request"


async def test_a_user_has_a_limited_number_of_rules(api: AutomationsApi) -> None:
    for number in range(5):
        await api.make(f"rule-{number}")
    refused = await api.ask("POST", "", body=api.rule("one-more"))
    assert refused.status_code == 409
    assert "PENSTOCK_RULES_PER_USER" in refused.json()["detail"]
    await api.make("of-bob", user="bob")


async def test_a_tenant_has_a_limited_number_of_rules(api: AutomationsApi) -> None:
    async def make(number: int, tenant: str) -> httpx.Response:
        who = bearer(f"user-{number}", scope=USER, org=tenant)
        return await api.ask("POST", "", who, api.rule(f"rule-{number}"))

    for number in range(5):
        assert (await make(number, "acme")).status_code == 201
    refused = await make(5, "acme")
    assert refused.status_code == 409
    assert "this tenant may have 5 rules" in refused.json()["detail"]
    assert (await make(6, "globex")).status_code == 201


async def test_starts_at_once_do_not_pass_the_limit(api: AutomationsApi) -> None:
    answers = await asyncio.gather(
        *(api.ask("POST", "", body=api.rule(f"rule-{number}")) for number in range(12))
    )
    assert sorted(each.status_code for each in answers) == [201] * 5 + [409] * 7


# tried


async def test_a_test_request_is_signed_and_marked_and_leaves_nothing(api: AutomationsApi) -> None:
    await api.make("hook", "llm.tool_call", "lifecycle.*", webhook={"auth": {"bearer": "geheim"}})
    api.receiver.plans["/hook"] = [answers(500, "no " + "x" * 3000), echoes]
    first = await api.ask("POST", "/hook/test", body={"type": "llm.tool_call"})
    assert first.status_code == 200, first.text
    failed = first.json()
    assert (failed["verdict"], failed["code"], failed["status"]) == ("failed", "http_500", 500)
    assert len(failed["answer"]) == 1024
    second = (await api.ask("POST", "/hook/test")).json()
    assert second["verdict"] == "delivered"
    [one, two] = api.receiver.got("/hook")
    assert one.id != two.id
    assert one.headers["penstock-test"] == two.headers["penstock-test"] == "1"
    assert one.headers["authorization"] == "Bearer geheim"
    assert one.json["data"]["event"] == {"category": "llm", "action": "tool_call"}
    assert second["request"]["body"] == two.json
    assert second["request"]["headers"]["authorization"] == HIDDEN
    assert second["request"]["headers"]["webhook-signature"] == HIDDEN
    assert second["request"]["headers"]["penstock-delivery"] == two.id
    for answer in (first.text, str(second)):
        assert "geheim" not in answer, "the receiver has answered with its headers"
        assert two.headers["webhook-signature"] not in answer
    runs = {one.json["data"]["run_id"], two.json["data"]["run_id"]}
    for key in await api.bus.bucket("deliveries").keys():
        assert not any(run in key for run in runs)


@pytest.mark.parametrize(
    ("trigger", "type_", "data"),
    [
        ({"schedule": {"cron": "0 9 * * *", "timezone": "Europe/Rome"}}, "schedule.fired", "cron"),
        ({"hook": {}}, "hook.received", "sample"),
    ],
)
async def test_a_rule_with_another_trigger_is_tested_with_a_sample_of_it(
    api: AutomationsApi, trigger: dict[str, Any], type_: str, data: str
) -> None:
    body = api.rule("hook")
    del body["subjects"]
    made = await api.ask("POST", "", body={**body, **trigger})
    assert made.status_code == 201, made.text
    assert ("hook" in made.json().get("new_secrets", {})) == ("hook" in trigger)
    tested = (await api.ask("POST", "/hook/test")).json()
    assert tested["verdict"] == "delivered"
    [received] = api.receiver.got("/hook")
    assert received.json["type"] == type_
    assert data in received.json["data"]["data"]
    refused = await api.ask("POST", "/hook/dry-run", body={"since": "2026-01-31T12:00:00Z"})
    assert refused.status_code == 409


async def test_the_secret_of_a_hook_is_rotated(api: AutomationsApi) -> None:
    body = api.rule("hook") | {"hook": {}}
    del body["subjects"]
    made = (await api.ask("POST", "", body=body)).json()
    rotated = (await api.ask("POST", "/hook/secrets", body={"of": "hook"})).json()
    assert rotated["hook"]["secrets"] == [HIDDEN, HIDDEN]
    assert rotated["new_secrets"]["hook"] != made["new_secrets"]["hook"]
    ended = await api.ask("DELETE", "/hook/secrets/previous", of="hook")
    assert ended.json()["hook"]["secrets"] == [HIDDEN]
    assert (await api.ask("DELETE", "/hook/secrets/previous", of="x")).status_code == 422
    await api.make("plain")
    assert (await api.ask("POST", "/plain/secrets", body={"of": "hook"})).status_code == 409


async def test_a_test_request_meets_the_guard(api: AutomationsApi) -> None:
    await api.make("hook", webhook={"url": "https://penstock.invalid/"})
    answer = (await api.ask("POST", "/hook/test")).json()
    assert (answer["verdict"], answer["code"], answer["status"]) == ("failed", "connection", None)
    stored = await RuleStore(api.bus).get("hook")
    assert stored is not None
    rule = api.rule("hook", webhook={"url": "https://10.0.0.1/"})
    await RuleStore(api.bus).apply(read_rule(rule, Rule), stored.record.owner)
    answer = (await api.ask("POST", "/hook/test")).json()
    assert answer["code"] == "refused_address"


async def test_a_test_of_another_type_is_refused(api: AutomationsApi) -> None:
    await api.make("hook", "lifecycle.completed")
    refused = await api.ask("POST", "/hook/test", body={"type": "llm.tool_call"})
    assert refused.status_code == 422
    assert refused.json()["detail"] == "type: the rule waits for lifecycle.completed"


async def test_a_dry_run_looks_at_the_owners_events_also_for_an_administrator(
    api: AutomationsApi,
) -> None:
    since = api.bus.clock.stamp()
    mine = await api.completed()
    await api.completed("bob")
    await api.make("hook", where='event.data["agent"] != "x"')
    for headers in (caller(), ADMIN):
        body = {"since": since, "limit": 10}
        found = (await api.ask("POST", "/hook/dry-run", headers, body)).json()
        assert found["complete"]
        assert found["looked_at"] == 1
        assert [each["run_id"] for each in found["shown"]] == [mine.run_id]
    assert api.receiver.got("/hook") == []
    wrong: list[dict[str, Any]] = [
        {},
        {"since": "yesterday"},
        {"since": "2026-01-31T12:00:00"},
        {"since": since, "limit": 10_001},
        {"since": since, "limit": 0},
    ]
    for body in wrong:
        refused = await api.ask("POST", "/hook/dry-run", body=body)
        assert refused.status_code == 422, refused.text


# others


def _requests(rule: dict[str, Any]) -> list[tuple[str, str, Any]]:
    return [
        ("GET", "", None),
        ("PUT", "", rule),
        ("PATCH", "", {"name": "mine"}),
        ("POST", "/pause", None),
        ("POST", "/resume", None),
        ("POST", "/secrets", None),
        ("DELETE", "/secrets/previous", None),
        ("POST", "/test", None),
        ("POST", "/dry-run", {"since": "2026-01-31T12:00:00Z"}),
        ("DELETE", "", None),
    ]


@pytest.mark.parametrize("number", range(8))
async def test_another_users_rule_is_as_one_that_does_not_exist(
    api: AutomationsApi, number: int
) -> None:
    before = await api.make("hook")
    method, path, body = _requests(api.rule("hook"))[number]

    async def asked(rule: str, headers: dict[str, str]) -> httpx.Response:
        given = body | {"id": rule} if method == "PUT" else body
        return await api.ask(method, f"/{rule}{path}", headers, given)

    for stranger in (caller("bob"), caller("service", "act-as")):
        foreign, missing = await asked("hook", stranger), await asked("none", stranger)
        assert foreign.status_code == missing.status_code == 404
        assert foreign.text.replace("hook", "none") == missing.text
    assert (await api.ask("GET", "/hook")).json() == before
    without = bearer("alice", scope="start read raw decide act-as administer")
    assert (await asked("hook", without)).status_code == 403
    assert (await asked("hook", {})).status_code == 401
    assert (await asked("hook", ROOT)).status_code in (200, 204)


async def test_ids_that_the_bus_would_refuse_are_unknown(api: AutomationsApi) -> None:
    for name in ("a.b", ">", "*", "%20", "A", "x" * 100):
        assert (await api.ask("GET", f"/{name}")).status_code == 404


async def test_a_taken_id_is_not_taken_over(api: AutomationsApi) -> None:
    await api.make("hook")
    refused = await api.ask("POST", "", caller("bob"), api.rule("hook"))
    assert refused.status_code == 409
    detail = refused.json()["detail"]
    assert detail.startswith("the id hook is taken, perhaps by a rule of the operator or another")
    assert (await api.ask("GET", "", caller("bob"))).json()["automations"] == []


# faults


async def test_a_change_that_was_stored_and_not_answered_may_be_sent_again(
    api: AutomationsApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    update, failures = Consumers.update, 3

    async def failing(consumers: Consumers) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise BusUnavailable("the lease is held")
        await update(consumers)

    body = api.rule("hook", "lifecycle.completed")
    await api.make("hook", "lifecycle.failed")
    monkeypatch.setattr(Consumers, "update", failing)
    answers_ = [await api.ask("PUT", "/hook", body=body) for _ in range(2)]
    assert answers_[0].status_code == 503
    assert "retry-after" in answers_[0].headers
    while (last := await api.ask("PUT", "/hook", body=body)).status_code == 503:
        pass
    assert last.status_code == 200
    assert last.json()["version"] == 2, "the repeated change is no further version"
    await api.completed()
    await api.receiver.count(1, "/hook")
