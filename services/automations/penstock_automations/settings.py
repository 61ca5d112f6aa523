"""The settings of the automations service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, field_validator

from penstock.runs.settings import StartSettings
from penstock.settings import Words
from penstock_automations.guard import parse_networks

MIN_KEY_BYTES: Final = 32


class AutomationsSettings(StartSettings):
    """The settings, each from the environment variable `PENSTOCK_<NAME>`."""

    rules: Path | None = Field(
        None,
        description="The path of a YAML file with rules. They are the operator's, and see the runs "
        "of all users unless they name an owner.",
    )
    call_secrets: Path | None = Field(
        None,
        description="The path of a YAML file with the secrets that steps `call` of workflows may "
        "name, each with the hosts that may get its signature and its credentials.",
    )
    rules_per_user: int = Field(
        100,
        ge=0,
        description="How many rules one user may make over HTTP. Rules of the file do not count.",
    )
    rule_keys: Words = Field(
        (),
        repr=False,
        description="Keys that encrypt the secrets of rules in NATS, separated by commas, each of "
        "at least 32 characters. The first encrypts, all decrypt. Without a key, who may read the "
        "bucket `rules` or a backup reads the secrets.",
    )
    webhook_allow_hosts: Words = Field(
        (),
        description="Hosts, separated by commas, that webhooks may reach although their addresses "
        "are not public, also over plain HTTP.",
    )
    webhook_allow_networks: Words = Field(
        (),
        description="Networks such as `10.1.0.0/16`, separated by commas, that webhooks may reach "
        "although they are not public.",
    )
    webhook_max_bytes: int = Field(
        1024 * 1024,
        ge=1024,
        description="Bytes that the body of a webhook may have. A larger event is sent as a "
        "reference.",
    )
    hook_max_bytes: int = Field(
        256 * 1024,
        ge=1024,
        le=400 * 1024,
        description="Bytes that the body of a request to an inbound webhook may have.",
    )
    match_batch: int = Field(
        100, ge=1, le=1000, description="How many events are matched before they are acknowledged."
    )
    webhook_requests_per_host: int = Field(
        64,
        ge=1,
        le=5000,
        description="How many requests one process makes to one host at once, for all rules. One "
        "user's rules get at most half of them.",
    )
    deliveries_at_once: int = Field(
        1024,
        ge=1,
        le=5000,
        description="How many deliveries one process has in memory: under way, or waiting for one "
        "of the `concurrency` requests of their rule. One user gets at most half of them.",
    )
    deliver_ack_wait_s: float = Field(
        4.0,
        ge=1,
        description="Seconds after which another process gets a delivery of a process that ended "
        "or stands still.",
    )
    delivery_max_age_s: float = Field(
        4 * 86_400.0,
        ge=1,
        description="Seconds after which a delivery that could not be made has failed, however few "
        "attempts its receiver was available for. A pause of the rule begins the time anew.",
    )
    retry_delays_s: Annotated[tuple[float, ...], Field(max_length=20)] = Field(
        (5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400),
        description="Seconds between the attempts of a delivery, as a JSON list; each is varied "
        "by up to a tenth. After one more attempt than there are delays, a delivery has failed.",
    )

    @field_validator("rule_keys")
    @classmethod
    def _are_keys(cls, value: tuple[str, ...]) -> Any:
        if any(len(key.encode()) < MIN_KEY_BYTES for key in value):
            raise ValueError(f"each key must have at least {MIN_KEY_BYTES} bytes")
        return value

    @field_validator("webhook_allow_networks")
    @classmethod
    def _are_networks(cls, value: tuple[str, ...]) -> Any:
        parse_networks(value)
        return value
