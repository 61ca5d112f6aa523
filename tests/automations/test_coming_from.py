"""Each rule of docs/coming-from/webhooks.md fires on what it is for, and does what it says."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
import yaml

from penstock.events.examples import example
from penstock.expressions import Budget
from penstock_automations.actions.executor import Occurrence
from penstock_automations.actions.webhook.preparing import Request, request_of
from penstock_automations.jobs.job import EventSource, Job
from penstock_automations.matching.rule_matches import matched
from penstock_automations.rules.actions import filled, filled_json
from penstock_automations.rules.check import read_rule
from penstock_automations.rules.draft import Draft
from penstock_automations.rules.model import Rule
from penstock_automations.rules.records import Owner, RuleRecord, compile_rule, event_of
from penstock_automations.triggers.firing import body_of_firing
from penstock_automations.triggers.hook_request import body_of_request
from support.drive.repository import ROOT
from support.fakes.receiver import SECRET

TEXT = (ROOT / "docs" / "coming-from" / "webhooks.md").read_text("utf-8")
NOW, AT = "2026-01-31T12:00:00Z", 1_769_860_800.0
RUN_ID = "01a1f8c3-1007-77dc-be51-6f2ae3b9b92e"
VARIABLES = {"${SOURCE_SECRET}": SECRET, "${SOURCE_TOKEN}": "t" * 24}


def of_product(name: str) -> list[dict[str, Any]]:
    [block] = re.findall(rf"<!-- {name} -->\n```yaml\n(.*?)```", TEXT, re.DOTALL)
    for variable, value in VARIABLES.items():
        block = block.replace(variable, value)
    found: list[dict[str, Any]] = yaml.safe_load(re.sub(r"\$\{\w+\}", "another-secret-text", block))
    return found


PRODUCTS = ("svix", "hookdeck", "inngest")
RULES = {rule["id"]: rule for product in PRODUCTS for rule in of_product(product)}


@dataclass(frozen=True)
class Case:
    """An event on which a rule fires, what it then sends, and an event on which it does not.

    `on` is the type of the event; a hook's body or a schedule has none. `sends` is the body of the
    webhook, the filled message of the run, or the note of the decision; None for the event itself.
    """

    data: dict[str, Any] = field(default_factory=dict)
    on: str = ""
    sends: Any = None
    other: dict[str, Any] | None = None
    name: str | None = None


FAILED = {"automation": "on-event", "error": {"code": "x", "message": "m", "retryable": False}}
ITEM = {"item_id": "i", "kind": "confirmation", "digest": "d", "editable": False, "tool": "refund"}
CASES = {
    "event-types": Case(on="approval.expired"),
    "channel": Case(on="lifecycle.completed", other={}),
    "transformed": Case({"tool": "t", "args": {"a": 1}}, sends={"what": "t", "with": {"a": 1}}),
    "other-method": Case({"snapshot": {"n": 1}}, sends={"state": {"n": 1}}),
    "cancelled-by-code": Case({"code": "internal"}, other={"code": "timeout"}),
    "custom-headers": Case(),
    "endpoint-rate": Case(),
    "svix-schedule": Case(),
    "fifo": Case(),
    "thin-payload": Case(),
    "github-source": Case(
        {"action": "opened", "pull_request": {"html_url": "u"}},
        sends="Review u",
        other={"action": "closed"},
        name="pull_request",
    ),
    "stripe-source": Case(
        {"type": "invoice.paid", "data": {"object": {"id": "in_1"}}},
        sends={"invoice": "in_1"},
        other={"type": "invoice.voided"},
    ),
    "api-key-source": Case({"a": 1}),
    "filter-operators": Case(
        {"amount": 100, "customer": {"email": "e"}},
        other={"amount": 99, "vip": False, "customer": {}},
    ),
    "filter-list": Case({"lines": [{"sku": "B"}, {"sku": "A-1"}]}, other={"lines": [{"sku": "B"}]}),
    "linear-retry": Case({"a": 1}),
    "delivery-rate": Case({"a": 1}),
    "concurrency": Case({"a": 1}),
    "destination-key": Case({"a": 1}),
    "scheduled": Case(),
    "on-event": Case({"summary": "s"}, sends="Summarize: s"),
    "on-event-if": Case(
        {"usage": {"total_tokens": 5001}},
        sends=f"Why so many tokens in {RUN_ID}?",
        other={"usage": {"total_tokens": 5000}},
    ),
    "several-triggers": Case(on="lifecycle.cancelled"),
    "on-cron": Case(sends="The week until 2026-01-31T13:00:00+01:00"),
    "on-webhook": Case({"ticket": 7, "text": "help"}, sends="help"),
    "on-failure": Case(FAILED, sends={"reason": "m"}, other={**FAILED, "automation": "x"}),
    "retries": Case(),
    "throttled": Case(),
    "invoke-next": Case({"result": {"n": 1}}, sends="Report the result"),
    "human-in-the-loop": Case(
        {"items": [{**ITEM, "args": {"amount": 49.5}}]},
        sends="refund below 50",
        other={"items": [{**ITEM, "args": {"amount": 50}}]},
    ),
}


def test_the_page_has_ten_rules_of_each_product_and_each_is_run() -> None:
    assert [len(of_product(product)) for product in PRODUCTS] == [10, 10, 10]
    assert CASES.keys() == RULES.keys()


def body_for(rule: Rule, case: Case, data: dict[str, Any]) -> dict[str, Any]:
    if rule.hook is not None:
        return body_of_request(data, "id", NOW, case.name)
    if rule.schedule is not None:
        return body_of_firing(rule.schedule.times, AT)
    made: dict[str, Any] = orjson.loads(example(case.on or min(rule.types)).dump())
    agent = {"agent_id": "billing", "agent_type": "agent", "agent_name": "", "team_name": None}
    source = agent if data or rule.id != "channel" else {**agent, "agent_id": "other"}
    return made | {"run_id": RUN_ID, "source": source, "data": made["data"] | data}


@pytest.mark.parametrize("rule_id", RULES)
def test_a_rule_fires_on_what_it_is_for_and_sends_what_it_says(rule_id: str) -> None:
    draft, case = Draft(), CASES[rule_id]
    rule = read_rule(RULES[rule_id], Rule, draft)
    assert draft.warnings == []
    record = RuleRecord(
        rule=rule, uid="u", owner=Owner(user_id="u"), created_at=NOW, updated_at=NOW
    )
    compiled = compile_rule(record, 1)
    data = case.data if case.other is None or case.data else {"summary": "s"}
    body = body_for(rule, case, data)
    fired = matched(compiled, event_of(body), Budget())
    assert fired is not None
    assert fired.failure is None
    if case.other is not None:
        other = event_of(body_for(rule, case, case.other))
        assert matched(compiled, other, Budget()) is None
    check_action(rule, body, case)


def check_action(rule: Rule, body: dict[str, Any], case: Case) -> None:
    event, action = event_of(body), rule.action
    if action.run is not None:
        assert filled(action.run.message, event) == case.sends
        assert action.run.session_id is None or filled(action.run.session_id, event)
        filled_json(action.run.input, {"event": event})
    elif action.decide is not None:
        assert filled(action.decide.note or "", event) == case.sends
    else:
        request = requested(rule, body)
        sent = orjson.loads(request.body) if request.body else None
        if case.sends is not None:
            assert sent == case.sends
        elif sent is not None and rule.payload == "full":
            assert sent["data"] == body
        _SAYS.get(rule.id, lambda _: None)(request)


def requested(rule: Rule, body: dict[str, Any]) -> Request:
    type_ = event_of(body)["type"]
    job = Job(rule.id, 1, "u", type_, EventSource(RUN_ID, 3, 1, 1), dotted=False)
    return request_of(rule, job, Occurrence(orjson.dumps(body)), unix_s=AT, max_bytes=10**6)


def _has_headers(request: Request) -> None:
    assert request.headers["x-env"] == "production"
    assert request.headers["x-run"] == RUN_ID


def _is_thin(request: Request) -> None:
    assert "items" not in request.body.decode()
    assert request.headers["x-api-key"] == "another-secret-text"


def _is_put(request: Request) -> None:
    assert request.head.method == "PUT"


def _is_get(request: Request) -> None:
    assert (request.head.method, request.body) == ("GET", b"")


def _has_key(request: Request) -> None:
    assert request.url == "https://erp.example/any?key=another-secret-text"


_SAYS = {
    "custom-headers": _has_headers,
    "thin-payload": _is_thin,
    "other-method": _is_put,
    "scheduled": _is_get,
    "destination-key": _has_key,
}
