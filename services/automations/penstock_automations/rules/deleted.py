"""Remembers deleted rules for as long as their deliveries, so that owners can read the history."""

from __future__ import annotations

from typing import Final

from penstock.bus import Bus
from penstock.bus.records import Record
from penstock_automations.rules.records import RuleRecord

BUCKET: Final = "deliveries"  # its entries expire with the records of the deliveries


class DeletedRule(Record):
    """KV `deliveries`, key `deleted.<rule>.<uid>`."""

    rule: str
    uid: str
    owner: str


async def remember_deleted(bus: Bus, record: RuleRecord) -> None:
    """Remember a rule that is about to be deleted, or to get another owner.

    Raises:
        BusError: it is unknown whether the rule is remembered; repeat the call.
    """
    rule = DeletedRule(rule=record.rule.id, uid=record.uid, owner=record.owner.user_id)
    await bus.bucket(BUCKET).put(f"deleted.{rule.rule}.{rule.uid}", rule.dump())


async def deleted_rules(bus: Bus, rule_id: str = "*") -> list[DeletedRule]:
    """Return the deleted rules that had this id; without an id, all deleted rules.

    Raises:
        BusError: the bucket cannot be read.
    """
    entries = await bus.bucket(BUCKET).entries(f"deleted.{rule_id}.*")
    return [DeletedRule.model_validate_json(each.value) for each in entries]
