"""Compute the audiences of an approval: the people and roles for which the index has a row.

Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.bus.records import Decider
from penstock_approvals.policy.deciding_rights import REQUESTER, person_of

# If the policy names no people and no roles, everybody with the required scope may decide. This
# audience stands for all of them.
EVERYBODY: Final = "everybody\0"


def role(name: str) -> str:
    """Return the audience of a role. This audience differs from the name of every user."""
    return f"role\0{name}"


def audiences(who: Decider) -> tuple[str, ...]:
    """Return the audiences of a caller: the caller's names, its roles, and everybody."""
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


def audiences_of(record: Mapping[str, Any]) -> dict[str, Audience]:
    """Return the audiences of an approval by name; empty for an invalid record.

    The result includes everybody who may see the approval. The result may also include people who
    may not see the approval, so the caller must check the record itself.
    """
    try:
        return _audiences_of(record)
    except (AttributeError, KeyError, TypeError):
        return {}


def _audiences_of(record: Mapping[str, Any]) -> dict[str, Audience]:
    owner = record["user_id"]
    found = defaultdict(Audience, {owner: Audience()})
    escalations = (record.get("escalations") or [])[: record.get("escalated") or 0]
    groups = record.get("deciders", [{"users": [REQUESTER]}]) or [{}]
    for group in [*groups, *(each["to"] for each in escalations)]:
        users = [_name(name, owner) for name in group.get("users") or []]
        for name in [*users, *map(role, group.get("roles") or [])] or [EVERYBODY]:
            found[name].decides = True
    # After an escalation nobody is barred, because an escalation may ask a person whom one of the
    # record's `deciders` excludes.
    for group in groups if not escalations else ():
        for name in group.get("excluded") or []:
            found[_name(name, owner)].barred = True
    for vote in record.get("votes") or []:
        found[vote["by"]].barred |= not vote.get("void")
    return found


def _name(name: str, owner: str) -> str:
    return owner if name == REQUESTER else name
