"""Defines the settings that all services have in common."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from penstock.settings.auth import AuthSettings, Words
from penstock.settings.environment import ConfigurationError, EnvironmentSettings
from penstock.settings.keep import parse_keep

FILE: Final = "file:"
MIN_KEY_BYTES: Final = 32
NONE: Final = "none"  # beside the content keys: see `penstock.bus.sealing`
WRAPPED: Final = "kms:"  # begins a content key that a key service opens
_WRAPPED_KEY: Final = re.compile(r"kms:[0-9a-f]{8}:\S+")
_KMS_URL: Final = re.compile(r"https?://[^/?#\s]+/v1/[^?#\s]+/keys/[^/?#\s]+")


class Settings(EnvironmentSettings):
    """The settings that every service reads from the environment, as `PENSTOCK_<NAME>`."""

    model_config = SettingsConfigDict(env_prefix="PENSTOCK_", extra="ignore")

    config: Path = Field(Path("penstock.yaml"), description="The path of the configuration file.")
    nats_url: str = Field(
        "nats://127.0.0.1:4222", description="The URLs of the NATS servers, separated by commas."
    )
    nats_wait_s: float = Field(
        300.0,
        ge=0,
        description="Seconds that a starting service waits for NATS, and for what opens its content"
        " keys.",
    )
    nats_user: str | None = Field(None, description="The NATS user name.")
    nats_password: str | None = Field(
        None, description="The password of the NATS user.", repr=False
    )
    nats_credentials: str | None = Field(None, description="The path of a NATS credentials file.")
    nats_passwords: Path | None = Field(
        None,
        description="A folder with one file per NATS user that holds its password. A service "
        "reads the file with its own name; the operator's commands of `penstock` read"
        " `operator`. PENSTOCK_NATS_USER and PENSTOCK_NATS_CREDENTIALS take "
        "precedence.",
    )
    nats_inbox_prefix: str | None = Field(
        None,
        description="The subject prefix of replies from NATS. The NATS user must be allowed to "
        "subscribe to `<prefix>.>`. Default: `_INBOX_<service>`.",
    )
    nats_tls_ca: str | None = Field(
        None,
        description="A PEM file with the authority that signed the certificate of NATS. Default: "
        "the authorities of the system. This setting, a client certificate or a "
        "`tls://` URL makes TLS mandatory.",
    )
    nats_tls_cert: str | None = Field(
        None, description="A PEM file with the client certificate for NATS."
    )
    nats_tls_key: str | None = Field(
        None, description="A PEM file with the key of the client certificate."
    )
    content_keys: Words = Field(
        (),
        repr=False,
        description="Keys that seal the content of runs in NATS, separated by commas, each of at "
        "least 32 characters, or `file:<path>` of a file with such keys, or wrapped: `kms:…`. The "
        "first seals, all open. `none` as the first seals nothing, and as the last takes content "
        "in clear, too. Every service needs the same keys.",
    )
    kms_url: str | None = Field(
        None,
        description="The URL of the transit key of OpenBao or Vault that opens wrapped content "
        "keys, such as `https://bao:8200/v1/transit/keys/penstock`.",
    )
    kms_token: str | None = Field(
        None, repr=False, description="The token for this key, or `file:<path>`."
    )
    replicas: int = Field(1, ge=1, le=5, description="The number of replicas of each stream.")
    keep: Words = Field(
        (),
        description="For how long what is stored is kept, separated by commas: `<kind>=<age>` for "
        "the kinds raw, events, deadletters, deliveries, decisions and costs, and "
        "`agent:<pattern>=<age>` or `tenant:<pattern>=<age>` for runs that are erased earlier. "
        "Default: `raw=1d,events=7d,deadletters=30d,deliveries=30d,decisions=forever,costs=400d`. "
        "See docs/privacy.md.",
    )
    shards: int = Field(
        1,
        ge=1,
        le=64,
        description="The number of shards of RAW and EVENTS in a new installation. Later "
        "`penstock streams migrate --shards` changes it.",
    )
    max_unacked_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1,
        description="Bytes that one process may have published to NATS without an "
        "acknowledgement. Further messages wait in order.",
    )
    clock_limit_s: float = Field(
        30.0,
        gt=0,
        description="Seconds by which the clock of this machine may differ from that of NATS. "
        "Beyond it `/readyz` answers 503, because tokens would expire at the wrong "
        "time.",
    )
    host: str = Field("127.0.0.1", description="The address at which HTTP is served.")
    port: int = Field(8000, ge=0, le=65535, description="The HTTP port.")
    probe_port: int = Field(9000, ge=0, le=65535, description="The port of probes and metrics.")
    insecure_bind: str = Field(
        "", description="`yes` allows an address beyond loopback without authentication."
    )
    anonymous_body_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1024 * 1024,
        description="Bytes of unfinished bodies of callers who are not authenticated, such as those"
        " of hooks and links, that one process keeps in memory. Beyond it, the oldest such body of "
        "the address with the most bytes is answered with 503.",
    )
    anonymous_body_bytes_per_address: int = Field(
        32 * 1024 * 1024,
        ge=1024 * 1024,
        description="The same for each client address. Behind a proxy, this is the proxy's "
        "address. Beyond it, the address's oldest such body is answered with 503.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The lowest level of the log lines that are written."
    )
    log_format: Literal["text", "json"] = Field("text", description="The format of the log lines.")
    drain_s: float = Field(
        10.0,
        ge=0,
        description="Seconds for which SIGTERM waits for open work. A second signal ends the wait.",
    )
    draining_port: Literal["open", "closed"] | None = Field(
        None,
        description="What SIGTERM does to the HTTP port. `open` serves it until the process ends,"
        " because a load balancer still sends requests. `closed` refuses new "
        "connections at once, because an EventSource tries those again but gives up "
        "at a 503. Default: `closed` for `penstock up` with its own NATS, else "
        "`open`.",
    )
    auth: AuthSettings = Field(
        default_factory=AuthSettings,
        description="The settings of authentication, see AuthSettings.",
    )

    @field_validator(
        *("nats_user", "nats_password", "nats_credentials", "nats_passwords", "nats_inbox_prefix"),
        *("nats_tls_ca", "nats_tls_cert", "nats_tls_key", "kms_url", "kms_token"),
        mode="before",
    )
    @classmethod
    def _empty_is_unset(cls, value: object) -> object:
        return value or None  # Compose files and charts write an unset variable as an empty text

    @field_validator("content_keys")
    @classmethod
    def _are_content_keys(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return content_keys(value)

    @field_validator("kms_url")
    @classmethod
    def _is_url_of_key(cls, value: str | None) -> str | None:
        if value is not None and not _KMS_URL.fullmatch(value):
            raise ValueError(
                "must be the URL of a key, such as https://bao:8200/v1/transit/keys/penstock"
            )
        return value

    @field_validator("keep")
    @classmethod
    def _says_how_long(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        parse_keep(value)
        return value

    @model_validator(mode="after")
    def _password_has_user(self) -> Settings:
        if self.nats_password and not self.nats_user:
            raise ValueError("PENSTOCK_NATS_PASSWORD: set PENSTOCK_NATS_USER, too")
        return self


def content_keys(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys, with those of files in place of the files. Raises ValueError, without any
    key in its text."""
    found: list[str] = []
    for word in words:
        if not word.startswith(FILE):
            found.append(word)
            continue
        path = Path(word.removeprefix(FILE))
        try:
            found += path.read_text().replace(",", " ").split()
        except (OSError, UnicodeError) as error:
            raise ValueError(f"cannot read the keys in {path}: {error}") from None
    keys = found[found[:1] == [NONE] : len(found) - (found[1:][-1:] == [NONE])]
    wrapped = [key for key in keys if key.startswith(WRAPPED)]
    if not all(map(_WRAPPED_KEY.fullmatch, wrapped)):
        raise ValueError("a wrapped key is `kms:<id>:<ciphertext>`: see `penstock streams wrap`")
    if any(len(key.encode()) < MIN_KEY_BYTES for key in keys if key not in wrapped):
        raise ValueError(f"each key must have at least {MIN_KEY_BYTES} bytes")
    if found and not keys:
        raise ValueError("`none` needs a key beside it: without keys, leave the variable empty")
    return tuple(found)


def nats_login(
    settings: Settings, service: str
) -> tuple[str | None, str | Callable[[], str] | None]:
    """Return the NATS user and password of a service; None for a value that is not set.

    If the password is in a file, a function is returned, which reads the file for each new
    connection. So the password can be changed at the server and in the file without a restart.
    Raises ConfigurationError if the service has no readable password file in the configured folder.
    """
    if settings.nats_user or settings.nats_credentials or settings.nats_passwords is None:
        return settings.nats_user, settings.nats_password
    file = settings.nats_passwords / service
    try:
        password = file.read_text().strip()
    except OSError as error:
        raise ConfigurationError(
            f"cannot read the password of the NATS user {service}: {file}: {error.strerror} "
            "(PENSTOCK_NATS_PASSWORDS names the folder)"
        ) from error
    except UnicodeError:
        raise ConfigurationError(
            f"the password of the NATS user {service} is not UTF-8: {file}"
        ) from None
    if not password:
        raise ConfigurationError(f"there is no password of the NATS user {service} in {file}")

    def present() -> str:
        nonlocal password
        # The file may be about to be replaced. If the file cannot be read now, the last password is
        # used, because an error would end the reconnecting.
        with suppress(OSError, UnicodeError):
            password = file.read_text().strip() or password
        return password

    return service, present
