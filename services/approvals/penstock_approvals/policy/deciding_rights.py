"""Decide who may see an approval, who may decide it, and as whose vote a decision counts. Pure.

Every caller counts as one person, under one name. A caller with the scope `act-as` may name another
user, but still counts under the caller's own name. Otherwise one caller could cast the votes of
several people. A caller with a service token counts as the person that the caller names, because an
operator made the token for this purpose. A rule of automations counts as the rule's owner.
Otherwise a person could cast several votes with several rules. Without authentication, callers are
not known. A caller then counts as the user that the caller names.

The maker of a service token or a link knows its secret, and so may use it, too. So if the maker is
a requester, the token or link counts as the maker. And if the maker has voted, it gives no other
vote. Requesters are the user whose run asks, and all who are behind the run: who started it for
that user, the maker of a service token that started it, and the requesters of a run whose event
started it.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final

from penstock.bus.records.approvals import ApprovalRecord, Decider, Deciders, Vote
from penstock.web.auth.identity import ANONYMOUS_USER
from penstock_approvals.policy.model import DEFAULT_ID

REQUESTER: Final = "requester"
# A caller with one of these scopes may do everything that the requester may do.
_FOR_REQUESTER: Final = frozenset({"act-as", "administer"})


def person_of(who: Decider) -> str:
    speaks_for_others = (
        who.token_id is not None or who.channel == "automation" or who.name == ANONYMOUS_USER
    )
    return (who.on_behalf_of or who.name) if speaks_for_others else who.name


def voter_of(record: ApprovalRecord, who: Decider) -> str:
    maker = who.token_maker
    return maker if maker is not None and maker in _requesters(record) else person_of(who)


def earlier_vote(record: ApprovalRecord, who: Decider) -> Vote | None:
    """Return the counting vote after which the caller has no vote; None if there is none.

    This is the caller's own vote, a vote by the maker of the caller's token or link, or a vote with
    a token or link that the caller has made.
    """
    voter = voter_of(record, who)
    for vote in record.votes:
        maker = vote.decider.token_maker if vote.decider is not None else None
        if not vote.void and (vote.by in (voter, who.token_maker) or maker == voter):
            return vote
    return None


def votes_of(record: ApprovalRecord, who: Decider) -> list[Vote]:
    """Return the votes that the caller may take back, also those that were taken back.

    A vote that was given with a token or a link can be taken back only with the same one. All links
    of a group count as one person, so otherwise somebody could take back the vote of somebody else.
    """
    voter = voter_of(record, who)
    return [
        each for each in record.votes if each.by == voter and each.decider.token_id == who.token_id
    ]


def may_decide(record: ApprovalRecord, decider: Decider) -> str | None:
    """Return why the person may not decide the approval; None if the person may decide. The result
    says nothing about the approval's status, its deadline, or earlier votes."""
    if (reason := _beyond_limits(record, decider)) is not None:
        return reason
    if not record.deciders:  # otherwise everybody would fit the deciders of none
        return "the policy has decided, and asks nobody"
    for group, deciders in enumerate(record.deciders):
        reason = _unfit(deciders, record, decider)
        further = _reached(record, group)
        if reason is not None and all(_unfit(each, record, decider) for each in further):
            return reason
    return None


def may_ever_decide(record: ApprovalRecord, name: str) -> str | None:
    """Return why the user may not decide even with all roles and scopes that the policy names; None
    if the user may with these."""
    reached = [each.to for each in record.escalations[: record.escalated] if each.to is not None]
    groups = [*record.deciders, *reached]
    roles = [role for each in groups for role in each.roles]
    return may_decide(record, Decider(name=name, roles=roles, scopes=[g.scope for g in groups]))


def may_answer(record: ApprovalRecord, who: Decider) -> str | None:
    """Return why the caller may not answer for the requester; None if the caller may."""
    if (reason := _beyond_limits(record, who)) is not None:
        return reason
    if record.user_id in (who.name, person_of(who)) or _FOR_REQUESTER & set(who.scopes):
        return None
    return "only the user whose run asks may answer"


def handed_over_by(record: ApprovalRecord) -> set[str]:
    """Return the people who have handed the approval over, and to whom nobody handed it back."""
    last: dict[str, bool] = {}
    for remark in record.remarks:
        if remark.to is not None:
            last |= {remark.by: True, remark.to: False}
    return {name for name, is_by in last.items() if is_by}


def may_see(record: ApprovalRecord, who: Decider) -> bool:
    """Return whether the person may see the approval with its arguments.

    Four kinds of callers may see an approval: the requester, callers that may see every user's
    runs, people who may decide the approval, and people who have voted.
    """
    if _beyond_limits(record, who) is not None:
        return False  # these limits apply even to a service token that acts for the requester
    if record.user_id in (who.name, person_of(who)) or _FOR_REQUESTER & set(who.scopes):
        return True
    if may_decide(record, who) is None:
        return True
    return any(voter_of(record, who) == vote.by for vote in record.votes)


def _requesters(record: ApprovalRecord) -> frozenset[str]:
    return frozenset({record.user_id, *(record.started_by or ())})


def _beyond_limits(record: ApprovalRecord, who: Decider) -> str | None:
    """Return which limit of a service token excludes the approval; None if no limit does."""
    limits = who.limits
    if limits is None:
        return None
    if limits.agents and record.agent not in limits.agents:
        return f"this service token does not decide for the agent {record.agent}"
    for item in record.items if limits.tools else ():
        tool = str(item.get("tool") or "")
        if not tool or not any(fnmatchcase(tool, pattern) for pattern in limits.tools):
            return f"this service token does not decide calls of {tool or 'no tool'}"
    asking = [each.rule_id for each in record.rulings if each.outcome == "ask"] or [DEFAULT_ID]
    for rule_id in asking if limits.rules else ():
        if rule_id not in limits.rules:
            return f"this service token does not decide what the rule {rule_id} asks for"
    return None


def _reached(record: ApprovalRecord, group: int) -> list[Deciders]:
    """Return the people who may also decide in place of the deciders of a group, because an
    escalation was reached.

    A group is an entry of `record.deciders`, and `group` is its index. Items with different terms
    have different groups. An escalation adds deciders only to the group of its own item. Suppose
    that an agent asks for two items together. If the escalation of one item counted for both items,
    the agent would get around the stricter rule of the other item.
    """
    reached = record.escalations[: record.escalated]
    # A reminder lets nobody decide, though it names no deciders, as do terms that let everybody.
    return [each.to for each in reached if each.to is not None and each.group in (None, group)]


def _unfit(deciders: Deciders, record: ApprovalRecord, who: Decider) -> str | None:
    if (reason := _exclusion(deciders, record, who)) is not None:
        return reason
    if deciders.scope not in who.scopes:
        return f"this needs the scope {deciders.scope}"
    users = {record.user_id if name == REQUESTER else name for name in deciders.users}
    if voter_of(record, who) in users or not (users or deciders.roles):
        return None
    if who.token_maker in _requesters(record):
        return f"a token or link of {_subject(record, who.token_maker)} does not decide for others"
    acts_for_requester = REQUESTER in deciders.users and _FOR_REQUESTER & set(who.scopes)
    if acts_for_requester or set(deciders.roles) & set(who.roles):
        return None
    wanted = [f"the role {role}" for role in deciders.roles] + list(deciders.users)
    return f"the policy lets only {' or '.join(wanted)} decide"


def _exclusion(deciders: Deciders, record: ApprovalRecord, who: Decider) -> str | None:
    excluded = set(deciders.excluded)
    if REQUESTER in excluded:
        excluded |= _requesters(record)
    for name in (who.name, who.on_behalf_of, who.token_maker):
        if name in excluded:
            also = ", nor a token or link that this user made" if name == who.token_maker else ""
            return f"the policy does not let {_subject(record, name)} decide{also}"
    return None


def _subject(record: ApprovalRecord, name: str | None) -> str:
    if name == record.user_id:
        return "the user whose run asks"
    return f"{name}, who started the run," if name in _requesters(record) else str(name)
