"""Add to a waiting approval what a person says without deciding it. Pure.

A person who may decide may ask the requester a question, and the requester may answer. A person who
may decide may hand the approval over: it then waits for another person, and no longer for this one.
None of these is a vote, and none gives a right. The policy alone says who may decide.
"""

from __future__ import annotations

from typing import Final

from penstock.bus.records.approvals import ApprovalRecord, Decider, Remark, RemarkKind
from penstock_approvals.outcomes.votes import VoteRefused
from penstock_approvals.policy.deciding_rights import (
    earlier_vote,
    may_answer,
    may_decide,
    may_ever_decide,
    voter_of,
)

# How often one person may speak. Otherwise one person could fill the record.
MAX_REMARKS: Final = 20
MAX_ALL: Final = 1000


def with_remark(
    record: ApprovalRecord,
    who: Decider,
    now: str,
    *,
    kind: RemarkKind,
    text: str | None = None,
    to: str | None = None,
) -> ApprovalRecord:
    """Return the record with a remark; the same record if its last remark says the same, because a
    client repeats a request whose answer it did not get.

    Raises:
        VoteRefused: in this order: 403, the person may not ask, answer or hand over; 422, the
            policy never lets `to` decide, whatever roles this user has; 409, nobody has asked, one
            of the two has voted, or the person has spoken too often.
    """
    by = voter_of(record, who)
    may = may_answer if kind == "answer" else may_decide
    if (reason := may(record, who)) is not None:
        raise VoteRefused(403, reason)
    if kind == "answer" and not any(each.kind == "question" for each in record.remarks):
        raise VoteRefused(409, "nobody has asked a question")
    if to is not None:
        reason = "name another person" if to == by else may_ever_decide(record, to)
        if reason is not None:
            raise VoteRefused(422, f"to: {reason}")
        for name, person in (("you have", who), (f"{to} has", Decider(name=to))):
            if earlier_vote(record, person) is not None:
                raise VoteRefused(409, f"{name} voted already")
    last = record.remarks[-1] if record.remarks else None
    if last is not None and (last.kind, last.by, last.text, last.to) == (kind, by, text, to):
        return record
    mine = sum(each.by == by for each in record.remarks)
    if mine >= MAX_REMARKS or len(record.remarks) >= MAX_ALL:
        raise VoteRefused(409, "too much was said here: decide it, or cancel the run")
    remark = Remark(kind=kind, by=by, decider=who, at=now, text=text, to=to, after=record.escalated)
    return record.model_copy(update={"remarks": [*record.remarks, remark], "updated_at": now})
