"""Describes rules, and the parameters of their routes, for the OpenAPI document."""

from __future__ import annotations

from typing import Final

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
    owner=an_object(user_id=TEXT, roles=a_list(TEXT), scopes=a_list(TEXT)),
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
RULE_AND_SECRETS: Final[Json] = {
    "allOf": [RULE, {"type": "object", "properties": {"new_secrets": MADE}}]
}
ACT_AS: Final = (
    "for all_users, unless the caller has administer; and to write another user's rule, which also "
    "needs administer"
)
CHANGED: Final = json("The rule", RULE_AND_SECRETS)
