"""The form of a rule, as people write it, and its checks. Pure.

A rule has a trigger (types of events, a schedule, or an inbound webhook), may have a condition, and
has an action. All models refuse unknown fields, so that a misspelt field is an error and not a rule
that does more than its author meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import (
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from penstock.events import CATALOGUE
from penstock.expressions import ExpressionError
from penstock.validation import Part, check_url, did_you_mean, reason_of
from penstock_automations.rules.actions import DecideAction, RunAction
from penstock_automations.rules.secrets import WRITE_ONLY, Secrets
from penstock_automations.rules.triggers import Hook, Schedule

_TYPES: Final = frozenset(CATALOGUE)
# The types that a pattern such as `llm.*` leaves out, because they have very many events and few
# rules want these events. A rule that wants such a type must name the type.
MANY: Final = frozenset({"llm.stream", "llm.tool_args"})
MAX_SUBJECTS = 50
MAX_TIMEOUT_S = 60.0

# the type of the only event that the action `decide` can answer
DECIDED: Final = "approval.requested"
# the event types for which a webhook may contain links, because the approval waits for people
LINKED: Final = frozenset({DECIDED, "approval.escalated"})
TRIGGERS: Final = ("subjects", "schedule", "hook")

# The words that no rule may have as its id, because they follow /v1/automations/ in other paths.
RESERVED: Final = frozenset({"deliveries", "endpoints", "hooks", "replay", "retry-now"})

_ID: Final = r"^[a-z0-9][a-z0-9_-]{0,62}$"
RuleId = Annotated[str, Field(pattern=_ID)]
_PATTERNS: Final = {_ID: "use up to 63 of a to z, 0 to 9, - and _, with a letter or a digit first"}


class BasicAuth(Part):
    """A user and a password, for HTTP basic authentication."""

    username: str = Field(description="The user; without a colon.", pattern=r"^[^:\r\n]*$")
    password: str = Field(
        description="The password. Penstock never shows it.", json_schema_extra=WRITE_ONLY
    )


class HeaderAuth(Part):
    """A header with a secret value."""

    name: str = Field(description="The header's name.", pattern=r"^[A-Za-z0-9-]{1,64}$")
    value: str = Field(
        description="The header's value. Penstock never shows it.",
        # No space is allowed at either end. h11 would refuse such a value with an error text that
        # contains the secret.
        pattern=r"^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$",
        json_schema_extra=WRITE_ONLY,
    )

    @field_validator("name")
    @classmethod
    def _is_free(cls, name: str) -> str:
        lower = name.lower()
        if lower in _OWN_HEADERS or lower.startswith(("webhook-", "penstock-")):
            raise ValueError(f"the header {name} is set by Penstock; choose another")
        return name


_OWN_HEADERS = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "connection", "user-agent"}
)


class WebhookAuth(Part):
    """The credentials that a webhook sends besides its signature. Exactly one field is set."""

    bearer: str | None = Field(
        None,
        description="A bearer token. Penstock never shows it.",
        pattern=r"^[\x21-\x7e]+$",
        json_schema_extra=WRITE_ONLY,
    )
    basic: BasicAuth | None = None
    header: HeaderAuth | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        present = [
            name for name in ("bearer", "basic", "header") if getattr(self, name) is not None
        ]
        if len(present) != 1:
            raise ValueError("give exactly one of bearer, basic and header")
        return self


class LinkFor(Part):
    """A person or a group that decides with a one-time link."""

    user: str | None = Field(None, min_length=1, max_length=256, description="The person.")
    role: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="The person's role; without `user`, the link is for a group.",
    )
    lifetime_s: float = Field(
        86_400.0, ge=1, le=30 * 86_400.0, description="Seconds for which the link is valid."
    )

    @model_validator(mode="after")
    def _somebody(self) -> Self:
        if self.user is None and self.role is None:
            raise ValueError("give user or role")
        return self


class Webhook(Part):
    """An HTTP request to a URL, signed as Standard Webhooks describes."""

    url: str = Field(description="The URL that gets a POST for each event.", max_length=2000)
    secrets: Secrets = Field(
        [],
        max_length=2,
        description="The signing secrets, `whsec_` and base64 of 24 to 64 bytes. Two while one "
        "replaces the other. Penstock never shows them; without any, it makes one.",
        json_schema_extra=WRITE_ONLY,
    )
    auth: WebhookAuth | None = None
    timeout_s: float = Field(
        15.0, ge=1, le=MAX_TIMEOUT_S, description="Seconds that one request may take."
    )
    expect: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="A text that a 2xx answer must contain in its first 64 KiB, or the attempt has "
        "failed. n8n answers 200 with an empty body when a node fails.",
    )
    concurrency: int = Field(
        4, ge=1, le=32, description="How many requests one process makes to the host at once."
    )
    rate_per_s: float | None = Field(
        None,
        gt=0,
        le=1000,
        description="How many requests per second one process makes to the host at most.",
    )

    links: list[LinkFor] = Field(
        [],
        max_length=10,
        description="One-time links to the approval, which the body gets as `links`. Only with the "
        "subjects `approval.requested` and `approval.escalated`, and for an owner with the scope "
        "`administer`.",
    )

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        check_url(url, "auth")
        return url


ActionKind = Literal["webhook", "run", "decide"]
ACTIONS: Final[tuple[ActionKind, ...]] = get_args(ActionKind)


class Action(Part):
    """What a rule does. Exactly one field is set."""

    webhook: Webhook | None = None
    run: RunAction | None = None
    decide: DecideAction | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(getattr(self, kind) is not None for kind in ACTIONS) != 1:
            raise ValueError(f"give exactly one action of {', '.join(ACTIONS)}")
        return self

    @property
    def kind(self) -> ActionKind:
        return next(kind for kind in ACTIONS if getattr(self, kind) is not None)


class Rule(Part):
    """One rule, as a file or a client gives it."""

    id: RuleId = Field(description="The rule's id: lower-case letters, digits, `-` and `_`.")
    name: str = Field("", max_length=200, description="The name that people see. Default: `id`.")
    schedule: Schedule | None = Field(None, description="The times at which the rule fires.")
    hook: Hook | None = Field(
        None, description="How callers of `POST /v1/hooks/{id}`, which fires the rule, are checked."
    )
    # This field comes after the other triggers, because its validator reads them.
    subjects: list[str] = Field(
        [],
        max_length=MAX_SUBJECTS,
        validate_default=True,
        description="The types of events: `category.action`, or `category.*` for all of a category "
        "except `llm.stream` and `llm.tool_args`. A rule has subjects, a schedule or a hook.",
    )
    where: str | None = Field(
        None,
        description="A condition in CEL over `event`, the canonical event with `type` added, or "
        "the firing of a schedule or hook. A condition that reads a missing field does not hold.",
    )
    action: Action
    payload: Literal["full", "reference"] = Field(
        "full",
        description="`full` sends the whole event, `reference` its ids and type only.",
    )
    order: Literal["none", "run"] = Field(
        "none",
        description="`run` delivers the events of a run one after another, in their order. A "
        "delivery that fails then holds up the later ones until it has its outcome.",
    )
    loops: bool = Field(
        False,
        description="Whether the rule also sees its own `automation.*` events and the events of "
        "runs that it started.",
    )
    enabled: bool = Field(True, description="Whether the trigger fires the rule.")

    @field_validator("id")
    @classmethod
    def _is_free(cls, rule_id: str) -> str:
        if rule_id in RESERVED:
            raise ValueError(f"{rule_id} is a path of the API; choose another id")
        return rule_id

    @field_validator("subjects")
    @classmethod
    def _are_known(cls, subjects: list[str], info: ValidationInfo) -> list[str]:
        for subject in subjects:
            types_of(subject)
        # if a field is missing here, its own validator has reported a problem
        if {"schedule", "hook"} <= info.data.keys():
            present = [bool(subjects), info.data["schedule"], info.data["hook"]]
            if sum(map(bool, present)) != 1:
                raise ValueError(f"give exactly one trigger of {', '.join(TRIGGERS)}")
        return subjects

    @field_validator("action")
    @classmethod
    def _has_an_approval(cls, action: Action, info: ValidationInfo) -> Action:
        if action.decide is not None and info.data.get("subjects") not in (None, [DECIDED]):
            raise ValueError(f"only a rule with the one subject {DECIDED} can decide")
        has_links = action.webhook is not None and bool(action.webhook.links)
        subjects = info.data.get("subjects")
        if has_links and subjects is not None and not (subjects and LINKED.issuperset(subjects)):
            text = "approval.requested or approval.escalated"
            raise ValueError(f"only a rule with no other subjects than {text} can have links")
        return action

    @field_validator("order")
    @classmethod
    def _has_runs(cls, order: str, info: ValidationInfo) -> str:
        if order == "run" and not info.data.get("subjects"):
            raise ValueError("only events of runs have an order; leave it out")
        return order

    @model_validator(mode="after")
    def _named(self) -> Self:
        self.name = self.name or self.id
        return self

    @property
    def trigger(self) -> Literal["subjects", "schedule", "hook"]:
        return "schedule" if self.schedule else "hook" if self.hook else "subjects"

    @property
    def types(self) -> frozenset[str]:
        """The types of events that the rule waits for; empty if the trigger is no event."""
        return frozenset[str]().union(*map(types_of, self.subjects))


def types_of(subject: str) -> frozenset[str]:
    """Return the types of events that match a subject of a rule.

    Raises:
        ValueError: there is no such type or category.
    """
    category, dot, action = subject.partition(".")
    if dot and action == "*":
        found = {type_ for type_ in _TYPES if type_.startswith(f"{category}.")} - MANY
    else:
        found = {subject} & _TYPES
    if not found:
        categories = ", ".join(sorted({type_.partition(".")[0] for type_ in _TYPES}))
        guess = did_you_mean(subject, _TYPES) or ";"
        raise ValueError(
            f"there are no events {subject!r}{guess} use category.action or category.*, with a "
            f"category of {categories}"
        )
    return frozenset(found)


_FIELDS: Final = {
    "": Rule.model_fields,
    "action": Action.model_fields,
    "action.webhook": Webhook.model_fields,
}


def fields_of(error: ValidationError) -> list[dict[str, Any]]:
    """Return the problems of a rule: each with its field, its reason and, if known, a position."""
    return [_problem(each) for each in error.errors(include_input=False, include_url=False)]


def _problem(each: Mapping[str, Any]) -> dict[str, Any]:
    cause = each.get("ctx", {}).get("error")
    reason = reason_of(each)
    if each["type"] == "string_pattern_mismatch":
        reason = _PATTERNS.get(each["ctx"]["pattern"], reason)
    elif each["type"] == "extra_forbidden":
        *parents, name = map(str, each["loc"])
        reason += did_you_mean(name, _FIELDS.get(".".join(parents), ()))
    problem: dict[str, Any] = {
        "field": ".".join(str(step) for step in each["loc"]),
        "reason": reason,
    }
    if isinstance(cause, ExpressionError) and cause.position is not None:
        position = cause.position
        problem |= {"reason": cause.reason, "line": position.line, "column": position.column}
    return problem
