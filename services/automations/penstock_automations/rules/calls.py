"""Makes rules from calls of workflows, so that a call is delivered like the webhook of a rule.

Anybody who may write a workflow chooses the URL and the body of its calls. So each secret of the
operator names the hosts that may get its signature and its credentials. Without this limit, a
workflow could have a text signed for a receiver that trusts the secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator

from penstock.runs.calls import CALLS, CallJob
from penstock.settings import ConfigurationError
from penstock.turns import TenantUser
from penstock.validation import MAX_HEADERS, Part, check_header, check_headers_differ
from penstock_automations.rules.actions import MAX_HEADER_BYTES, Action, Webhook, WebhookAuth
from penstock_automations.rules.check import problems_of
from penstock_automations.rules.file import read_list
from penstock_automations.rules.model import Rule
from penstock_automations.rules.records import CompiledRule, Owner, RuleRecord
from penstock_automations.rules.secrets import Secrets

Host = Annotated[str, Field(min_length=1, max_length=253)]


class CallSecret(Part):
    """A secret that calls of workflows may name."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")
    hosts: list[Host] = Field(min_length=1, max_length=50)
    secrets: Secrets = Field([], max_length=2)
    auth: WebhookAuth | None = None

    @field_validator("hosts")
    @classmethod
    def _are_lower(cls, hosts: list[str]) -> list[str]:
        return [host.lower() for host in hosts]

    @model_validator(mode="after")
    def _has_something(self) -> Self:
        if not self.secrets and self.auth is None:
            raise ValueError("give `secrets`, `auth` or both")
        return self


def read_call_secrets(path: Path) -> dict[str, CallSecret]:
    """Return the secrets of a file by name, with environment variables in place of `${NAME}`.
    Raises ConfigurationError, whose text names the wrong field and does not contain a secret."""
    found: dict[str, CallSecret] = {}
    for number, value in enumerate(read_list(path, "secrets"), 1):
        try:
            secret = CallSecret.model_validate(value)
        except ValidationError as error:
            text = f"{path}: secret {number} is wrong: {_reasons(error, CallSecret)}"
            raise ConfigurationError(text) from None
        if secret.name in found:
            raise ConfigurationError(f"{path}: the name {secret.name} is used twice")
        found[secret.name] = secret
    return found


def _reasons(error: ValidationError, model: type[Part]) -> str:
    problems = problems_of(error, model)
    return "; ".join(f"{each['field'] or 'secret'}: {each['reason']}" for each in problems)


_NOBODY: Final = TenantUser("", "")


class CallRefused(Exception):
    """A call can never be made. The text has the reason, without secrets."""

    def __init__(self, code: Literal["unknown_secret", "not_accepted"], text: str) -> None:
        super().__init__(text)
        self.code = code


def rule_of_call(
    call: CallJob, secrets: Mapping[str, CallSecret], user: TenantUser = _NOBODY, id: str = CALLS
) -> CompiledRule:
    """Return a rule whose action is the call. `user` is the owner of the run. Those with one `id`
    and user share the limits of a server. Raises CallRefused if the URL, a header or the secret
    cannot be used."""
    try:
        _check_headers(call.headers)
        webhook = Webhook(
            url=call.url, method=call.method, timeout_s=call.timeout_s, expect=call.expect
        )
    except ValueError as error:
        reasons = _reasons(error, Webhook) if isinstance(error, ValidationError) else str(error)
        raise CallRefused("not_accepted", f"the call cannot be made: {reasons}") from None
    if call.secret is not None:
        webhook = _with_secret(webhook, call.secret, secrets)
    name = call.workflow or "workflow"
    rule = Rule.model_construct(
        id=id, name=name, action=Action(webhook=webhook), retry_delays_s=call.retry_delays_s
    )
    record = RuleRecord.model_construct(
        rule=rule,
        uid=CALLS,
        owner=Owner(user_id=user.user_id, tenant=user.tenant),
        created_at="",
        updated_at="",
    )
    return CompiledRule(record, 0, frozenset(), None)


def _check_headers(headers: Mapping[str, str]) -> None:
    if len(headers) > MAX_HEADERS:
        raise ValueError(f"a call has at most {MAX_HEADERS} headers")
    check_headers_differ(headers)
    for name, value in headers.items():
        check_header(name, "secret")
        if len(value.encode()) > MAX_HEADER_BYTES:
            raise ValueError(f"the header {name} has more than {MAX_HEADER_BYTES} bytes")


def _with_secret(webhook: Webhook, name: str, secrets: Mapping[str, CallSecret]) -> Webhook:
    secret = secrets.get(name)
    if secret is None:
        text = f"there is no secret {name}; the operator adds it to PENSTOCK_CALL_SECRETS"
        raise CallRefused("unknown_secret", text)
    if (urlsplit(webhook.url).hostname or "").lower() not in secret.hosts:
        text = f"the secret {name} is not meant for this host; the operator lists its `hosts`"
        raise CallRefused("unknown_secret", text)
    return webhook.model_copy(update={"secrets": secret.secrets, "auth": secret.auth})
