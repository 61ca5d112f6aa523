"""The limits of a service token: an approval must be within all of them, with all of its items."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.bus.records.approvals import ApprovalRecord, Decider, Deciders, ItemRuling
from penstock_approvals.policy.deciding_rights import may_decide, may_see

AT = "2026-11-20T10:00:00.000Z"


def approval(
    *tools: str | None, rules: tuple[str, ...] = (), agent: str = "vana"
) -> ApprovalRecord:
    return ApprovalRecord(
        approval_id="a",
        run_id="r",
        agent=agent,
        session_id="s",
        user_id="ada",
        leg=1,
        digest="d",
        items=[
            {"item_id": str(number), "kind": "confirmation", "tool": tool}
            for number, tool in enumerate(tools)
        ],
        requested_at=AT,
        updated_at=AT,
        deciders=[Deciders(roles=["bots"])],
        rulings=[
            ItemRuling(item_id=str(number), rule_id=rule, outcome="ask")
            for number, rule in enumerate(rules)
        ],
    )


@pytest.mark.parametrize(
    ("limits", "record", "beyond"),
    [
        (None, approval("transfer"), None),
        ({}, approval("transfer"), None),
        ({"agents": ["vana"]}, approval("transfer"), None),
        ({"agents": ["vana"]}, approval("transfer", agent="other"), "the agent other"),
        ({"agents": ["van*"]}, approval("transfer"), "the agent vana"),
        ({"tools": ["get_*"]}, approval("get_a", "get_b"), None),
        ({"tools": ["get_*"]}, approval("get_a", "transfer"), "calls of transfer"),
        ({"tools": ["get_*"]}, approval("Get_a"), "calls of Get_a"),
        ({"tools": ["*"]}, approval("get_a", None), "calls of no tool"),
        ({"rules": ["payments"]}, approval("a", rules=("payments",)), None),
        ({"rules": ["payments"]}, approval("a", "b", rules=("payments", "x")), "the rule x"),
        ({"rules": ["payments"]}, approval("a"), "the rule default"),
        ({"rules": ["default"]}, approval("a"), None),
        ({"agents": ["vana"], "tools": ["b"]}, approval("a"), "calls of a"),
    ],
)
def test_a_token_sees_and_decides_only_what_is_within_its_limits(
    limits: dict[str, Any] | None, record: ApprovalRecord, beyond: str | None
) -> None:
    who = Decider.model_validate(
        {
            "name": "service-token:n8n",
            "roles": ["bots"],
            "scopes": ["decide"],
            "token_id": "t",
            "limits": limits,
        }
    )
    reason = may_decide(record, who)
    assert may_see(record, who) == (beyond is None)
    if beyond is None:
        assert reason is None
    else:
        assert reason is not None
        assert beyond in reason


def test_a_token_that_decides_for_the_requester_sees_nothing_beyond_its_limits() -> None:
    record = approval("transfer")
    who = Decider.model_validate(
        {
            "name": "service-token:n8n",
            "scopes": ["decide", "read"],
            "token_id": "t",
            "on_behalf_of": record.user_id,
            "limits": {"tools": ["get_*"]},
        }
    )
    assert not may_see(record, who)
    assert may_see(approval("get_a"), who)
