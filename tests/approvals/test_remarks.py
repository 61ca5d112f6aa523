"""Questions, answers and handovers decide nothing, and give nobody a right."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from penstock.bus.records.approvals import ApprovalRecord, Decider, Deciders, Escalation
from penstock_approvals.api.changes import name_of
from penstock_approvals.audit.entries import entries_of
from penstock_approvals.inbox.visibility import audiences_of
from penstock_approvals.outcomes import remarks
from penstock_approvals.outcomes.remarks import with_remark
from penstock_approvals.outcomes.votes import VoteRefused, with_vote
from penstock_approvals.policy.deciding_rights import may_decide
from penstock_approvals.runs.events import request_events
from support.fakes.policies import person, vote

NOW, LATER = "2026-11-22T15:00:00.000Z", "2026-11-22T16:00:00.000Z"
GRACE, LEE, EVE = person("grace", "finance"), person("lee", "finance"), person("eve", "sales")
ALICE = person("alice", "finance")
QUESTION = partial(with_remark, kind="question", text="Which invoice?")
ANSWER = partial(with_remark, kind="answer", text="Invoice 17.")


def waiting(**more: Any) -> ApprovalRecord:
    item = {"item_id": "1", "kind": "confirmation", "tool": "pay", "args": {}, "digest": "i"}
    return ApprovalRecord.model_validate(
        {
            **dict.fromkeys(("approval_id", "run_id", "agent", "session_id"), "x"),
            **{"user_id": "alice", "leg": 1, "digest": "d", "items": [item]},
            **{"requested_at": NOW, "updated_at": NOW},
            "deciders": [Deciders(roles=["finance"], excluded=["requester"])],
            **more,
        }
    )


def refused(change: Any, record: ApprovalRecord, who: Decider) -> tuple[int, str]:
    with pytest.raises(VoteRefused) as error:
        change(record, who, NOW)
    return error.value.status, str(error.value)


def over(to: str, text: str | None = None) -> Any:
    return partial(with_remark, kind="handover", to=to, text=text)


def test_a_question_and_its_answer_leave_the_approval_as_it_waits() -> None:
    asked = QUESTION(waiting(), GRACE, NOW)
    answered = ANSWER(asked, ALICE, LATER)
    assert [(each.kind, each.by, each.text) for each in answered.remarks] == [
        ("question", "grace", "Which invoice?"),
        ("answer", "alice", "Invoice 17."),
    ]
    assert (answered.status, answered.votes, answered.digest) == ("pending", [], "d")
    assert [name_of(each) for each in (waiting(), asked, answered)] == [
        *("approval.requested", "approval.remarked", "approval.remarked")
    ]
    assert QUESTION(asked, GRACE, LATER) is asked, "a repeat changes nothing"
    assert with_vote(answered, vote(answered, LEE), LATER).status == "decided"


@pytest.mark.parametrize(
    ("change", "who", "status", "why"),
    [
        (QUESTION, ALICE, 403, "does not let the user whose run asks decide"),
        (QUESTION, EVE, 403, "lets only the role finance decide"),
        (ANSWER, GRACE, 403, "only the user whose run asks may answer"),
        (ANSWER, ALICE, 409, "nobody has asked a question"),
        (over("lee"), ALICE, 403, "does not let the user whose run asks decide"),
        (over("lee"), EVE, 403, "lets only the role finance decide"),
        (over("grace"), GRACE, 422, "to: name another person"),
        (over("alice"), GRACE, 422, "to: the policy does not let the user whose run asks decide"),
    ],
)
def test_who_may_not_speak_is_told_why(change: Any, who: Decider, status: int, why: str) -> None:
    assert refused(change, waiting(), who)[0] == status
    assert why in refused(change, waiting(), who)[1]


def test_whoever_started_the_run_cannot_be_handed_what_the_requester_may_not_decide() -> None:
    started = waiting(started_by=["eve"])
    assert "eve, who started the run" in refused(over("eve"), started, GRACE)[1]


def test_a_user_whom_the_policy_does_not_name_cannot_be_handed_anything() -> None:
    named = waiting(deciders=[Deciders(users=["grace", "lee"])])
    status, why = refused(over("eve"), named, GRACE)
    assert (status, why) == (422, "to: the policy lets only grace or lee decide")
    assert over("lee")(named, GRACE, NOW).remarks[0].to == "lee"


def test_a_handover_gives_no_right() -> None:
    """The policy asks a role. Whether the other person has the role shows when the person votes."""
    handed = over("eve", "please")(waiting(), GRACE, NOW)
    assert "the role finance" in str(may_decide(handed, EVE))
    assert may_decide(handed, LEE) is None
    with pytest.raises(VoteRefused):
        with_vote(handed, vote(handed, EVE), NOW)


def test_what_was_handed_over_waits_for_the_person_no_longer_until_it_comes_back() -> None:
    handed = over("lee")(waiting(), GRACE, NOW)
    back = over("grace")(handed, LEE, LATER)
    assert [audiences_of(each)["grace"].barred for each in (handed, back)] == [True, False]
    assert audiences_of(back)["lee"].barred
    assert with_vote(handed, vote(handed, GRACE), NOW).status == "decided", "the right stays"


def test_what_one_of_the_two_has_voted_on_is_not_handed_over() -> None:
    voted = waiting(need=2)
    voted = with_vote(voted, vote(voted, GRACE), NOW)
    assert refused(over("lee"), voted, GRACE) == (409, "you have voted already")
    assert refused(over("grace"), voted, LEE) == (409, "grace has voted already")


def test_one_person_cannot_fill_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remarks, "MAX_REMARKS", 2)
    record = waiting()
    for number in range(2):
        record = with_remark(record, GRACE, NOW, kind="question", text=str(number))
    assert refused(QUESTION, record, GRACE)[0] == 409
    assert QUESTION(record, LEE, NOW).remarks[-1].by == "lee", "others may still ask"


def test_steps_and_remarks_are_told_in_the_order_in_which_they_happened() -> None:
    steps = [Escalation(at=NOW, to=Deciders(roles=["leads"])), Escalation(at=LATER)]
    record = QUESTION(waiting(escalations=steps), GRACE, NOW)
    record = ANSWER(record.model_copy(update={"escalated": 1}), ALICE, LATER)
    told = request_events(record.model_copy(update={"escalated": 2}))
    assert [(type_, data.get("step")) for type_, data in told] == [
        ("lifecycle.paused", None),
        ("approval.remarked", 1),
        ("approval.escalated", 2),
        ("approval.remarked", 3),
        ("approval.reminded", 4),
    ]
    assert request_events(record) == told[:-1], "a change adds its event at the end"
    assert told[1][1] == {
        **{"approval_id": "x", "step": 1, "kind": "question", "by": "grace"},
        "text": "Which invoice?",
    }


def test_the_audit_has_a_digest_of_what_was_said() -> None:
    record = over("lee", "urgent")(QUESTION(waiting(), GRACE, NOW), GRACE, LATER)
    _, question, handover = entries_of(record)
    assert (question.event, question.decision, question.by) == ("remarked", "question", "grace")
    assert (handover.decision, handover.to, handover.channel) == ("handover", "lee", "api")
    assert question.note_hash is not None
    assert question.details is None
    _, detailed, _ = entries_of(record, with_details=True)
    assert detailed.details == {"note": "Which invoice?"}
