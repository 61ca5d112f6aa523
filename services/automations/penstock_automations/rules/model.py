"""The form of a rule, as people write it, and its checks. Pure.

A rule has a trigger (types of events, a schedule, or an inbound webhook), may have a condition, and
has an action. All models refuse unknown fields, so that a misspelt field is an error and not a rule
that does more than its author meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from penstock.documents.cron import Cron, check_timezone
from penstock.events import CATALOGUE
from penstock.expressions import Conditions, ExpressionError
from penstock.validation import Part, did_you_mean, with_mistakes
from penstock_automations.rules.actions import Action
from penstock_automations.rules.draft import draft_of
from penstock_automations.rules.fields import unknown_in_templates, unknown_reads
from penstock_automations.rules.secrets import WRITE_ONLY, check_secret, check_text

_TYPES: Final = frozenset(CATALOGUE)
# The types that a pattern such as `llm.*` leaves out, because they have very many events and few
# rules want these events. A rule that wants such a type must name the type.
MANY: Final = frozenset({"llm.stream", "llm.tool_args"})
MAX_SUBJECTS = 50
MAX_CATCH_UP_S: Final = 7 * 86400.0

# the type of the only event that the action `decide` can answer
DECIDED: Final = "approval.requested"
# the event types for which a webhook may contain links, because the approval waits for people
LINKED: Final = (DECIDED, "approval.escalated", "approval.reminded")
TRIGGERS: Final = ("subjects", "schedule", "hook")
CONDITIONS: Final = Conditions(["event"])

# The words that no rule may have as its id, because they follow /v1/automations/ in other paths.
RESERVED: Final = frozenset({"deliveries", "dry-run", "endpoints", "hooks", "replay", "retry-now"})

_ID: Final = r"^[a-z0-9][a-z0-9_-]{0,62}$"
RuleId = Annotated[str, Field(pattern=_ID)]
PATTERNS: Final = {_ID: "use up to 63 of a to z, 0 to 9, - and _, with a letter or a digit first"}
# A token must be too long to be guessed: 24 characters of base64 have 144 bits.
Token = Annotated[str, Field(min_length=24, max_length=512, pattern=r"^[\x21-\x7e]+$")]


Signature = Literal["standard", "github", "stripe"]
RetryDelay = Annotated[float, Field(ge=1, le=86_400)]


class Schedule(Part):
    """A trigger at the times of a cron expression."""

    cron: str = Field(
        max_length=200,
        description="A cron expression of five fields: minute, hour, day of the month, month, day "
        "of the week. So the shortest interval is one minute. Names such as `mon-fri` are allowed.",
    )
    timezone: str = Field(
        "UTC",
        max_length=100,
        description="The time zone of the expression, by its name in the IANA database.",
    )
    catch_up_s: float = Field(
        3600.0,
        ge=60,
        le=MAX_CATCH_UP_S,
        description="How late a time may be fired, in seconds, if no service could fire it in "
        "time. Of several missed times, only the latest is fired.",
    )

    @field_validator("cron")
    @classmethod
    def _has_times(cls, cron: str) -> str:
        Cron.parse(cron, "UTC")  # whether there are times does not depend on the time zone
        return cron

    @field_validator("timezone")
    @classmethod
    def _is_known(cls, timezone: str) -> str:
        check_timezone(timezone)
        return timezone

    @property
    def times(self) -> Cron:
        return Cron(self.cron, self.timezone)


class Hook(Part):
    """A trigger by a request to `POST /v1/hooks/{id}`, which is signed or has a token."""

    signature: Signature = Field(
        "standard",
        description="How callers sign: as Standard Webhooks describes, or as `github` or `stripe` "
        "do.",
    )
    secrets: list[str] = Field(
        [],
        max_length=2,
        description="The secrets of callers that sign: `whsec_` and base64 of 24 to 64 bytes. With "
        "`github` and `stripe`, 16 to 512 printable characters. Two while one replaces the other. "
        "Penstock never shows them; without secrets and tokens, it makes a secret.",
        json_schema_extra=WRITE_ONLY,
    )
    tokens: list[Token] = Field(
        [],
        max_length=2,
        description="Tokens of callers that cannot sign, in place of secrets: 24 to 512 printable "
        "characters, sent as `Authorization: Bearer`. Two while one replaces the other. Penstock "
        "never shows them.",
        json_schema_extra=WRITE_ONLY,
    )
    token_in_url: bool = Field(
        False,
        description="Whether the token may also come as `?token=`, for callers that cannot set "
        "headers. Proxies may write URLs into their logs. Without tokens, Penstock makes one.",
    )
    rate_per_s: float = Field(
        10.0,
        gt=0,
        le=1000,
        description="How many accepted requests per second one process takes at most; a burst may "
        "have one second's requests.",
    )

    @field_validator("secrets")
    @classmethod
    def _are_secrets(cls, secrets: list[str], info: ValidationInfo) -> list[str]:
        check = check_secret if info.data.get("signature") == "standard" else check_text
        return with_mistakes(secrets, list, _refused(check, secrets))

    @model_validator(mode="wrap")
    @classmethod
    def _one_way(cls, value: Any, validate: Callable[[Any], Self]) -> Self:
        return with_mistakes(value, validate, _ways(value))


def _refused(
    check: Callable[[str], str], secrets: list[str]
) -> Iterator[tuple[tuple[int, ...], ValueError]]:
    for number, secret in enumerate(secrets):
        try:
            check(secret)
        except ValueError as error:
            yield (number,), error


def _ways(hook: Any) -> Iterator[tuple[tuple[str, ...], ValueError]]:
    if not isinstance(hook, dict):
        return
    if hook.get("signature", "standard") != "standard" and hook.get("tokens"):
        yield (), ValueError("a request with a token has no signature: leave `signature` out")
    if not hook.get("secrets"):
        return
    if hook.get("tokens"):
        reason = "give secrets or tokens, not both: with a token, nobody needs to sign"
        yield (), ValueError(reason)
    elif hook.get("token_in_url"):
        yield (), ValueError("token_in_url is for tokens; give tokens in place of secrets")


def _is_known(subject: str) -> str:
    types_of(subject)
    return subject


Subject = Annotated[str, AfterValidator(_is_known)]


class Rule(Part):
    """One rule, as a file or a client gives it."""

    id: RuleId = Field(description="The rule's id: lower-case letters, digits, `-` and `_`.")
    name: str = Field("", max_length=200, description="The name that people see. Default: `id`.")
    schedule: Schedule | None = Field(None, description="The times at which the rule fires.")
    hook: Hook | None = Field(
        None, description="How callers of `POST /v1/hooks/{id}`, which fires the rule, are checked."
    )
    # This field comes after the other triggers, because its validator reads them.
    subjects: list[Subject] = Field(
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
    payload: Literal["full", "reference", "a2a"] = Field(
        "full",
        description="`full` sends the whole event, `reference` its ids and type only, `a2a` what "
        "the event is as a push notification of A2A.",
    )
    order: Literal["none", "run"] = Field(
        "none",
        description="`run` delivers the events of a run one after another, in their order. A "
        "delivery that fails then holds up the later ones until it has its outcome.",
    )
    retry_delays_s: list[RetryDelay] | None = Field(
        None,
        max_length=20,
        description="Seconds between the attempts of a delivery, each varied by up to a tenth; an "
        "empty list for one attempt. Default: `PENSTOCK_RETRY_DELAYS_S`.",
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
    def _is_one_trigger(cls, subjects: list[str], info: ValidationInfo) -> list[str]:
        # if a field is missing here, its own validator has reported a problem
        if {"schedule", "hook"} <= info.data.keys():
            present = [bool(subjects), info.data["schedule"], info.data["hook"]]
            if sum(map(bool, present)) != 1:
                raise ValueError(f"give exactly one trigger of {', '.join(TRIGGERS)}")
        return subjects

    @field_validator("where")
    @classmethod
    def _is_condition(cls, where: str | None, info: ValidationInfo) -> str | None:
        draft = draft_of(info)
        if draft is None or where is None:
            return where
        mistakes = []
        for mistake, is_warning in unknown_reads(
            CONDITIONS.compile(where).fields, types_in(info.data)
        ):
            if is_warning:
                draft.warnings.append(problem_in("where", mistake))
            else:
                mistakes.append(((), mistake))
        return with_mistakes(where, str, mistakes)

    @field_validator("action", mode="wrap")
    @classmethod
    def _reads_fields(
        cls, value: Any, validate: Callable[[Any], Action], info: ValidationInfo
    ) -> Action:
        if draft_of(info) is None:
            return validate(value)
        return with_mistakes(value, validate, unknown_in_templates(value, types_in(info.data)))

    @field_validator("action")
    @classmethod
    def _has_an_approval(cls, action: Action, info: ValidationInfo) -> Action:
        if action.decide is not None and info.data.get("subjects") not in (None, [DECIDED]):
            raise ValueError(f"only a rule with the one subject {DECIDED} can decide")
        has_links = action.webhook is not None and bool(action.webhook.links)
        subjects = info.data.get("subjects")
        if has_links and subjects is not None and not (subjects and set(subjects) <= set(LINKED)):
            text = " or ".join(LINKED)
            raise ValueError(f"only a rule with no other subjects than {text} can have links")
        return action

    @field_validator("payload")
    @classmethod
    def _has_events(cls, payload: str, info: ValidationInfo) -> str:
        if payload == "a2a" and not info.data.get("subjects"):
            raise ValueError("only events of runs can be sent as A2A; leave it out")
        return payload

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


def types_in(fields: dict[str, Any]) -> frozenset[str]:
    """Return the types of events, or of the trigger, that a rule with these fields acts on; none if
    a field has a mistake."""
    if not {"subjects", "schedule", "hook"} <= fields.keys():
        return frozenset()
    types = frozenset[str]().union(*map(types_of, fields["subjects"]))
    if fields["schedule"] is not None:
        types |= {"schedule.fired"}
    return types | {"hook.received"} if fields["hook"] is not None else types


def problem_in(field: str, error: ExpressionError) -> dict[str, Any]:
    """Return a mistake in a text of a rule: the field, the reason and, if known, the position."""
    problem: dict[str, Any] = {"field": field, "reason": error.reason}
    if error.position is not None:
        problem |= {"line": error.position.line, "column": error.position.column}
    return problem


def types_of(subject: str) -> frozenset[str]:
    """Return the types of events that match a subject of a rule. Raises ValueError for none."""
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
