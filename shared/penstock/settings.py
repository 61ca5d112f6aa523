"""The configuration file and the environment, checked once at start."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    HttpUrl,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict, SettingsError

from penstock import starts

SettingsT = TypeVar("SettingsT", bound=BaseSettings)

MAX_NAMED = 20  # agents that an error lists

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class ConfigurationError(Exception):
    """The configuration cannot be used. The text names the file and the field."""


class AgentConfig(BaseModel):
    """One agent server's agent, as every service knows it."""

    model_config = ConfigDict(extra="forbid")

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")] = Field(
        description="The id of the agent in every API of Penstock."
    )
    protocol: Literal["agno", "adk", "agui"] = Field(
        description="The protocol that the agent server speaks."
    )
    url: Annotated[
        str,
        Field(
            description="The base URL of the agent server. For AG-UI it is the exact URL to which "
            "runs are posted."
        ),
    ]
    agent: str = Field(
        "",
        description="The agent's id at its server: an Agno agent, team or workflow, or an ADK "
        "`appName`. Default: `id`.",
    )
    kind: Literal["agent", "team", "workflow"] = Field(
        "agent", description="Agno: whether `agent` names an agent, a team or a workflow."
    )
    name: str | None = Field(None, description="The name that people see. Default: `id`.")
    topology_id: int | None = Field(
        None, description="The number by which the executions contract names the agent."
    )
    timeout_s: Annotated[
        float, Field(gt=0, description="Seconds that one upstream request may take.")
    ] = 300.0
    headers: dict[str, str] = Field(
        {},
        description="Headers that the connector sends to the server. `${NAME}` takes a value from"
        " the environment.",
    )
    drop: list[str] = Field([], description="Names of upstream events that Penstock leaves out.")
    resumable: bool = Field(
        False,
        description="ADK: the app is resumable. Penstock then continues a run after a lost "
        "connection (ADK 2.11 or later), and names the invocation when it sends "
        "answers to ADK 1.16.",
    )
    raw: Literal["keep", "drop"] = Field(
        "drop",
        description="AG-UI: whether RAW events become canonical events. Some servers send one for"
        " every internal step.",
    )
    tools: list[dict[str, Any]] = Field(
        [],
        description="AG-UI: frontend tools (name, description, parameters) that Penstock declares"
        " in every run.",
    )
    protocol_version: str = Field(
        "1.0",
        description="AG-UI: the protocol version that Penstock declares. Leave it empty for a "
        "server that refuses the field.",
    )

    accepts: list[str] = Field(
        [],
        description="Names of the fields that clients may pass to the server besides the message,"
        " such as `dependencies`, `stateDelta`, `stateDelta.app:theme` or "
        "`forwardedProps.locale`. Penstock answers 422 to all others.",
    )
    thread_ids: Literal["derived", "verbatim"] = Field(
        "derived",
        description="AG-UI and Agno: the session id that goes upstream when callers are "
        "authenticated. `derived` makes one from owner, agent and session, so that no"
        " user can enter another user's conversation. `verbatim` sends the client's "
        "own id, for a server that checks users itself.",
    )
    starts_while_paused: Literal["refuse", "send"] = Field(
        "refuse",
        description="AG-UI: what happens to a start in a session that has a run waiting for a "
        "decision. `refuse` fails it with code `not_accepted`. Use `send` only for a "
        "server that keeps no state per thread; any other server could run the new "
        "request with the old approval.",
    )

    @field_validator("url")
    @classmethod
    def _is_url(cls, value: str, info: ValidationInfo) -> str:
        TypeAdapter(HttpUrl).validate_python(value)
        # an AG-UI server is called at this very URL, and some redirect one without its slash
        return value if info.data.get("protocol") == "agui" else value.rstrip("/")

    @property
    def hosts(self) -> tuple[str, ...]:
        """The name of its server, which error texts for clients do not repeat."""
        host = urlsplit(self.url).hostname
        return (host,) if host else ()

    @model_validator(mode="after")
    def _no_answers(self) -> AgentConfig:
        starts.check_setting(self.protocol, self.accepts)
        return self

    @model_validator(mode="after")
    def _upstream_id(self) -> AgentConfig:
        self.agent = self.agent or self.id
        if self.protocol == "agui" and self.raw == "drop" and "RAW" not in self.drop:
            self.drop = [*self.drop, "RAW"]
        return self


class Config(BaseModel):
    """The configuration file, the same for every service."""

    model_config = ConfigDict(extra="forbid")

    agents: list[AgentConfig] = []

    @model_validator(mode="after")
    def _unique(self) -> Config:
        for name in ("id", "topology_id"):
            seen = [v for a in self.agents if (v := getattr(a, name)) is not None]
            for value in seen:
                if seen.count(value) > 1:
                    raise ValueError(f"two agents have the {name} {value}")
        return self

    def agent(self, id: str) -> AgentConfig | None:
        """The agent of that id."""
        return next((agent for agent in self.agents if agent.id == id), None)

    def no_agent(self, id: str) -> str:
        """What to say to who asks for an agent that there is not: which ones there are."""
        ids = [agent.id for agent in self.agents]
        more = f" and {len(ids) - MAX_NAMED} more" if len(ids) > MAX_NAMED else ""
        listed = ", ".join(ids[:MAX_NAMED]) + more if ids else "none is configured"
        return f"there is no agent {id[:128]}{did_you_mean(id, ids)} (agents: {listed})"

    def by_topology(self, topology_id: int) -> AgentConfig | None:
        """The agent that executions-sse.md calls so."""
        return next((a for a in self.agents if a.topology_id == topology_id), None)

    def by_app_name(self, app_name: str) -> AgentConfig | None:
        """The ADK agent whose upstream calls it so."""
        return next((a for a in self.agents if a.protocol == "adk" and a.agent == app_name), None)


def load_config(path: Path) -> Config:
    """Read the file. Raises ConfigurationError that names the file and the field."""
    try:
        document = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path} is not YAML: {error}") from error
    try:
        return Config.model_validate(_expanded(document or {}, path))
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors()]
        raise ConfigurationError("\n".join([f"{path}:", *lines])) from error


def did_you_mean(asked: str, known: Iterable[str]) -> str:
    """`: did you mean "…"?` where a known name is close to what was asked for, else nothing."""
    folded = {name.lower(): name for name in known}
    close = difflib.get_close_matches(asked.lower()[:128], folded, n=1)
    return f': did you mean "{folded[close[0]]}"?' if close else ""


def read_settings(settings_type: type[SettingsT]) -> SettingsT:
    """The environment as settings. Raises ConfigurationError that names the variable."""
    try:
        return settings_type()
    except (ValidationError, SettingsError) as error:
        lines = [f"  {line}" for line in explained(error, settings_type)]
        raise ConfigurationError("\n".join(["the environment:", *lines])) from error


def explained(
    error: ValidationError | SettingsError, settings_type: type[BaseSettings]
) -> list[str]:
    """What is wrong with these settings, a line for each problem that names its variable."""
    if isinstance(error, SettingsError):
        return [str(error)]
    # a group of settings reads its own variables while the whole is made, and its error comes alone
    groups = {each.__name__: each for each in _settings_types(settings_type)}
    owner = groups.get(error.title, settings_type)
    return [_variable_of(owner, problem["loc"]) + problem["msg"] for problem in error.errors()]


def variable_name(settings_type: type[BaseSettings], field_name: str) -> str:
    """The environment variable of a setting. Raises KeyError for a field that there is not."""
    alias = settings_type.model_fields[field_name].validation_alias
    if isinstance(alias, str):
        return alias
    return f"{settings_type.model_config.get('env_prefix', '')}{field_name.upper()}"


def _settings_types(settings_type: type[BaseSettings]) -> Iterable[type[BaseSettings]]:
    yield settings_type
    for field in settings_type.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseSettings):
            yield from _settings_types(field.annotation)


def _variable_of(settings_type: type[BaseSettings], place: tuple[int | str, ...]) -> str:
    """`PENSTOCK_<NAME>: `; nothing where it is about several, which the message names itself."""
    if not place:
        return ""
    name = str(place[0])
    field = settings_type.model_fields.get(name)
    if field is None:  # an alias is the whole name
        return f"{name}: "
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseSettings):
        return _variable_of(field.annotation, place[1:])
    return f"{variable_name(settings_type, name)}: "


def _expanded(value: Any, path: Path) -> Any:
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: _variable(match[1], path), value)
    if isinstance(value, dict):
        return {key: _expanded(item, path) for key, item in value.items()}
    if isinstance(value, list):
        return [_expanded(item, path) for item in value]
    return value


def _variable(name: str, path: Path) -> str:
    try:
        return os.environ[name]
    except KeyError:
        raise ConfigurationError(
            f"{path} names ${{{name}}}, which is not set in the environment"
        ) from None


def _words(value: Any) -> Any:
    return re.findall(r"[^,\s]+", value) if isinstance(value, str) else value


def _flag(value: Any) -> bool:
    return value if isinstance(value, bool) else str(value).strip().lower() in _YES


_YES = frozenset({"true", "1", "yes", "on"})
_MIN_SECRET_BYTES = 32  # RFC 7518 section 3.2: as long as the hash
_BY_SECRET = frozenset({"HS256", "HS384", "HS512"})
_BY_PUBLIC_KEY = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
_SCOPES = frozenset({"start", "read", "raw", "decide", "act-as", "administer", "none"})
Words = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_words)]


class AuthSettings(BaseSettings):
    """How callers are authenticated, as `PENSTOCK_AUTH_<NAME>`; lists are separated by commas.

    Without a secret and without a JWKS URL, nobody is asked who they are.
    """

    model_config = SettingsConfigDict(
        env_prefix="PENSTOCK_AUTH_",
        extra="ignore",
        populate_by_name=True,
        hide_input_in_errors=True,  # an input may be a secret
    )

    jwt_secret: str | None = Field(
        None, repr=False, description="The secret of HS256 tokens, at least 32 bytes long."
    )
    jwks_url: str | None = Field(
        None, description="The URL at which the token issuer publishes its public keys."
    )
    algorithms: Words = Field(
        (),
        description="The only token algorithms that are accepted. Default: HS256 with a secret, "
        "RS256 and ES256 with a JWKS URL.",
    )
    issuer: str | None = Field(None, description="The value that the claim `iss` must have.")
    audience: str | None = Field(
        None,
        description="The value that the claim `aud` must contain. Without this setting a token "
        "that has an `aud` is refused.",
    )
    leeway_s: float = Field(
        30.0,
        ge=0,
        le=600,
        description="Seconds by which the clocks of the issuer and of this machine may differ.",
    )
    jwks_cache_s: float = Field(
        300.0,
        gt=0,
        description="Seconds for which the issuer's keys are used before they are read again.",
    )
    jwks_refetch_s: float = Field(
        10.0,
        ge=0,
        description="Seconds between two reads of the keys that unknown key ids can cause.",
    )
    jwks_timeout_s: float = Field(
        5.0, gt=0, description="Seconds that one read of the keys may take."
    )
    cookie_secure: bool = Field(
        True,
        description="Whether browsers send the cookies over TLS (and to localhost) only. `false` "
        "is for plain HTTP and takes `__Host-` off the cookie names.",
    )
    cookie_samesite: Literal["lax", "strict", "none"] = Field(
        "lax", description="The `SameSite` attribute of the cookies."
    )
    csrf_secret: str | None = Field(
        None,
        repr=False,
        description="The secret that signs CSRF tokens, at least 32 bytes long. Set it when you "
        "use JWKS with several processes. Default: derived from the JWT secret.",
    )
    cors_origins: Words = Field(
        (), description="Other origins whose pages may call the API. A wildcard is refused."
    )
    max_connections_per_user: int = Field(
        100,
        ge=0,
        description="The number of connections that one user may have open per process. 0 means "
        "no limit.",
    )
    max_streams_per_user: int = Field(
        80,
        ge=0,
        description="The number of event streams among these connections. The rest stays free for"
        " requests. 0 means no separate limit.",
    )
    max_requests_per_s: float = Field(
        100.0,
        ge=0,
        description="Requests per second of one user and process, on average. 0 means no limit.",
    )
    max_requests_burst: int = Field(
        500, ge=1, description="The number of requests that one user may send at once per process."
    )
    token_warning_s: float = Field(
        3600.0,
        gt=0,
        description="Seconds before a stream token expires at which its open streams get a "
        "warning.",
    )
    hosts: Words = Field(
        (),
        description="Host names, besides those of this machine, under which requests are answered"
        " when callers are not authenticated. `*` means any.",
    )
    default_scopes: Words = Field(
        (),
        description="The scopes of a token that names none: `start`, `read`, `raw`, `decide`, "
        "`act-as`, `administer`, or `none`. Default: `start read raw decide`.",
    )
    allow_unauthenticated_sse: Annotated[bool, BeforeValidator(_flag)] = Field(
        False,
        validation_alias="ALLOW_UNAUTHENTICATED_SSE",
        description="For development: every caller is `anonymous`, whatever else is configured.",
    )

    @property
    def asks(self) -> bool:
        """Whether callers must say who they are."""
        configured = self.jwt_secret is not None or self.jwks_url is not None
        return configured and not self.allow_unauthenticated_sse

    @field_validator("jwt_secret", "jwks_url", "issuer", "audience", "csrf_secret")
    @classmethod
    def _empty_is_unset(cls, value: str | None) -> str | None:
        return value or None  # as Compose and charts write it

    @field_validator("jwt_secret", "csrf_secret")
    @classmethod
    def _long_enough(cls, value: str | None) -> str | None:
        if value is not None and len(value.encode()) < _MIN_SECRET_BYTES:
            raise ValueError(f"must have at least {_MIN_SECRET_BYTES} bytes")
        return value

    @field_validator("jwks_url")
    @classmethod
    def _is_url(cls, value: str | None) -> str | None:
        if value is not None:
            TypeAdapter(HttpUrl).validate_python(value)
        return value

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            parts = urlsplit(origin)
            if origin != f"{parts.scheme}://{parts.netloc}" or not parts.netloc or "*" in origin:
                raise ValueError(f"{origin} is no origin like https://app.example.com")
        return value

    @field_validator("hosts")
    @classmethod
    def _are_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for host in value:
            if host != "*" and not re.fullmatch(r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+", host):
                raise ValueError(f"{host} is no host name: write it without scheme, port and path")
        return value

    @field_validator("default_scopes")
    @classmethod
    def _are_scopes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := set(value) - _SCOPES:
            raise ValueError(f"{', '.join(sorted(unknown))}: none of {', '.join(sorted(_SCOPES))}")
        if "none" in value and len(value) > 1:
            raise ValueError("none stands alone")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> AuthSettings:
        if self.jwt_secret is not None and self.jwks_url is not None:
            raise ValueError("PENSTOCK_AUTH_JWT_SECRET and PENSTOCK_AUTH_JWKS_URL: set one of them")
        # a public key must never be taken for an HMAC secret, so the two never mix
        accepted = _BY_SECRET if self.jwt_secret is not None else _BY_PUBLIC_KEY
        if strangers := set(self.algorithms) - accepted:
            raise ValueError(
                f"PENSTOCK_AUTH_ALGORITHMS: {', '.join(sorted(strangers))} is none of "
                f"{', '.join(sorted(accepted))}"
            )
        if self.cookie_samesite == "none" and not self.cookie_secure:
            raise ValueError("PENSTOCK_AUTH_COOKIE_SAMESITE=none needs secure cookies")
        return self


class Settings(BaseSettings):
    """What every service takes from the environment, as `PENSTOCK_<NAME>`."""

    model_config = SettingsConfigDict(env_prefix="PENSTOCK_", extra="ignore")

    config: Path = Field(Path("penstock.yaml"), description="The path of the configuration file.")
    nats_url: str = Field(
        "nats://127.0.0.1:4222", description="The URLs of the NATS servers, separated by commas."
    )
    nats_wait_s: float = Field(
        300.0,
        ge=0,
        description="Seconds that a starting service waits for NATS to become reachable.",
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
    replicas: int = Field(1, ge=1, le=5, description="The number of replicas of each stream.")
    raw_max_age_s: float = Field(
        24 * 3600, gt=0, description="Seconds for which source frames are kept (stream RAW)."
    )
    events_max_age_s: float = Field(
        7 * 24 * 3600, gt=0, description="Seconds for which events are kept (stream EVENTS)."
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
        *("nats_tls_ca", "nats_tls_cert", "nats_tls_key"),
        mode="before",
    )
    @classmethod
    def _empty_is_unset(cls, value: object) -> object:
        return value or None  # as Compose and charts write it

    @model_validator(mode="after")
    def _password_has_user(self) -> Settings:
        if self.nats_password and not self.nats_user:
            raise ValueError("PENSTOCK_NATS_PASSWORD: set PENSTOCK_NATS_USER, too")
        return self


def nats_login(settings: Settings, service: str) -> tuple[str | None, str | None]:
    """The NATS user and password of a service. Raises ConfigurationError."""
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
    if not password:
        raise ConfigurationError(f"there is no password of the NATS user {service} in {file}")
    return service, password
