"""The bodies that clients send, the rules as clients see them, and their documentation. Pure."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from penstock.validation import Part
from penstock.web.operation import (
    FLAG,
    OBJECT,
    TEXT,
    Json,
    Parameter,
    a_list,
    an_object,
    json,
    one_of,
)
from penstock_automations.rules.hidden import with_hidden_secrets
from penstock_automations.rules.model import Rule
from penstock_automations.rules.records import RuleRecord
from penstock_automations.rules.secrets import WRITE_ONLY

IF_MATCH: Final = Parameter(
    "If-Match",
    "The ETag of the rule that the caller has read. If the rule has changed since, the answer is "
    "412, and nothing changes.",
    location="header",
)
RULE: Final[Json] = an_object(
    id=TEXT,
    name=TEXT,
    action=OBJECT,
    enabled=FLAG,
    all_users=FLAG,
    version={"type": "integer"},
    owner=an_object(user_id=TEXT, tenant=TEXT, roles=a_list(TEXT), scopes=a_list(TEXT)),
    source=one_of(("api", "file")),
    paused={"type": ["object", "null"]},
    created_at=TEXT,
    updated_at=TEXT,
) | {"description": "`next_times`: the next times of a schedule, unless the rule is paused"}
MADE: Final[Json] = {
    "type": "object",
    "description": "Secrets that the server has made, by the part of the rule that has them. No "
    "other answer shows them.",
    "additionalProperties": TEXT,
}
WARNINGS: Final[Json] = {
    "type": "array",
    "description": "What may be a mistake, such as a field that only the condition itself names",
    "items": {
        "type": "object",
        "required": ["field", "message"],
        "properties": {
            "field": TEXT,
            "message": TEXT,
            "line": {"type": "integer"},
            "column": {"type": "integer"},
        },
    },
}
RULE_AND_SECRETS: Final[Json] = {
    "allOf": [
        RULE,
        {"type": "object", "properties": {"new_secrets": MADE, "warnings": WARNINGS}},
    ]
}
ACT_AS: Final = (
    "for all_users, unless the caller has administer; and to write another user's rule, which also "
    "needs administer"
)
CHANGED: Final = json("The rule", RULE_AND_SECRETS)


_SHOWN: Final = frozenset({"version", "owner", "source", "paused", "created_at", "updated_at"})
# Fields that only the server sets. If a client sends these fields back with a rule, the server
# ignores them.
READ_ONLY: Final = _SHOWN | {"new_secrets", "next_times", "warnings"}
EXAMPLE: Final = {
    "id": "ask-n8n",
    "subjects": ["approval.requested"],
    "action": {"webhook": {"url": "https://n8n.example.com/webhook/x"}},
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
        return Rule.model_validate(self.model_dump(exclude={"all_users"}))


class PauseBody(Part):
    """Why a rule is paused."""

    reason: str = Field("", max_length=500, description="The reason, for people.")


class RotateBody(Part):
    """A new secret."""

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
    fields = record.model_dump(mode="json", include={*_SHOWN, "all_users"})
    return with_hidden_secrets(record.rule) | fields


def without_read_only(value: Any) -> Any:
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
