"""Say by which rows of the index an approval is found: of which people and roles. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.bus.records import Decider
from penstock_approvals.policy.access import REQUESTER, person_of

EVERYBODY: Final = "everybody\0"  # the audience of approvals that everybody with the scope decides


def role(name: str) -> str:
    """Return the audience of a role. No user's name is equal to it."""
    return f"role\0{name}"


def audiences(who: Decider) -> tuple[str, ...]:
    """Return the audiences whose approvals a caller may see: the own names, roles and everybody."""
    names = {who.name, person_of(who)}
    return (*sorted(names), *map(role, who.roles), EVERYBODY)


@dataclass(slots=True)
class Audience:
    """A person or a role that may see an approval.

    `decides`: whether it is among the deciders. `barred`: whether the person may not decide,
    whatever its roles are, because it is excluded or has voted.
    """

    decides: bool = False
    barred: bool = False


def audiences_of(record: Mapping[str, Any]) -> dict[str, Audience]:
    """Return who may see an approval, by the audience's name; nobody for an invalid record.

    These are at least all who may see it: a decider must fit all of the record's deciders, and has
    a row for each of them that names the person or a role of the person.
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
    for group in groups if not escalations else ():  # an escalation may ask whom a group excludes
        for name in group.get("excluded") or []:
            found[_name(name, owner)].barred = True
    for vote in record.get("votes") or []:
        found[vote["by"]].barred |= not vote.get("void")
    return found


def _name(name: str, owner: str) -> str:
    return owner if name == REQUESTER else name
