"""Reads the operator's secrets for calls of workflows.

Anybody who may write a workflow chooses the URL and the body of its calls. So each secret names the
hosts that may get its signature and its credentials. Without this limit, a workflow could have a
text signed for a receiver that trusts the secret.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from penstock.settings import ConfigurationError
from penstock_automations.rules.environment import expanded
from penstock_automations.rules.model import Part, WebhookAuth
from penstock_automations.rules.secrets import check_secret

Host = Annotated[str, Field(min_length=1, max_length=253)]


class CallSecret(Part):
    """A secret that calls of workflows may name."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")
    hosts: list[Host] = Field(min_length=1, max_length=50)
    secrets: list[str] = Field([], max_length=2)
    auth: WebhookAuth | None = None

    @field_validator("hosts")
    @classmethod
    def _are_lower(cls, hosts: list[str]) -> list[str]:
        return [host.lower() for host in hosts]

    @field_validator("secrets")
    @classmethod
    def _are_secrets(cls, secrets: list[str]) -> list[str]:
        for secret in secrets:
            check_secret(secret)
        return secrets

    @model_validator(mode="after")
    def _has_something(self) -> Self:
        if not self.secrets and self.auth is None:
            raise ValueError("give `secrets`, `auth` or both")
        return self


def read_call_secrets(path: Path) -> dict[str, CallSecret]:
    """Return the secrets of a file by name, with environment variables in place of `${NAME}`.

    Raises:
        ConfigurationError: the file cannot be read, or a secret is wrong; the text names the field
            and does not contain the secret.
    """
    try:
        content = expanded(yaml.safe_load(path.read_text()) or {})
    except (OSError, yaml.YAMLError, LookupError) as error:
        raise ConfigurationError(f"the secrets in {path} cannot be read: {error}") from None
    listed = content.get("secrets") if isinstance(content, dict) else None
    if not isinstance(listed, list) or set(content) != {"secrets"}:
        raise ConfigurationError(f"{path} must have one key, `secrets`, with a list of secrets")
    found: dict[str, CallSecret] = {}
    for number, value in enumerate(listed, 1):
        try:
            secret = CallSecret.model_validate(value)
        except ValidationError as error:
            raise ConfigurationError(
                f"{path}: secret {number} is wrong: {_reasons(error)}"
            ) from None
        if secret.name in found:
            raise ConfigurationError(f"{path}: the name {secret.name} is used twice")
        found[secret.name] = secret
    return found


def _reasons(error: ValidationError) -> str:
    def line(each: Any) -> str:
        return f"{'.'.join(map(str, each['loc'])) or 'secret'}: {each['msg']}"

    return "; ".join(map(line, error.errors(include_input=False, include_url=False)))
