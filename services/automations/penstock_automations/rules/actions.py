"""Defines the actions of a rule: a webhook, a run, a decision. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, Self, get_args

import orjson
from pydantic import AfterValidator, Field, field_validator, model_validator

from penstock.expressions import ExpressionError, Template
from penstock.start_fields import Tags
from penstock.validation import Part, check_url
from penstock_automations.rules.secrets import WRITE_ONLY, Secrets

VARIABLES: Final = ("event",)
MAX_INPUT_BYTES: Final = 16 * 1024
MAX_INPUT_TEXTS: Final = 100
MAX_INPUT_DEPTH: Final = 20
MAX_FILLED_BYTES: Final = 256 * 1024
MAX_TIMEOUT_S: Final = 60.0
_OWN_HEADERS: Final = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "connection", "user-agent"}
)


def _is_template(text: str) -> str:
    Template.compile(text, VARIABLES)
    return text


def _is_input(value: dict[str, Any]) -> dict[str, Any]:
    try:
        size = len(orjson.dumps(value))
    except TypeError as error:
        raise ValueError(f"the input is not JSON: {error}") from None
    if size > MAX_INPUT_BYTES:
        raise ValueError(f"the input has at most {MAX_INPUT_BYTES} bytes")
    texts = 0

    def check(text: str) -> str:
        nonlocal texts
        texts += 1
        if texts > MAX_INPUT_TEXTS:
            raise ValueError(f"the input has at most {MAX_INPUT_TEXTS} texts")
        return _is_template(text)

    _mapped(value, check)
    return value


TemplateText = Annotated[str, AfterValidator(_is_template)]


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


class WebhookAuth(Part):
    """The credentials that a webhook sends besides its signature: `bearer` or `basic`, and a header
    of another name."""

    bearer: str | None = Field(
        None,
        description="A bearer token. Penstock never shows it.",
        pattern=r"^[\x21-\x7e]+$",
        json_schema_extra=WRITE_ONLY,
    )
    basic: BasicAuth | None = None
    header: HeaderAuth | None = None

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.bearer is None and self.basic is None and self.header is None:
            raise ValueError("give bearer, basic or header")
        is_header = self.header is not None and self.header.name.lower() == "authorization"
        if (self.bearer is not None) + (self.basic is not None) + is_header > 1:
            raise ValueError("give bearer, basic or the header Authorization: they are the same")
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


class RunAction(Part):
    """Starts a run of the rule's owner. Texts may have placeholders: `{{ event.data.tool }}`."""

    agent: str = Field(
        pattern=r"^[A-Za-z0-9_.-]{1,128}$", description="The id of the agent in the configuration."
    )
    message: TemplateText = Field(
        min_length=1, description="The message for the agent, a text with placeholders."
    )
    session_id: TemplateText | None = Field(
        None,
        min_length=1,
        description="The owner's session that the run belongs to, a text with placeholders. "
        "Without it, each run has a session of its own.",
    )
    input: Annotated[dict[str, Any], AfterValidator(_is_input)] | None = Field(
        None,
        description="Further fields for the agent, as in `POST /v1/runs`. Its texts may have "
        "placeholders; a text that is one placeholder alone becomes the value itself.",
    )
    tags: Tags | None = None

    @property
    def has_placeholders_in_input(self) -> bool:
        return b"{{" in orjson.dumps(self.input)


class DecideAction(Part):
    """Decides all items of an approval, with the rights of the rule's owner."""

    decision: Literal["approve", "reject"] = Field(description="The decision of every item.")
    note: TemplateText | None = Field(
        None, min_length=1, description="A note for the record, a text with placeholders."
    )


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


def filled(text: str, event: Mapping[str, Any]) -> str:
    """Return a text of an action with the event's values in place of the placeholders. Raises
    ExpressionError if the event lacks a field of a placeholder, or the text is too large."""
    return Template.compile(text, VARIABLES).fill({"event": event})


def filled_input(value: Mapping[str, Any] | None, event: Mapping[str, Any]) -> Any:
    """Return the input of a run with its placeholders filled. Raises as `filled`."""
    data = {"event": event}
    found = _mapped(value, lambda text: Template.compile(text, VARIABLES).value(data))
    if len(orjson.dumps(found)) > MAX_FILLED_BYTES:
        raise ExpressionError(f"the input would be larger than {MAX_FILLED_BYTES} bytes")
    return found


def _mapped(value: Any, change: Callable[[str], Any], path: tuple[str, ...] = ()) -> Any:
    """Return the value with `change` applied to each text in it, but not to names of fields. The
    error for a text that `change` refuses names the text's path."""
    if len(path) > MAX_INPUT_DEPTH:
        raise ValueError(f"the input is nested at most {MAX_INPUT_DEPTH} deep")
    match value:
        case str():
            try:
                return change(value)
            except ExpressionError as error:
                raise type(error)(f"{'.'.join(path)}: {error.reason}", error.position) from None
        case dict():
            return {name: _mapped(each, change, (*path, name)) for name, each in value.items()}
        case list():
            return [_mapped(each, change, (*path, str(n))) for n, each in enumerate(value)]
        case _:
            return value
