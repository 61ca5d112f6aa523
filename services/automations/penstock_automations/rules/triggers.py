"""Defines the triggers of a rule that are not events: a schedule and an inbound webhook. Pure."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from penstock.validation import Part
from penstock_automations.rules.cron import Cron
from penstock_automations.rules.secrets import WRITE_ONLY, Secrets

MAX_CATCH_UP_S = 7 * 86400.0

# A token must be too long to be guessed: 24 characters of base64 have 144 bits.
Token = Annotated[str, Field(min_length=24, max_length=512, pattern=r"^[\x21-\x7e]+$")]


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

    @model_validator(mode="after")
    def _has_times(self) -> Self:
        Cron.parse(self.cron, self.timezone)
        return self

    @property
    def times(self) -> Cron:
        return Cron(self.cron, self.timezone)


class Hook(Part):
    """A trigger by a request to `POST /v1/hooks/{id}`, which is signed or has a token."""

    secrets: Secrets = Field(
        [],
        max_length=2,
        description="The secrets of callers that sign as Standard Webhooks describes: `whsec_` and "
        "base64 of 24 to 64 bytes. Two while one replaces the other. Penstock never shows them; "
        "without secrets and tokens, it makes a secret.",
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

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.secrets and self.tokens:
            raise ValueError("give secrets or tokens, not both: with a token, nobody needs to sign")
        if self.token_in_url and self.secrets:
            raise ValueError("token_in_url is for tokens; give tokens in place of secrets")
        return self
