"""Votes: who has voted, when votes decide an approval, and what makes earlier votes void."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bus.records.approvals import (
    ApprovalRecord,
    Decided,
    Decider,
    DecideRequest,
    Deciders,
    ItemRuling,
)
from penstock.digests import item_digest, request_digest
from penstock_approvals.outcomes import votes
from penstock_approvals.outcomes.votes import VoteRefused, with_vote, without_vote
from support.fakes.policies import person, vote

NOW, LATER = "2026-11-22T15:00:00.000Z", "2026-11-22T16:00:00.000Z"
ADA, BOB, CLEO = person("ada", "ops"), person("bob", "ops"), person("cleo", "ops")


def approval(*items: dict[str, Any], **more: Any) -> ApprovalRecord:
    listed = [
        {"kind": "confirmation", "tool": "pay", "args": {"amount": 5, "memo": "a"}, **item}
        for item in items or ({"item_id": "1", "editable": True},)
    ]
    for item in listed:
        item["digest"] = item_digest("p", item)
    fields: dict[str, Any] = {
        **dict.fromkeys(("run_id", "agent", "session_id"), "x"),
        **{"approval_id": "p", "user_id": "u", "leg": 1, "items": listed},
        **{"digest": request_digest([item["digest"] for item in listed])},
        **{"requested_at": NOW, "updated_at": NOW, "need": 2},
        **{"deciders": [Deciders(roles=["ops"])]},
        "rulings": [
            ItemRuling(item_id=item["item_id"], rule_id="r", outcome="ask", edit=["args.memo"])
            for item in listed
        ],
        **more,
    }
    return ApprovalRecord.model_validate(fields)


def says(who: Decider, *items: tuple[str, str] | tuple[str, str, Any], **more: Any) -> Any:
    decided = [
        Decided.model_validate(dict(zip(("item_id", "decision", "value"), each, strict=False)))
        for each in items
    ]
    return DecideRequest(decider=who, items=decided, **more)


def refused(record: ApprovalRecord, request: DecideRequest, **more: Any) -> tuple[int, str]:
    with pytest.raises(VoteRefused) as error:
        with_vote(record, request, NOW, **more)
    return error.value.status, str(error.value)


def test_the_vote_that_completes_the_number_decides() -> None:
    first = with_vote(approval(), vote(approval(), ADA), NOW)
    assert (first.status, first.decision, len(first.votes)) == ("pending", None, 1)
    second = with_vote(first, vote(approval(), BOB, note="fine"), NOW)
    assert second.status == "decided"
    assert second.decision is not None
    assert (second.decision.outcome, second.decision.by) == ("approved", "bob")
    assert [each.by for each in second.votes] == ["ada", "bob"]


def test_the_first_reject_decides() -> None:
    decided = with_vote(approval(), vote(approval(), ADA, "reject", note="no"), NOW)
    assert decided.decision is not None
    assert (decided.status, decided.decision.outcome) == ("decided", "rejected")
    after = with_vote(
        with_vote(approval(), vote(approval(), ADA), NOW), vote(approval(), BOB, "reject"), NOW
    )
    assert after.decision is not None
    assert after.decision.outcome == "rejected"


def test_a_further_vote_is_refused_when_the_greatest_number_is_cast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(votes, "MAX_VOTES", 1)
    first = with_vote(approval(), vote(approval(), ADA), NOW)
    assert refused(first, vote(approval(), BOB)) == (409, "1 votes were cast; cancel the run")


def test_a_person_votes_once() -> None:
    first = with_vote(approval(), vote(approval(), ADA, key="k"), NOW)
    status, why = refused(first, vote(approval(), ADA, key="other"))
    assert (status, "ada has decided this already" in why) == (409, True)
    assert with_vote(first, vote(approval(), ADA, key="k"), NOW) is first, (
        "a repeat changes nothing"
    )
    assert refused(first, vote(approval(), ADA, "reject", key="k"))[0] == 409


def test_a_caller_that_may_act_for_others_has_one_vote() -> None:
    acts = {"scopes": ["decide", "act-as"], "roles": ["ops"]}
    as_bob, as_cleo = (person("ada", on_behalf_of=name, **acts) for name in ("bob", "cleo"))
    first = with_vote(approval(), vote(approval(), as_bob), NOW)
    assert refused(first, vote(approval(), as_cleo))[0] == 409


def test_a_service_token_speaks_for_the_people_that_it_names() -> None:
    bot = [person("slack", "ops", token_id="t", on_behalf_of=name) for name in ("bob", "cleo")]
    first = with_vote(approval(), vote(approval(), bot[0]), NOW)
    assert with_vote(first, vote(approval(), bot[1]), NOW).status == "decided"


def test_only_the_deciders_of_the_policy_vote() -> None:
    status, why = refused(approval(), vote(approval(), person("eve")))
    assert (status, "ops" in why) == (403, True)


def test_edited_arguments_make_earlier_votes_void() -> None:
    asked = approval()
    first = with_vote(asked, vote(asked, ADA), NOW)
    edited = with_vote(first, vote(asked, BOB, args={"amount": 5, "memo": "b"}), NOW)
    assert edited.status == "pending", "nobody else has approved these arguments"
    assert [each.void for each in edited.votes] == [True, False]
    assert edited.digest != asked.digest == edited.requested_digest
    assert edited.items[0]["args"] == {"amount": 5, "memo": "b"}
    assert edited.items[0]["requested_args"] == {"amount": 5, "memo": "a"}
    assert refused(edited, vote(asked, CLEO))[0] == 409, "CLEO was shown the old arguments"
    no_digest = vote(asked, CLEO).model_copy(update={"digest": None})
    assert refused(edited, no_digest)[0] == 409
    decided = with_vote(edited, vote(edited, ADA), NOW)
    assert decided.decision is not None
    assert decided.decision.items[0].args == {"amount": 5, "memo": "b"}


def test_arguments_that_are_the_same_are_no_edit() -> None:
    asked = approval()
    first = with_vote(asked, vote(asked, ADA), NOW)
    decided = with_vote(first, vote(asked, BOB, args={"memo": "a", "amount": 5.0}), NOW)
    assert (decided.status, decided.digest) == ("decided", asked.digest)
    assert decided.decision is not None
    assert decided.decision.items[0].args is None


@pytest.mark.parametrize(
    ("item", "given", "why"),
    [
        ({"editable": True}, {"args": {"amount": 9, "memo": "a"}}, "args.amount may not be edited"),
        ({"editable": True}, {"args": {"amount": 5, "memo": 1}}, "must stay a JSON string"),
        ({"editable": True}, {"value": {"amount": 9, "memo": "a"}}, "args.amount may not be"),
        ({"editable": False}, {"args": {"amount": 5, "memo": "b"}}, "takes no edited arguments"),
        ({}, {"value": {"accepted": True, "values": {"amount": 9}}}, "args.amount may not be"),
        ({}, {"value": "yes"}, "a confirmation with a value may change arguments"),
    ],
)
def test_a_decider_changes_only_what_the_policy_allows(
    item: dict[str, Any], given: dict[str, Any], why: str
) -> None:
    asked = approval({"item_id": "1", **item})
    status, text = refused(asked, vote(asked, ADA, **given))
    assert (status, why in text) == (422, True), text


def test_the_second_edit_is_compared_with_what_the_agent_asked_for() -> None:
    asked = approval(need=3)
    once = with_vote(asked, vote(asked, ADA, args={"amount": 5, "memo": "b"}), NOW)
    twice = with_vote(once, vote(once, BOB, args={"amount": 5, "memo": "c"}), NOW)
    assert twice.items[0]["requested_args"] == {"amount": 5, "memo": "a"}
    assert twice.requested_digest == asked.digest


def test_each_item_is_rejected_by_the_first_and_approved_by_the_last() -> None:
    asked = approval({"item_id": "1"}, {"item_id": "2"})
    first = with_vote(asked, says(ADA, ("1", "reject"), ("2", "approve"), note="not 1"), NOW)
    assert first.status == "pending"
    decided = with_vote(first, says(BOB, ("1", "approve"), ("2", "approve")), NOW)
    assert decided.decision is not None
    assert decided.decision.outcome == "mixed"
    assert [(each.decision, each.note) for each in decided.decision.items] == [
        ("reject", "not 1"),
        ("approve", None),
    ]


def test_a_rejection_survives_the_edit_of_another_item() -> None:
    asked = approval({"item_id": "1"}, {"item_id": "2", "editable": True})
    first = with_vote(asked, says(ADA, ("1", "reject"), ("2", "approve")), NOW)
    items = [
        Decided(item_id="1", decision="approve"),
        Decided(item_id="2", decision="approve", args={"amount": 5, "memo": "b"}),
    ]
    edited = with_vote(first, DecideRequest(decider=BOB, items=items), NOW)
    decided = with_vote(
        edited, says(CLEO, ("1", "approve"), ("2", "approve"), digest=edited.digest), NOW
    )
    assert decided.decision is not None
    assert [each.decision for each in decided.decision.items] == ["reject", "approve"]


def test_another_answer_makes_earlier_votes_void_and_none_agrees() -> None:
    asked = approval({"item_id": "1", "kind": "input"})
    first = with_vote(asked, says(ADA, ("1", "approve", {"city": "Rome"})), NOW)
    agreed = with_vote(first, says(BOB, ("1", "approve")), NOW)
    assert agreed.decision is not None
    assert agreed.decision.items[0].value == {"city": "Rome"}
    other = with_vote(first, says(BOB, ("1", "approve", {"city": "Oslo"})), NOW)
    assert (other.status, [each.void for each in other.votes]) == ("pending", [True, False])


def test_nobody_agrees_to_new_arguments_that_came_as_a_value_without_saying_them() -> None:
    """No digest covers the value of a confirmation, and no page shows it."""
    asked = approval({"item_id": "1"})
    value = {"accepted": True, "values": {"memo": "to my own account"}}
    first = with_vote(asked, says(ADA, ("1", "approve", value)), NOW)
    agreed = with_vote(first, says(BOB, ("1", "approve"), digest=asked.digest), NOW)
    assert (agreed.status, [each.void for each in agreed.votes]) == ("pending", [True, False])
    same = with_vote(first, says(BOB, ("1", "approve", value), digest=asked.digest), NOW)
    assert same.status == "decided"


def test_new_arguments_do_not_come_as_a_value_beside_the_old_ones() -> None:
    asked = approval(
        {"item_id": "1", "editable": True},
        rulings=[ItemRuling(item_id="1", rule_id="r", outcome="ask", edit=["args.*"])],
    )
    both = Decided(
        item_id="1",
        decision="approve",
        args={"amount": 5, "memo": "a"},
        value={"amount": 5_000_000, "memo": "a"},
    )
    status, why = refused(asked, DecideRequest(decider=ADA, items=[both]))
    assert (status, "without a value" in why) == (422, True)


def test_an_answer_of_another_that_a_page_does_not_show_is_not_agreed_to_there() -> None:
    asked = approval({"item_id": "1", "kind": "input"})
    first = with_vote(asked, says(ADA, ("1", "approve", {"city": "Rome"})), NOW)
    at_a_page = person("bob", "ops", channel="link")
    assert refused(first, says(at_a_page, ("1", "approve"), digest=asked.digest))[0] == 422


def test_nobody_approves_an_item_that_the_policy_rejects() -> None:
    ruling = ItemRuling(item_id="1", rule_id="never", outcome="reject", note="Not on production.")
    asked = approval(rulings=[ruling], need=1)
    status, why = refused(asked, vote(asked, ADA))
    assert (status, "rule never of the policy rejects it: Not on production." in why) == (403, True)
    assert with_vote(asked, vote(asked, ADA, "reject"), NOW).status == "decided"


@pytest.mark.parametrize(
    ("channel", "status"), [("api", 422), ("link", 422), ("page", 422), ("cli", 422), ("agui", 0)]
)
def test_people_send_the_digest_and_protocols_cannot(channel: str, status: int) -> None:
    who = person("ada", "ops", channel=channel)
    blind = vote(approval(), who).model_copy(update={"digest": None})
    if status:
        assert refused(approval(), blind, require_digest=True)[0] == status
    else:
        assert with_vote(approval(), blind, NOW, require_digest=True).votes
    assert with_vote(approval(), blind, NOW).votes
    assert refused(approval(), vote(approval(), who, digest="sha256:0"))[0] == 409


PEOPLE = [person(f"p{number}", "ops") for number in range(4)]
VOTES = st.tuples(
    st.sampled_from(PEOPLE),
    st.sampled_from(["approve", "reject"]),
    st.sampled_from([None, "b", "c"]),
)


@given(st.lists(VOTES, max_size=12), st.integers(1, 3))
def test_whatever_people_vote_what_runs_has_enough_votes_of_different_people(
    votes: list[tuple[Decider, str, str | None]], need: int
) -> None:
    record = approval(need=need)
    for who, decision, memo in votes:
        if record.status != "pending":
            break
        args = {"amount": 5, "memo": memo} if memo and decision == "approve" else None
        with suppress(VoteRefused):  # the person has voted
            record = with_vote(record, vote(record, who, decision, args=args), NOW)
    approvers = [each.by for each in record.votes if not each.void]
    rejections = [each for each in record.votes if each.items[0].decision == "reject"]
    assert len(set(approvers)) == len(approvers)
    assert {each.digest for each in record.votes if not each.void} <= {record.digest}
    if record.decision is None:
        assert not rejections
        assert len(approvers) < need
    elif record.decision.outcome == "approved":
        assert len(approvers) == need
        assert (record.decision.items[0].args or {"memo": "a"})["memo"] == record.items[0]["args"][
            "memo"
        ]
    else:
        assert len(rejections) == 1


def back(record: ApprovalRecord, who: Decider, at: str = LATER) -> ApprovalRecord:
    return without_vote(record, who, at)


def not_back(record: ApprovalRecord, who: Decider) -> str:
    with pytest.raises(VoteRefused) as error:
        back(record, who)
    assert error.value.status == 409
    return str(error.value)


def test_a_vote_that_was_taken_back_counts_for_nothing_and_the_person_may_vote_again() -> None:
    asked = approval()
    voted = with_vote(asked, vote(asked, ADA, key="k"), NOW)
    taken = back(voted, ADA)
    assert (taken.votes[0].void, taken.votes[0].taken_back) == (True, LATER)
    assert back(taken, ADA, "later still") is taken, "a repeat changes nothing"
    assert with_vote(taken, vote(asked, BOB), NOW).decision is None, "one of two has approved"
    status, why = refused(taken, vote(asked, ADA, key="k"))
    assert (status, "was taken back" in why) == (409, True), "a late repeat brings no vote back"
    again = with_vote(taken, vote(asked, ADA, "reject", key="other"), NOW)
    assert again.decision is not None
    assert again.decision.outcome == "rejected"


def test_a_rejection_of_an_item_that_was_taken_back_rejects_nothing() -> None:
    asked = approval({"item_id": "1"}, {"item_id": "2"})
    first = with_vote(asked, says(ADA, ("1", "reject"), ("2", "approve")), NOW)
    both = ("1", "approve"), ("2", "approve")
    second = with_vote(back(first, ADA), says(BOB, *both), NOW)
    decided = with_vote(second, says(CLEO, *both), NOW)
    assert second.decision is None
    assert decided.decision is not None
    assert decided.decision.outcome == "approved"


def test_arguments_that_only_a_vote_has_changed_go_with_the_vote() -> None:
    asked = approval()
    edited = with_vote(asked, vote(asked, ADA, args={"amount": 5, "memo": "b"}), NOW)
    taken = back(edited, ADA)
    assert (taken.items, taken.digest, taken.requested_digest) == (asked.items, asked.digest, None)
    agreed = approval(need=3)
    edited = with_vote(agreed, vote(agreed, ADA, args={"amount": 5, "memo": "b"}), NOW)
    edited = with_vote(edited, vote(edited, BOB), NOW)
    kept = back(edited, ADA)
    assert (kept.items, kept.digest) == (edited.items, edited.digest), "BOB approved the change"


LINK = {"token_id": "l1", "token_maker": "root", "channel": "link"}


@pytest.mark.parametrize(
    ("voter", "other"),
    [
        (ADA, BOB),
        (ADA, person("ada", "ops", **LINK)),
        (person("ada", "ops", **LINK), ADA),
        (person("link:ops", "ops", **LINK), person("link:ops", "ops", **LINK | {"token_id": "l2"})),
        (person("link:ops", "ops", **LINK), person("link:ops", "ops")),
        (person("bot", "ops", token_id="t", token_maker="bob"), BOB),
        (person("bot", "ops", token_id="t", on_behalf_of="ada"), person("bot", token_id="t")),
        (ADA, person("root", scopes=["decide", "act-as", "administer"], on_behalf_of="ada")),
        (ADA, person("u", "ops")),
    ],
)
def test_nobody_takes_back_the_vote_of_another(voter: Decider, other: Decider) -> None:
    """Another person, another link of the person or of the group, the maker of the token, whoever
    acts for the person, and the requester are others."""
    voted = with_vote(approval(), vote(approval(), voter), NOW)
    assert not_back(voted, other) == "there is no vote of yours to take back"
    assert back(voted, voter).votes[0].taken_back == LATER


def test_one_person_cannot_use_up_all_votes_by_taking_them_back() -> None:
    asked = record = approval()
    for number in range(votes.MAX_TAKEN_BACK):
        record = back(with_vote(record, vote(asked, ADA, key=str(number)), NOW), ADA)
    record = with_vote(record, vote(asked, ADA), NOW)
    assert "this one stays" in not_back(record, ADA)
    assert with_vote(record, vote(asked, BOB), NOW).status == "decided"
