"""The record of a rule in KV `rules`, and the compiled form that matching uses. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from penstock.bus.records.base import Record
from penstock.documents.cron import Cron
from penstock.expressions import Condition, ExpressionError
from penstock.turns import TenantUser
from penstock_automations.rules.model import CONDITIONS, Rule


class Pause(Record):
    """Why a rule does nothing for now."""

    reason: str
    by: str
    at: str


class Owner(Record):
    """The maker of a rule, with the rights that it had then. A rule acts with these rights only.

    A rule of a file that names no user has an empty `user_id`: it is the operator's, and has all
    scopes.
    """

    user_id: str
    tenant: str = Field("", description="Empty without one")
    roles: list[str] = Field([])
    scopes: list[str] = Field([])

    @property
    def user(self) -> TenantUser:
        return TenantUser(self.tenant, self.user_id)

    def has_scope(self, scope: str) -> bool:
        return scope in self.scopes


class RuleRecord(Record):
    """KV `rules`, key rule id. It holds the rule's secrets; no API shows them."""

    rule: Rule
    uid: str = Field(description="Tells the rule from an earlier rule with the same id")
    owner: Owner = Field(description="The user with whose rights the rule acts")
    all_users: bool = Field(False, description="Whether the rule sees the runs of all users")
    version: int = 1
    source: Literal["api", "file"] = "api"
    begins: dict[str, int] = Field(
        {}, description="For each stream of events, the last sequence that the rule does not see"
    )
    since: float = Field(
        0.0,
        description="When the rule's schedule came into force, Unix seconds. Earlier times, such "
        "as those of a pause, are not fired",
    )
    paused: Pause | None = None
    created_at: str
    updated_at: str

    @property
    def is_active(self) -> bool:
        return self.rule.enabled and self.paused is None

    @property
    def times(self) -> Cron | None:
        """The times of the rule's schedule; None without a schedule or for an inactive rule."""
        schedule = self.rule.schedule
        return schedule.times if schedule is not None and self.is_active else None

    def has_rights_of(self, owner: Owner, *, all_users: bool) -> bool:
        """Return whether a rule with this owner and `all_users` would see the same runs."""
        return (self.owner.user_id, self.all_users) == (owner.user_id, all_users)


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """A rule with its compiled condition. `trouble` says why a stored rule cannot be compiled."""

    record: RuleRecord
    revision: int
    types: frozenset[str]
    condition: Condition | None
    trouble: str | None = None
    started_by: Sequence[str] = ()  # who else is behind the runs that a schedule starts

    @property
    def id(self) -> str:
        return self.record.rule.id

    @property
    def is_ordered(self) -> bool:
        return self.record.rule.order == "run"

    @property
    def matches_now(self) -> bool:
        return self.record.is_active

    def waits_for_event(self, type_: str, stream: str, sequence: int) -> bool:
        return (
            self.matches_now
            and type_ in self.types
            and sequence > self.record.begins.get(stream, 0)
        )


def compile_rule(record: RuleRecord, revision: int) -> CompiledRule:
    """Return the compiled rule. A condition that cannot be compiled fails at each event. A rule is
    checked before it is stored, so this happens only if a later version allows fewer expressions.
    """
    condition, trouble = None, None
    if record.rule.where is not None:
        try:
            condition = CONDITIONS.compile(record.rule.where)
        except ExpressionError as error:
            trouble = f"the condition cannot be compiled: {error}"
    return CompiledRule(record, revision, record.rule.types, condition, trouble)


def event_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of the variable `event` in conditions: the event with its `type`."""
    name = body["event"]
    return {**body, "type": f"{name['category']}.{name['action']}"}
