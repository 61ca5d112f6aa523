"""Decide which approvals a caller may see, and which wait for the caller's decision. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.bus.records import ApprovalRecord, Decider
from penstock.service.deciders import decider_of
from penstock.web.auth import Identity
from penstock.web.auth.grants import EVERYBODY
from penstock_approvals.inbox.audiences import audiences
from penstock_approvals.inbox.listing import Viewer
from penstock_approvals.policy import earlier_vote, may_decide, may_see, person_of


def may_see_approval(who: Identity, record: ApprovalRecord) -> bool:
    if who.grant is not None and not who.may_see_runs_of(record.user_id):
        return False  # a stream token may see only the users that it names
    return any(may_see(record, decider) for decider in _deciders(who, record))


def may_vote_on(who: Identity, record: ApprovalRecord) -> bool:
    if record.status != "pending":
        return False
    return any(
        may_decide(record, decider) is None and earlier_vote(record, decider) is None
        for decider in _deciders(who, record)
    )


def viewer_of(who: Identity, *, waits: bool = False) -> Viewer:
    """Return the viewer for a caller.

    With `waits`, only approvals that wait for the caller are listed.
    """
    # The index leaves out approvals on which the person in the viewer's `waits_for` has voted. A
    # service token that acts for several people may still vote on these approvals for another
    # person. So for such a token, the person is empty, and only `may_vote_on` leaves out approvals.
    several = who.service is not None and bool(who.service.on_behalf_of)
    person = "" if several else person_of(decider_of(who, "api"))
    return Viewer(
        tuple(_audiences(who, waits)),
        lambda record: may_see_approval(who, record) and (not waits or may_vote_on(who, record)),
        person if waits else None,
    )


def _deciders(who: Identity, record: ApprovalRecord) -> Iterator[Decider]:
    """Yield the caller as a decider.

    For a service token, also yield the caller as a decider on behalf of the requester.
    """
    yield decider_of(who, "api")
    if who.service is not None and who.service.acts_for(record.user_id):
        yield decider_of(who, "api", record.user_id)


def _audiences(who: Identity, waits: bool) -> Iterator[str | None]:
    """Yield the audiences whose rows are read. None stands for all requesters."""
    for_users = who.service.on_behalf_of if who.service is not None else ()
    if who.grant is not None:
        yield from (None,) if who.owners is None else who.owners
        return
    everybody = who.owners is None or EVERYBODY in for_users
    if everybody:
        yield None
    if who.owners is None and not waits:
        return
    yield from audiences(decider_of(who, "api"))
    if not everybody:
        yield from for_users
