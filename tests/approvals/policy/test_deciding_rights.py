"""Who may see an approval, and who may decide it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.bus.records.approvals import ApprovalRecord, Decider, Deciders, Escalation, Vote
from penstock_approvals.inbox.visibility import audiences_of
from penstock_approvals.policy.deciding_rights import may_decide, may_see, person_of
from penstock_approvals.policy.document import parse
from penstock_approvals.policy.rulings import Question


def who_is(name: str, **given: Any) -> Decider:
    return Decider.model_validate({"name": name, "scopes": ["read", "decide"], **given})


def approval(*deciders: Deciders, **more: Any) -> ApprovalRecord:
    at = "2026-11-20T10:00:00.000Z"
    fields: dict[str, Any] = dict.fromkeys(("approval_id", "run_id", "agent", "session_id"), "x")
    fields |= {"user_id": "ada", "leg": 1, "digest": "d", "items": []}
    fields |= {"requested_at": at, "updated_at": at, **more}
    if deciders:
        fields["deciders"] = list(deciders)
    return ApprovalRecord.model_validate(fields)


DEFAULT = approval()
FINANCE = approval(Deciders(roles=["finance"], excluded=["requester"]))
ANYBODY = approval(Deciders())
NAMED = approval(Deciders(users=["carla", "requester"]))
ADMIN = approval(Deciders(scope="administer"))
STARTED = approval(Deciders(roles=["finance"], excluded=["requester"]), started_by=["eve"])
AUTOMATIC = approval(deciders=[])  # the policy has decided it
BOTH = approval(Deciders(roles=["finance"]), Deciders(roles=["legal"]))
TWO_ROLES = ["finance", "legal"]
ACT_AS = ["read", "decide", "act-as"]


@pytest.mark.parametrize(
    ("record", "who", "decides", "sees"),
    [
        (DEFAULT, who_is("ada"), True, True),
        (DEFAULT, who_is("bob"), False, False),
        (DEFAULT, who_is("bob", scopes=ACT_AS), True, True),
        (DEFAULT, who_is("root", scopes=["decide", "administer"]), True, True),
        (DEFAULT, who_is("root", scopes=["administer"]), False, True),
        (DEFAULT, who_is("ada", scopes=["read"]), False, True),
        (FINANCE, who_is("bob", roles=["finance"]), True, True),
        (FINANCE, who_is("bob", roles=["sales"]), False, False),
        (FINANCE, who_is("bob", roles=["finance"], scopes=["read"]), False, False),
        (FINANCE, who_is("ada", roles=["finance"]), False, True),
        (FINANCE, who_is("root", scopes=[*ACT_AS, "administer"]), False, True),
        (FINANCE, who_is("bot", roles=["finance"], on_behalf_of="ada", token_id="t"), False, True),
        (FINANCE, who_is("bob", roles=["finance"], scopes=ACT_AS, on_behalf_of="ada"), False, True),
        (ANYBODY, who_is("bob"), True, True),
        (ANYBODY, who_is("bob", scopes=["read"]), False, False),
        (DEFAULT, who_is("automation r", on_behalf_of="ada", channel="automation"), True, True),
        (DEFAULT, who_is("automation r", on_behalf_of="bob", channel="automation"), False, False),
        (NAMED, who_is("carla"), True, True),
        (NAMED, who_is("ada"), True, True),
        (NAMED, who_is("bob"), False, False),
        (NAMED, who_is("bot", on_behalf_of="carla", token_id="t"), True, True),
        (NAMED, who_is("bob", on_behalf_of="carla"), False, False),
        (ADMIN, who_is("ada"), False, True),
        (ADMIN, who_is("root", scopes=["administer"]), True, True),
        (STARTED, who_is("eve", roles=["finance"]), False, False),
        (STARTED, who_is("bot", roles=["finance"], token_maker="eve"), False, False),
        (FINANCE, who_is("bot", roles=["finance"], token_maker="ada"), False, False),
        (FINANCE, who_is("bot", roles=["finance"], token_maker="root"), True, True),
        (
            approval(Deciders(excluded=["requester"])),
            who_is("bot", token_maker="ada"),
            False,
            False,
        ),
        (approval(Deciders(excluded=["eve"])), who_is("bot", token_maker="eve"), False, False),
        (DEFAULT, who_is("bot", on_behalf_of="ada", token_id="t", token_maker="ada"), True, True),
        (NAMED, who_is("bot", on_behalf_of="carla", token_id="t", token_maker="ada"), True, True),
        (
            approval(Deciders(users=["carla"])),
            who_is("bot", on_behalf_of="carla", token_id="t", token_maker="ada"),
            False,
            False,
        ),
        (AUTOMATIC, who_is("ada"), False, True),
        (AUTOMATIC, who_is("bob"), False, False),
        (AUTOMATIC, who_is("bob", scopes=["read"]), False, False),
        (AUTOMATIC, who_is("root", scopes=["read", "administer"]), False, True),
        (BOTH, who_is("bob", roles=["finance"]), False, False),
        (BOTH, who_is("bob", roles=TWO_ROLES), True, True),
    ],
)
def test_the_policy_says_who_decides_and_who_sees(
    record: ApprovalRecord, who: Decider, decides: bool, sees: bool
) -> None:
    assert (may_decide(record, who) is None) is decides
    assert may_see(record, who) is sees


def test_the_list_has_what_the_policy_has_decided_for_the_requester_alone() -> None:
    assert list(audiences_of(AUTOMATIC)) == ["ada"]


def test_an_escalation_lets_further_people_decide_from_its_time_on() -> None:
    step = Escalation(at="2026-11-20T10:30:00Z", to=Deciders(roles=["leads"]))
    before = approval(Deciders(roles=["finance"]), escalations=[step])
    after = before.model_copy(update={"escalated": 1})
    lead = who_is("lee", roles=["leads"])
    assert "finance" in str(may_decide(before, lead))
    assert not may_see(before, lead)
    assert may_decide(after, lead) is None
    assert may_see(after, lead)
    assert may_decide(after, who_is("fay", roles=["finance"])) is None


def test_a_reminder_lets_nobody_decide_and_shows_the_approval_to_nobody() -> None:
    reminder = Escalation(at="2026-11-20T10:30:00Z")
    terms = Deciders(roles=["finance"], excluded=["requester"])
    record = approval(terms, escalations=[reminder], escalated=1)
    stranger, requester = who_is("eve"), who_is("ada", roles=["finance"])
    assert "the role finance" in str(may_decide(record, stranger))
    assert not may_see(record, stranger)
    assert may_decide(record, requester) is not None
    plain = record.model_copy(update={"escalations": [], "escalated": 0})
    assert audiences_of(record) == audiences_of(plain), "the list shows it to nobody else"


def test_the_escalation_of_one_item_lets_nobody_decide_what_another_item_asks_of_others() -> None:
    """An agent may ask for two items together, one of which escalates to everybody."""
    policy = parse(
        """
version: 1
rules:
  - id: payments
    match: {tool: transfer}
    outcome: ask
    deciders: {roles: [finance], not: [requester]}
  - id: mail
    match: {tool: mail}
    outcome: ask
    deciders: {roles: [finance]}
    deadline: 1h
    escalate: [{after: 1s, to: {}}]
"""
    )

    def paused(*tools: str) -> ApprovalRecord:
        items = [{"item_id": tool, "kind": "confirmation", "tool": tool} for tool in tools]
        question = Question(agent="a", user="ada", items=items, now=datetime.now(UTC))
        ruling = policy.outcome_of(question)
        return approval(items=items, escalated=len(ruling.escalate), **ruling.fields())

    requester, finance = who_is("ada"), who_is("fay", roles=["finance"])
    assert may_decide(paused("mail"), requester) is None
    for together in (paused("transfer", "mail"), paused("mail", "transfer")):
        assert "does not let the user whose run asks" in str(may_decide(together, requester))
        assert "the role finance" in str(may_decide(together, who_is("eve")))
        assert may_decide(together, finance) is None


def test_groups_that_are_equal_have_their_own_escalations() -> None:
    policy = parse(
        """
version: 1
rules:
  - {id: a, match: {tool: a}, outcome: ask, deciders: {roles: [x]}}
  - {id: b, match: {tool: b}, outcome: ask, deciders: {roles: [x]},
     escalate: [{after: 1s, to: {roles: [y]}}]}
"""
    )
    items = [{"item_id": tool, "kind": "confirmation", "tool": tool} for tool in ("a", "b")]
    ruling = policy.outcome_of(Question(agent="a", user="u", items=items, now=datetime.now(UTC)))
    record = approval(items=items, escalated=1, **ruling.fields())
    assert may_decide(record, who_is("y", roles=["y"])) is not None
    assert may_decide(record, who_is("x", roles=["x"])) is None


def test_a_person_that_has_voted_still_sees_the_approval() -> None:
    vote = Vote(
        by="bob", decider=Decider(name="bob"), at="2026-11-20T10:00:00.000Z", digest="d", items=[]
    )
    assert may_see(approval(Deciders(roles=["finance"]), votes=[vote]), who_is("bob"))


@pytest.mark.parametrize(
    ("who", "person"),
    [
        (who_is("ada"), "ada"),
        (who_is("ada", scopes=ACT_AS, on_behalf_of="bob"), "ada"),
        (who_is("slack", on_behalf_of="bob", token_id="t"), "bob"),
        (who_is("slack", token_id="t"), "slack"),
        (who_is("anonymous", on_behalf_of="bob"), "bob"),
    ],
)
def test_a_caller_counts_as_one_person(who: Decider, person: str) -> None:
    assert person_of(who) == person
