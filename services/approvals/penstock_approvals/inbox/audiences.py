"""Compute the audiences of an approval: the people and roles for which the index has a row.

Pure.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, ConfigDict

from penstock.bus.records import Decider
from penstock_approvals.policy.deciding_rights import REQUESTER, person_of

# If the policy names no people and no roles, everybody with the required scope may decide. This
# audience stands for all of them.
EVERYBODY: Final = "everybody\0"


def role(name: str) -> str:
    """Return the audience of a role. This audience differs from the name of every user."""
    return f"role\0{name}"


def audiences(who: Decider) -> tuple[str, ...]:
    names = {who.name, person_of(who)}
    return (*sorted(names), *map(role, who.roles), EVERYBODY)


@dataclass(slots=True)
class Audience:
    """A person or a role that may see an approval.

    `decides` says whether the audience is among the deciders. `barred` says that the person is
    excluded or has voted. Such a person may not decide, even if one of the person's roles may
    decide.
    """

    decides: bool = False
    barred: bool = False


class _Fields(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Group(_Fields):
    users: list[str] = []
    roles: list[str] = []
    excluded: list[str] = []


class _Escalation(_Fields):
    to: _Group


class _Vote(_Fields):
    by: str
    void: bool = False


class IndexedApproval(_Fields):
    """The fields of an ApprovalRecord that the index reads, of a record of any release.

    `model_validate_json` raises ValidationError for a value that is no such record.
    """

    user_id: str
    requested_at: str
    status: str = "pending"
    expires_at: str | None = None
    agent: str = ""
    session_id: str = ""
    run_id: str = ""
    deciders: list[_Group] = [_Group(users=[REQUESTER])]
    escalations: list[_Escalation] = []
    escalated: int = 0
    votes: list[_Vote] = []


def audiences_of(record: IndexedApproval) -> dict[str, Audience]:
    """Return the audiences of an approval by name.

    The result includes everybody who may see the approval. The result may also include people who
    may not see the approval, so the caller must check the record itself.
    """
    owner = record.user_id
    found = defaultdict(Audience, {owner: Audience()})
    reached = [each.to for each in record.escalations[: record.escalated]]
    groups = record.deciders or [_Group()]
    for group in (*groups, *reached):
        users = [_name(name, owner) for name in group.users]
        for name in [*users, *map(role, group.roles)] or [EVERYBODY]:
            found[name].decides = True
    # After an escalation nobody is barred, because an escalation may ask a person whom one of the
    # record's `deciders` excludes.
    for group in groups if not reached else ():
        for name in group.excluded:
            found[_name(name, owner)].barred = True
    for vote in record.votes:
        found[vote.by].barred |= not vote.void
    return found


def _name(name: str, owner: str) -> str:
    return owner if name == REQUESTER else name
