"""Defines the actions of a rule: a webhook, a run, a decision. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Self, get_args

import orjson
from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from penstock import start_fields
from penstock.expressions import ExpressionError, Template
from penstock.start_fields import Tags
from penstock.validation import (
    HEADER_NAME,
    MAX_HEADERS,
    Part,
    check_header,
    check_headers_differ,
    check_url,
    is_own_header,
    with_mistakes,
)
from penstock_automations.guard import AddressRefused
from penstock_automations.rules.draft import draft_of
from penstock_automations.rules.secrets import WRITE_ONLY, Secrets

VARIABLES: Final = ("event",)
# The variables of a webhook's body. `links` has the one-time links of the webhook.
BODY_VARIABLES: Final = ("event", "links")
MAX_INPUT_BYTES: Final = 16 * 1024
MAX_INPUT_TEXTS: Final = 100
MAX_INPUT_DEPTH: Final = 20
MAX_FILLED_BYTES: Final = 256 * 1024
MAX_TIMEOUT_S: Final = 60.0
_NO_WORKFLOW: Final = (
    "a rule starts a stored workflow through an agent of the configuration with protocol: workflow"
)
MAX_HEADER_BYTES: Final = 4096
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def _is_template(text: str) -> str:
    Template.compile(text, VARIABLES)
    return text


def _is_input(value: dict[str, Any]) -> dict[str, Any]:
    _check_json(value, "input", VARIABLES)
    return value


def _is_body(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, dict | list):
        raise ValueError("must be an object or a list")
    _check_json(value, "body", BODY_VARIABLES)
    return value


def _check_json(value: Any, name: str, variables: Sequence[str]) -> None:
    """Raise ValueError unless the value is small JSON, and each text in it a template."""
    try:
        size = len(orjson.dumps(value))
    except TypeError as error:
        raise ValueError(f"the {name} is not JSON: {error}") from None
    if size > MAX_INPUT_BYTES:
        raise ValueError(f"the {name} has at most {MAX_INPUT_BYTES} bytes")
    texts = 0
    mistakes: list[tuple[Place, ValueError]] = []

    def check(text: str, place: Place) -> str:
        nonlocal texts
        texts += 1
        if texts > MAX_INPUT_TEXTS:
            raise ValueError(f"the {name} has at most {MAX_INPUT_TEXTS} texts")
        try:
            Template.compile(text, variables)
        except ExpressionError as error:
            mistakes.append((place, error))
        return text

    _mapped(value, check)
    with_mistakes(value, lambda same: same, mistakes)


def _is_header(name: str) -> str:
    check_header(name, "auth")
    return name


def _is_one_line(text: str) -> str:
    if _CONTROL.search(text):
        raise ValueError("a header is one line, without control characters")
    return text


Place = tuple[int | str, ...]  # of a text in a JSON value
TemplateText = Annotated[str, AfterValidator(_is_template)]
HeaderName = Annotated[str, Field(pattern=HEADER_NAME), AfterValidator(_is_header)]
HeaderText = Annotated[TemplateText, AfterValidator(_is_one_line)]


def _not_one(
    value: Any, names: Sequence[str], what: str = ""
) -> Iterator[tuple[Place, ValueError]]:
    """Yield a mistake unless exactly one of the fields is set."""
    if isinstance(value, dict) and sum(value.get(name) is not None for name in names) != 1:
        yield (), ValueError(f"give exactly one {what}of {', '.join(names)}")


class BasicAuth(Part):
    """A user and a password, for HTTP basic authentication."""

    username: str = Field(description="The user; without a colon.", pattern=r"^[^:\r\n]*$")
    password: str = Field(
        description="The password. Penstock never shows it.", json_schema_extra=WRITE_ONLY
    )


class HeaderAuth(Part):
    """A header with a secret value."""

    name: str = Field(description="The header's name.", pattern=HEADER_NAME)
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
        if is_own_header(name):
            raise ValueError(f"the header {name} is set by Penstock; choose another")
        return name


class QueryAuth(Part):
    """A parameter of the URL with a secret value, such as the signature in a URL of Teams."""

    name: str = Field(description="The parameter's name.", pattern=r"^[A-Za-z0-9_.~-]{1,64}$")
    value: str = Field(
        description="The parameter's value, as it is before it is encoded for a URL. Penstock "
        "never shows it.",
        pattern=r"^[\x21-\x7e]{1,512}$",
        json_schema_extra=WRITE_ONLY,
    )


_CREDENTIALS: Final = ("bearer", "basic", "header", "query")


def _wrong_credentials(auth: Any) -> Iterator[tuple[Place, ValueError]]:
    if not isinstance(auth, dict):
        return
    present = [name for name in _CREDENTIALS if auth.get(name) is not None]
    if not present:
        yield (), ValueError(f"give one of {', '.join(_CREDENTIALS)}")
    header = auth.get("header")
    name = str(header.get("name")) if isinstance(header, dict) else ""
    same = [each for each in present if each in ("bearer", "basic")]
    if len(same) + (name.lower() == "authorization") > 1:
        reason = "give bearer, basic or the header Authorization: they are the same"
        yield (), ValueError(reason)


class WebhookAuth(Part):
    """The credentials that a webhook sends besides its signature: `bearer` or `basic`, a header of
    another name, and a parameter of the URL."""

    bearer: str | None = Field(
        None,
        description="A bearer token. Penstock never shows it.",
        pattern=r"^[\x21-\x7e]+$",
        json_schema_extra=WRITE_ONLY,
    )
    basic: BasicAuth | None = None
    header: HeaderAuth | None = None
    query: QueryAuth | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _some(cls, value: Any, validate: Callable[[Any], Self]) -> Self:
        return with_mistakes(value, validate, _wrong_credentials(value))


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

    url: str = Field(description="The URL that gets a request for each event.", max_length=2000)
    method: Literal["POST", "PUT", "PATCH", "DELETE", "GET"] = Field(
        "POST", description="The method of the request. A `GET` has no body."
    )
    headers: dict[HeaderName, HeaderText] = Field(
        {},
        max_length=MAX_HEADERS,
        description="Further headers, whose values may have placeholders. Penstock shows them, so "
        "a secret belongs into `auth`.",
    )
    body: Annotated[Any, AfterValidator(_is_body)] = Field(
        None,
        description="The JSON of the request, an object or a list, in place of the event. Its "
        "texts may have placeholders, into `event` and `links`; a text that is one placeholder "
        "alone becomes the value itself.",
    )
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
        "subjects `approval.requested`, `approval.escalated` and `approval.reminded`, and for an "
        "owner with the scope `administer`.",
    )

    @field_validator("headers")
    @classmethod
    def _are_different(cls, headers: dict[str, str]) -> dict[str, str]:
        check_headers_differ(headers)
        return headers

    @field_validator("body")
    @classmethod
    def _has_method(cls, body: Any, info: ValidationInfo) -> Any:
        if body is not None and info.data.get("method") == "GET":
            raise ValueError("a GET has no body; choose another method")
        return body

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: str, info: ValidationInfo) -> str:
        check_url(url, "auth")
        draft = draft_of(info)
        if draft is not None and draft.guard is not None:
            try:
                draft.guard.check_url(url)
            except AddressRefused as error:
                raise ValueError(str(error)) from None
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

    @field_validator("agent")
    @classmethod
    def _is_agent(cls, agent: str, info: ValidationInfo) -> str:
        draft = draft_of(info)
        if draft is not None and draft.config is not None and draft.config.agent(agent) is None:
            raise ValueError(f"{draft.config.no_agent(agent)}; {_NO_WORKFLOW}")
        return agent

    @field_validator("input")
    @classmethod
    def _is_accepted(
        cls, value: dict[str, Any] | None, info: ValidationInfo
    ) -> dict[str, Any] | None:
        """Check the input for the agent. One with placeholders is checked when they are filled."""
        draft = draft_of(info)
        if draft is None or draft.config is None or value is None or b"{{" in orjson.dumps(value):
            return value
        agent = draft.config.agent(info.data.get("agent", ""))
        if agent is not None:
            start_fields.accepted_input(agent.protocol, agent.accepts, value)
        return value


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

    @model_validator(mode="wrap")
    @classmethod
    def _one(cls, value: Any, validate: Callable[[Any], Self]) -> Self:
        return with_mistakes(value, validate, _not_one(value, ACTIONS, "action "))

    @property
    def kind(self) -> ActionKind:
        return next(kind for kind in ACTIONS if getattr(self, kind) is not None)


def filled(text: str, event: Mapping[str, Any]) -> str:
    """Return a text of an action with the event's values in place of the placeholders. Raises
    ExpressionError if the event lacks a field of a placeholder, or the text is too large."""
    return Template.compile(text, VARIABLES).fill({"event": event})


def filled_header(text: str, event: Mapping[str, Any]) -> str:
    """Return the value of a header. Line ends and other control characters, with which a text of a
    user could begin another header, become a space. Raises as `filled`."""
    return one_line(Template.compile(text, VARIABLES).fill({"event": event}, MAX_HEADER_BYTES))


def one_line(text: str) -> str:
    return _CONTROL.sub(" ", text).strip()


def filled_json(value: Any, data: Mapping[str, Any]) -> Any:
    """Return the input of a run or the body of a webhook with its placeholders filled. `data` has
    the values of the variables. Raises as `filled`."""

    def fill(text: str, place: Place) -> Any:
        try:
            return Template.compile(text, data.keys()).value(data)
        except ExpressionError as error:
            path = ".".join(map(str, place))
            raise type(error)(f"{path}: {error.reason}", error.position) from None

    found = _mapped(value, fill)
    if len(orjson.dumps(found)) > MAX_FILLED_BYTES:
        raise ExpressionError(f"the JSON would be larger than {MAX_FILLED_BYTES} bytes")
    return found


def _mapped(value: Any, change: Callable[[str, Place], Any], place: Place = ()) -> Any:
    """Return the value with `change` applied to each text in it, but not to names of fields.
    `change` gets the text's place, too."""
    if len(place) > MAX_INPUT_DEPTH:
        raise ValueError(f"the input is nested at most {MAX_INPUT_DEPTH} deep")
    match value:
        case str():
            return change(value, place)
        case dict():
            return {name: _mapped(each, change, (*place, name)) for name, each in value.items()}
        case list():
            return [_mapped(each, change, (*place, n)) for n, each in enumerate(value)]
        case _:
            return value
