"""The bodies that clients send, and the rules as clients see them. Pure."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from penstock_automations.rules.hidden import with_hidden_secrets
from penstock_automations.rules.model import Rule
from penstock_automations.rules.records import RuleRecord
from penstock_automations.rules.secrets import WRITE_ONLY

# Fields that only the server sets. If a client sends these fields back with a rule, the server
# ignores them.
READ_ONLY: Final = frozenset(
    {
        "version",
        "owner",
        "source",
        "paused",
        "created_at",
        "updated_at",
        "new_secrets",
        "next_times",
    }
)
EXAMPLE: Final = {
    "id": "ask-slack",
    "subjects": ["approval.requested"],
    "action": {"webhook": {"url": "https://hooks.example.com/penstock"}},
}


class ApiRule(Rule):
    """A rule as a client gives it."""

    all_users: bool | None = Field(
        None,
        description="Whether the rule sees the runs of all users, which needs the scope act-as or "
        "administer. Default: whether the caller may see them.",
    )

    @property
    def plain(self) -> Rule:
        """The rule without the field `all_users`."""
        return Rule.model_validate(self.model_dump(exclude={"all_users"}))


class PauseBody(BaseModel):
    """Why a rule is paused."""

    model_config = ConfigDict(extra="forbid")

    reason: str = Field("", max_length=500, description="The reason, for people.")


class RotateBody(BaseModel):
    """A new secret."""

    model_config = ConfigDict(extra="forbid")

    of: Literal["webhook", "hook"] = Field(
        "webhook",
        description="Whether the secret signs the rule's webhooks, or checks the callers of its "
        "hook.",
    )
    secret: str | None = Field(
        None,
        max_length=512,
        description="The new secret. Without it, Penstock makes one, and shows it in this answer "
        "only.",
        json_schema_extra=WRITE_ONLY,
    )


def shown_rule(record: RuleRecord) -> dict[str, Any]:
    """Return the rule as clients see it, without its secrets."""
    fields = {"owner", "version", "source", "all_users", "paused", "created_at", "updated_at"}
    return with_hidden_secrets(record.rule) | record.model_dump(mode="json", include=fields)


def without_read_only(value: Any) -> Any:
    """Return a client's JSON without the fields that only the server sets."""
    if not isinstance(value, dict):
        return value
    return {name: each for name, each in value.items() if name not in READ_ONLY}


def merged(target: Any, patch: Any) -> Any:
    """Return JSON changed by a merge patch (RFC 7396): null removes a field."""
    if not isinstance(patch, dict):
        return patch
    found = dict(target) if isinstance(target, dict) else {}
    for name, each in patch.items():
        if each is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), each)
    return found
