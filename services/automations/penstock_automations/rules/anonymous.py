"""Pauses rules that were made while callers were not authenticated."""

from __future__ import annotations

import logging
from typing import Final

from penstock.web.auth.identity import ANONYMOUS_USER
from penstock_automations.rules.store import RuleStore

log = logging.getLogger(__name__)

REASON: Final = (
    "it was made while callers were not authenticated, and now they are: delete it, and make it "
    "with a token"
)


async def pause_rules_without_owner(store: RuleStore) -> None:
    """Pause the rules of `anonymous`.

    Such a rule sees the runs of all users. If the rule stayed active, somebody who made it before
    authentication was configured would still get the events of all users.

    Raises:
        BusError: a rule could not be read or written.
    """
    for rule in await store.all():
        record = rule.record
        if record.owner.user_id != ANONYMOUS_USER or record.source != "api":
            continue
        if await store.pause(rule.id, REASON, "penstock", record.uid):
            log.warning("rule %s is paused: %s", rule.id, REASON)
