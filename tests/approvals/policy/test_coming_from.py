"""Each policy of docs/coming-from/approvals.md rules on what it is for, and asks whom it says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from penstock.bus.records.approvals import ApprovalRecord
from penstock_approvals.outcomes.votes import VoteRefused, with_vote
from penstock_approvals.policy.document import from_value
from penstock_approvals.policy.rulings import Question
from support.drive.repository import ROOT
from support.fakes.policies import person, vote

TEXT = (ROOT / "docs" / "coming-from" / "approvals.md").read_text("utf-8")
NOW = datetime(2026, 11, 27, 9, 0, tzinfo=UTC)  # 10 o'clock in Berlin
PRODUCTS = ("permit", "humanlayer")


def of_product(name: str) -> list[dict[str, Any]]:
    [block] = re.findall(rf"<!-- {name} -->\n```yaml\n(.*?)```", TEXT, re.DOTALL)
    found: list[dict[str, Any]] = yaml.safe_load(block)
    return found


RULES = {rule["id"]: rule for product in PRODUCTS for rule in of_product(product)}
FINANCE = [person("fay", "finance"), person("finn", "finance")]
ADA, GRACE = person("ada"), person("grace")


@dataclass(frozen=True)
class Case:
    """A call on which a rule applies, and one on which it does not.

    `decide` are the people who decide it together. `refused` is a person who may not.
    """

    tool: str
    args: Mapping[str, Any] = field(default_factory=dict)
    other: Mapping[str, Any] | None = None  # the question's fields that differ
    decide: Sequence[Any] = ()
    refused: Any = None
    roles: Sequence[str] = ()
    kind: str = "confirmation"
    escalated: int = 0


EVENING = datetime(2026, 11, 27, 20, 0, tzinfo=UTC)
CASES = {
    "rbac": Case("read_file", roles=["viewer"], other={"roles": []}),
    "admin": Case("anything", roles=["admin"], other={"roles": ["viewer"]}),
    "condition-set": Case(
        "refund", {"amount": 50}, roles=["support"], other={"args": {"amount": 50.5}}
    ),
    "attribute-list": Case(
        "deploy", {"region": "eu-2"}, roles=["operator"], other={"args": {"region": "us-1"}}
    ),
    "owner": Case("edit_document", {"owner": "u"}, other={"args": {"owner": "v"}}),
    "office-hours": Case("send_letter", other={"now": EVENING}),
    "operation-approval": Case(
        "export_customers", decide=[person("ray", "reviewers")], refused=person("u", "reviewers")
    ),
    "two-reviewers": Case("transfer", decide=FINANCE, refused=person("u", "finance")),
    "untrusted-tool": Case(
        "drop_table", decide=[person("al", "admin")], refused=ADA, other={"agent": "agent"}
    ),
    "deny-by-default": Case("anything"),
    "require-approval": Case("send_email", decide=[person("sal", "sales")], refused=ADA),
    "no-approval": Case("get_weather", other={"tool": "set_weather"}),
    "contact-channel": Case(
        "run_migration", decide=[person("dan", "channel-database")], refused=ADA
    ),
    "one-person": Case("sign_contract", decide=[ADA], refused=GRACE),
    "any-of": Case("publish", decide=[GRACE], refused=person("u")),
    "all-of": Case("wire_money", decide=[ADA, GRACE], refused=person("u")),
    "escalation": Case(
        "page_customer", decide=[person("mo", "managers")], refused=ADA, escalated=1
    ),
    "timeout": Case("order_lunch", decide=[person("olga", "office")], refused=ADA),
    "some-arguments": Case(
        "update_record",
        {"table": "customers", "rows": []},
        decide=[person("dora", "data")],
        refused=ADA,
        other={"args": {"table": "logs", "rows": [1]}},
    ),
    "human-as-tool": Case(
        "ask_human", kind="external", decide=[person("eli", "experts")], refused=ADA
    ),
}


def test_the_page_has_ten_policies_of_each_product_and_each_is_run() -> None:
    assert [len(of_product(product)) for product in PRODUCTS] == [10, 10]
    assert CASES.keys() == RULES.keys()
    for product in PRODUCTS:
        assert (
            len(from_value({"version": 1, "rules": of_product(product)}, "file").document.rules)
            == 10
        )


def question(case: Case, **other: Any) -> Question:
    tool, args = other.pop("tool", case.tool), other.pop("args", case.args)
    item = {"item_id": "1", "kind": case.kind, "tool": tool, "args": args, "digest": "i"}
    facts = {"agent": "sales-agent", "user": "u", "roles": case.roles, "now": NOW, **other}
    return Question(items=[item], **facts)


@pytest.mark.parametrize("rule_id", RULES)
def test_a_policy_rules_on_what_it_is_for_and_asks_whom_it_says(rule_id: str) -> None:
    case, rule = CASES[rule_id], RULES[rule_id]
    policy = from_value({"version": 1, "rules": [rule]}, "file")
    asked = question(case)
    ruling = policy.outcome_of(asked)
    assert (ruling.rule_id, ruling.outcome) == (rule_id, rule["outcome"])
    assert not any(result.errors for result in ruling.results)
    if case.other is not None:
        assert policy.outcome_of(question(case, **case.other)).rule_id == "default"
    if rule["outcome"] == "ask":
        check_deciders(case, asked, ruling.fields())


def check_deciders(case: Case, asked: Question, ruled: dict[str, Any]) -> None:
    at = NOW.isoformat()
    record = ApprovalRecord.model_validate(
        {
            **{"approval_id": "a", "run_id": "r", "agent": asked.agent, "session_id": "s"},
            **{"user_id": asked.user, "leg": 1, "digest": "d", "items": asked.items},
            **{"requested_at": at, "updated_at": at, "escalated": case.escalated, **ruled},
        }
    )
    value = {"value": "42"} if case.kind == "external" else {}
    with pytest.raises(VoteRefused) as refused:
        with_vote(record, vote(record, case.refused, **value), at)
    assert refused.value.status == 403
    for number, who in enumerate(case.decide, 1):
        record = with_vote(record, vote(record, who, **value), at)
        assert (record.status == "decided") == (number == len(case.decide))
