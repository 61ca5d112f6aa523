"""Decide which approvals a caller may see, and which wait for the caller's decision. Pure.

`may_see_approval`, `sees_whole` and `may_vote_on` decide for one record. The index of the list has
a row for each audience of an approval: a person or a role that may see it. The rows may show too
much, so the list also asks the viewer about each record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from penstock.bus.records.approvals import ApprovalRecord, Decider
from penstock.service.deciders import decider_of
from penstock.web.auth import Identity
from penstock.web.auth.grants import EVERYBODY as EVERY_USER
from penstock_approvals.policy.deciding_rights import (
    REQUESTER,
    earlier_vote,
    handed_over_by,
    may_decide,
    may_see,
    person_of,
    voter_of,
)

# If the policy names no people and no roles, everybody with the required scope may decide. This
# audience stands for all of them.
EVERYBODY: Final = "everybody\0"


def may_see_approval(who: Identity, record: ApprovalRecord) -> bool:
    if who.grant is not None and not who.may_see_runs_of(record.user_id):
        return False  # a stream token may see only the users that it names
    return any(may_see(record, decider) for decider in _deciders(who, record))


def sees_whole(who: Identity, record: ApprovalRecord) -> bool:
    """Return whether the caller sees what redactions mask for others: who decides sees what the
    decision is about."""
    if record.masked_items is None or who.has_scope("pii"):
        return True
    return any(
        may_decide(record, decider) is None
        or any(voter_of(record, decider) == vote.by for vote in record.votes)
        for decider in _deciders(who, record)
    )


def may_vote_on(who: Identity, record: ApprovalRecord) -> bool:
    if record.status != "pending":
        return False
    return any(
        may_decide(record, decider) is None
        and earlier_vote(record, decider) is None
        and voter_of(record, decider) not in handed_over_by(record)
        for decider in _deciders(who, record)
    )


def _deciders(who: Identity, record: ApprovalRecord) -> Iterator[Decider]:
    yield decider_of(who, "api")
    if who.service is not None and who.service.acts_for(record.user_id):
        yield decider_of(who, "api", record.user_id)


@dataclass(frozen=True, slots=True)
class Viewer:
    """The caller for whom approvals are listed."""

    # The audiences whose rows are read. The entry None stands for all requesters.
    audiences: tuple[str | None, ...]
    # A function that returns whether the caller may see an approval. The function reads the record
    # itself, so a mistake in the index cannot show an approval that the caller may not see.
    shows: Callable[[ApprovalRecord], bool]
    # The caller's name as a voter, if only approvals that wait for the caller are listed. None
    # lists all approvals.
    waits_for: str | None = None


def viewer_of(who: Identity, *, waits: bool = False) -> Viewer:
    """Return the viewer for a caller. With `waits`, only approvals that wait for it are listed."""
    # The index leaves out approvals on which the person in the viewer's `waits_for` has voted. A
    # service token that acts for several people may still vote on these approvals for another
    # person. So for such a token, the person is empty, and only `may_vote_on` leaves out approvals.
    several = who.service is not None and bool(who.service.on_behalf_of)
    person = "" if several else person_of(decider_of(who, "api"))
    return Viewer(
        tuple(_audiences_to_read(who, waits)),
        lambda record: may_see_approval(who, record) and (not waits or may_vote_on(who, record)),
        person if waits else None,
    )


def _audiences_to_read(who: Identity, waits: bool) -> Iterator[str | None]:
    for_users = who.service.on_behalf_of if who.service is not None else ()
    if who.grant is not None:
        yield from (None,) if who.owners is None else who.owners
        return
    everybody = who.owners is None or EVERY_USER in for_users
    if everybody:
        yield None
    if who.owners is None and not waits:
        return
    caller = decider_of(who, "api")
    yield from sorted({caller.name, person_of(caller)})
    yield from map(_role, caller.roles)
    yield EVERYBODY
    if not everybody:
        yield from for_users


@dataclass(slots=True)
class Audience:
    """A person or a role that may see an approval.

    `decides` says whether the audience is among the deciders. `barred` says that the person is
    excluded, has voted, or has handed the approval over. For such a person it does not wait, even
    if one of the person's roles may decide.
    """

    decides: bool = False
    barred: bool = False


def audiences_of(record: ApprovalRecord) -> dict[str, Audience]:
    """Return the audiences of an approval by name: everybody who may see it, and perhaps others."""
    owner = record.user_id
    found = defaultdict(Audience, {owner: Audience()})
    reached = [each.to for each in record.escalations[: record.escalated] if each.to is not None]
    groups = record.deciders
    for group in (*groups, *reached):
        users = [owner if name == REQUESTER else name for name in group.users]
        for name in [*users, *map(_role, group.roles)] or [EVERYBODY]:
            found[name].decides = True
    # After an escalation nobody is barred, because an escalation may ask a person whom one of the
    # record's `deciders` excludes.
    for group in groups if not reached else ():
        for name in group.excluded:
            found[owner if name == REQUESTER else name].barred = True
    for vote in record.votes:
        found[vote.by].barred |= not vote.void
    for name in handed_over_by(record):
        found[name].barred = True
    return found


def _role(name: str) -> str:
    """Return the audience of a role. It differs from the name of every user."""
    return f"role\0{name}"
