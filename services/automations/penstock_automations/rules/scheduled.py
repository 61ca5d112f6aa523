"""Makes rules from the schedules of workflows, so that a time is fired like that of a rule.

The pointer to a workflow's latest version has the version's schedule (KV `workflows`,
`latest.<name>`). Every process makes the same rule from it. No user's rule has such an id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from penstock.bus import Bus
from penstock.bus.records.workflows import LatestWorkflow, ScheduledRuns
from penstock.bus.subjects import key_of
from penstock.runs.workflows import BUCKET, latest_key
from penstock.web.auth.identity import ANONYMOUS_USER
from penstock_automations.rules.actions import Action, RunAction
from penstock_automations.rules.model import Rule, Schedule
from penstock_automations.rules.records import CompiledRule, Owner, RuleRecord

log = logging.getLogger(__name__)

STREAM: Final = f"KV_{BUCKET}"
POINTERS: Final = f"$KV.{BUCKET}.{latest_key('*')}"
_PREFIX: Final = "workflow="


def workflow_of(rule_id: str) -> str | None:
    """Return the workflow whose schedule is this rule; None for any other rule."""
    name = rule_id.removeprefix(_PREFIX)
    return name if name != rule_id else None


def rule_of(name: str, runs: ScheduledRuns, since: float, revision: int) -> CompiledRule:
    """Return the rule that starts the workflow at its times after `since`, in Unix seconds."""
    action = RunAction.model_construct(agent=name, message="", input=runs.input)
    rule = Rule.model_construct(
        id=f"{_PREFIX}{name}",
        name=name,
        schedule=Schedule(cron=runs.cron, timezone=runs.timezone, catch_up_s=runs.catch_up_s),
        action=Action.model_construct(run=action),
    )
    record = RuleRecord.model_construct(
        rule=rule,
        uid=key_of(runs.tenant, runs.user_id)[:16],
        owner=Owner(user_id=runs.user_id, tenant=runs.tenant, roles=runs.roles, scopes=["start"]),
        since=since,
        created_at="",
        updated_at="",
    )
    return CompiledRule(record, revision, frozenset(), None, started_by=runs.started_by)


class ScheduledWorkflows:
    """The rules of all scheduled workflows, by their ids."""

    def __init__(self, bus: Bus, *, callers_known: bool) -> None:
        """With `callers_known`, workflows that were stored before callers were known are left
        out."""
        self._bus = bus
        self._callers_known = callers_known
        self._sequence = -1
        self._reading = asyncio.Lock()
        self.rules: Mapping[str, CompiledRule] = {}

    async def refresh(self) -> bool:
        """Read the pointers if one has changed; return whether one has. Raises BusError."""
        # two reads at once could end in the wrong order and restore old rules
        async with self._reading:
            last = await self._bus.tail(STREAM, POINTERS)
            sequence = last.sequence if last is not None else 0
            if sequence == self._sequence:
                return False
            self.rules, self._sequence = await self._read_all(), sequence
        return True

    async def _read_all(self) -> dict[str, CompiledRule]:
        found: dict[str, CompiledRule] = {}
        for entry in await self._bus.bucket(BUCKET).entries(latest_key("*")):
            name = entry.key.removeprefix(latest_key(""))
            try:
                latest = LatestWorkflow.model_validate_json(entry.value)
                runs = latest.schedule
                if runs is None or (self._callers_known and runs.user_id == ANONYMOUS_USER):
                    continue
                since = datetime.fromisoformat(latest.updated_at).timestamp()
                rule = rule_of(name, runs, since, entry.revision)
            except ValueError as error:
                log.error("the workflow %s starts no runs by its schedule: %s", name, error)
                continue
            found[rule.id] = rule
        return found
