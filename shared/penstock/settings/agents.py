"""The configuration file: the agents, the same for every service."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from penstock import starts
from penstock.settings.errors import ConfigurationError

MAX_NAMED = 20  # agents that an error lists

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class AgentConfig(BaseModel):
    """One agent of an agent server, in the form that every service reads."""

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
        # For AG-UI this is the exact URL of the requests; some servers redirect a URL without its
        # trailing slash.
        return value if info.data.get("protocol") == "agui" else value.rstrip("/")

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host name of the server, which error texts for clients leave out."""
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
        """The agent with this id; None without one."""
        return next((agent for agent in self.agents if agent.id == id), None)

    def no_agent(self, id: str) -> str:
        """The error text for an unknown agent id: it lists the agents that exist."""
        ids = [agent.id for agent in self.agents]
        more = f" and {len(ids) - MAX_NAMED} more" if len(ids) > MAX_NAMED else ""
        listed = ", ".join(ids[:MAX_NAMED]) + more if ids else "none is configured"
        return f"there is no agent {id[:128]}{did_you_mean(id, ids)} (agents: {listed})"

    def by_topology(self, topology_id: int) -> AgentConfig | None:
        """The agent with this number in the executions contract."""
        return next((a for a in self.agents if a.topology_id == topology_id), None)

    def by_app_name(self, app_name: str) -> AgentConfig | None:
        """The ADK agent with this `appName`."""
        return next((a for a in self.agents if a.protocol == "adk" and a.agent == app_name), None)


def load_config(path: Path) -> Config:
    """Read and check the configuration file.

    Raises:
        ConfigurationError: the file cannot be read, or a field is wrong. The text names both.
    """
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
    """`: did you mean "…"?` where a known name is close to the asked one; else empty."""
    folded = {name.lower(): name for name in known}
    close = difflib.get_close_matches(asked.lower()[:128], folded, n=1)
    return f': did you mean "{folded[close[0]]}"?' if close else ""


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
