"""Reads the configuration file. The file contains the agents and is the same for every service."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias
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
from pydantic_core import ErrorDetails

from penstock import start_fields
from penstock.settings.environment import ConfigurationError
from penstock.validation import did_you_mean, reason_of
from penstock.yaml_lines import REPEATED_KEY, Place, expanded, line_of, repeated_keys

MAX_NAMED = 20  # the number of agents that an error text lists


Protocol: TypeAlias = Literal["agno", "adk", "agui", "workflow"]
ThreadIds: TypeAlias = Literal["derived", "verbatim"]
_THREAD_IDS: Final = (
    "The session id that goes upstream when callers are authenticated. `derived` makes one from "
    "owner, agent and session, so that no user can enter another user's conversation. `verbatim` "
    "sends the client's own id, for a server that checks users itself."
)


class AgentBase(BaseModel):
    """The fields that agents of every protocol have."""

    model_config = ConfigDict(extra="forbid")

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")] = Field(
        description="The id of the agent in every API of Penstock."
    )
    protocol: Protocol = Field(
        description="The protocol that the agent server speaks, or `workflow` for a workflow of "
        "Penstock."
    )
    agent: str = Field(
        "",
        description="The agent's id at its server: an Agno agent, team or workflow, or an ADK "
        "`appName`; for `workflow`, the workflow's name. Default: `id`.",
    )
    kind: Literal["agent", "team", "workflow"] = Field(
        "agent",
        description="Whether `agent` names an agent, a team or a workflow. For Agno it is a part "
        "of the server's paths.",
    )
    name: str | None = Field(None, description="The name that people see. Default: `id`.")
    topology_id: int | None = Field(
        None, description="The number by which the executions contract names the agent."
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_foreign_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and (wrong := _foreign_fields(cls, value)):
            agent = f"agent {value.get('id')} (protocol {value.get('protocol')})"
            raise ValueError(f"{agent}: {'; '.join(sorted(wrong))}")
        return value

    @model_validator(mode="after")
    def _upstream_id(self) -> Self:
        self.agent = self.agent or self.id
        return self


class AgentOfServer(AgentBase):
    """The fields of the agents of agent servers."""

    url: Annotated[
        str,
        Field(
            description="The base URL of the agent server. For AG-UI it is the exact URL to which "
            "runs are posted.",
            json_schema_extra={"pattern": "^https?://[^/]"},  # `_is_url` checks it here
        ),
    ]
    timeout_s: Annotated[
        float, Field(gt=0, description="Seconds that one upstream request may take.")
    ] = 300.0
    headers: dict[str, str] = Field(
        {},
        description="Headers that the connector sends to the server. `${NAME}` takes a value from"
        " the environment.",
    )
    drop: list[str] = Field([], description="Names of upstream events that Penstock leaves out.")
    accepts: list[str] = Field(
        [],
        description="Names of the fields that clients may pass to the server besides the message,"
        " such as `dependencies`, `stateDelta`, `stateDelta.app:theme` or "
        "`forwardedProps.locale`. Penstock answers 422 to all others.",
    )

    @field_validator("url")
    @classmethod
    def _is_url(cls, value: str, info: ValidationInfo) -> str:
        if not value.lower().startswith(("http://", "https://")):
            # The text may contain a password, which the error must not show.
            is_host = "://" not in value and "@" not in value
            raise ValueError(
                "must begin with http:// or https://" + (f": write http://{value}" * is_host)
            )
        TypeAdapter(HttpUrl).validate_python(value)
        # For AG-UI, requests are sent to exactly this URL, because some servers redirect a URL
        # without its trailing slash.
        return value if info.data.get("protocol") == "agui" else value.rstrip("/")

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host name of the server, which error texts for clients must not contain."""
        host = urlsplit(self.url).hostname
        return (host,) if host else ()

    @model_validator(mode="after")
    def _no_answers(self) -> Self:
        start_fields.check_setting(self.protocol, self.accepts)
        return self


class AgnoAgent(AgentOfServer):
    """An agent, team or workflow of an Agno AgentOS."""

    protocol: Literal["agno"]
    thread_ids: ThreadIds = Field("derived", description=_THREAD_IDS)


class AdkAgent(AgentOfServer):
    """An app of a Google ADK server."""

    protocol: Literal["adk"]
    # An ADK server itself separates the sessions of different users.
    thread_ids: ClassVar[ThreadIds] = "verbatim"
    resumable: bool = Field(
        False,
        description="The app is resumable. Penstock then continues a run after a lost connection "
        "(ADK 2.11 or later), and names the invocation when it sends answers to ADK 1.16.",
    )


class AguiAgent(AgentOfServer):
    """An agent behind AG-UI."""

    protocol: Literal["agui"]
    thread_ids: ThreadIds = Field("derived", description=_THREAD_IDS)
    raw: Literal["keep", "drop"] = Field(
        "drop",
        description="Whether RAW events become canonical events. Some servers send one for every "
        "internal step.",
    )
    tools: list[dict[str, Any]] = Field(
        [],
        description="Frontend tools (name, description, parameters) that Penstock declares in "
        "every run.",
    )
    protocol_version: str = Field(
        "1.0",
        description="The protocol version that Penstock declares. Leave it empty for a server that "
        "refuses the field.",
    )
    starts_while_paused: Literal["refuse", "send"] = Field(
        "refuse",
        description="What happens to a start in a session that has a run waiting for a decision. "
        "`refuse` fails it with code `not_accepted`. Use `send` only for a server that keeps no "
        "state per thread; any other server could run the new request with the old approval.",
    )

    @model_validator(mode="after")
    def _drop_raw(self) -> Self:
        if self.raw == "drop" and "RAW" not in self.drop:
            self.drop = [*self.drop, "RAW"]
        return self


class WorkflowAgent(AgentBase):
    """A workflow of Penstock, which the service `workflows` runs. It has no agent server."""

    protocol: Literal["workflow"]
    kind: Literal["workflow"] = "workflow"
    version: str | None = Field(
        None,
        description="The workflow's version. Default: the version that is the latest one when a "
        "run starts.",
    )

    @property
    def accepts(self) -> Sequence[str]:
        """Empty, because the schema of the workflow says which input the workflow takes."""
        return ()


# One agent of an agent server, in the form that every service reads.
ServerAgent: TypeAlias = AgnoAgent | AdkAgent | AguiAgent
# What a run can be started with: an agent of an agent server, or a workflow.
AgentConfig: TypeAlias = ServerAgent | WorkflowAgent

_BY_PROTOCOL: Final = Field(discriminator="protocol")
_AGENT: Final[TypeAdapter[AgentConfig]] = TypeAdapter(Annotated[AgentConfig, _BY_PROTOCOL])
MODELS: Final[dict[str, type[AgentBase]]] = {
    "agno": AgnoAgent,
    "adk": AdkAgent,
    "agui": AguiAgent,
    "workflow": WorkflowAgent,
}


def agent_config(fields: Mapping[str, Any]) -> AgentConfig:
    """Return the agent with these fields; `protocol` determines its type. Raises ValidationError if
    a field is wrong, or is a field of another protocol."""
    return _AGENT.validate_python(dict(fields))


def _foreign_fields(model: type[AgentBase], value: Mapping[str, Any]) -> list[str]:
    wrong = []
    for name in value.keys() - model.model_fields.keys():
        protocols = [each for each, other in MODELS.items() if name in other.model_fields]
        if protocols:
            text = (
                f"the field `{name}` is for the protocol {' or '.join(protocols)} only: remove it"
            )
        else:
            text = f"there is no field `{name}`{did_you_mean(str(name), model.model_fields)}"
        wrong.append(text)
    return wrong


class Config(BaseModel):
    """The content of the configuration file, which is the same for every service."""

    model_config = ConfigDict(extra="forbid")

    agents: list[Annotated[AgentConfig, _BY_PROTOCOL]] = []

    @model_validator(mode="after")
    def _unique(self) -> Config:
        for name in ("id", "topology_id"):
            seen = [v for a in self.agents if (v := getattr(a, name)) is not None]
            for value in seen:
                if seen.count(value) > 1:
                    raise ValueError(f"two agents have the {name} {value}")
        return self

    def agent(self, agent_id: str) -> AgentConfig | None:
        return next((agent for agent in self.agents if agent.id == agent_id), None)

    def server_agent(self, agent_id: str) -> ServerAgent | None:
        """Return the agent of an agent server with this id; None without such an agent."""
        agent = self.agent(agent_id)
        return None if isinstance(agent, WorkflowAgent) else agent

    @property
    def server_agents(self) -> list[ServerAgent]:
        return [agent for agent in self.agents if not isinstance(agent, WorkflowAgent)]

    def no_agent(self, agent_id: str) -> str:
        """Return the error text for an unknown agent id, which lists the configured agents."""
        ids = [agent.id for agent in self.agents]
        similar = did_you_mean(agent_id, ids)
        return f"there is no agent {agent_id[:128]}{similar} (agents: {_listed(ids)})"

    def by_topology(self, topology_id: int) -> AgentConfig | None:
        """Return the agent to which the executions contract gives this number; None without one."""
        return next((a for a in self.agents if a.topology_id == topology_id), None)

    def no_topology(self, topology_id: int) -> str:
        """Return the error text for an unknown topology id, which lists the configured ones."""
        known = [f"{a.topology_id} ({a.id})" for a in self.agents if a.topology_id is not None]
        return f"there is no topology {topology_id} (topologies: {_listed(known)})"

    def by_app_name(self, app_name: str) -> AgentConfig | None:
        return next((a for a in self.agents if a.protocol == "adk" and a.agent == app_name), None)


def load_config(path: Path) -> Config:
    """Read and check the configuration file. Raises ConfigurationError if the file cannot be read,
    or a field is wrong. The text names the file and the field, with its line."""
    try:
        text = path.read_text()
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        twice = [f"  line {line}: {key}: {REPEATED_KEY}" for key, line in repeated_keys(root)]
        document = yaml.safe_load(text)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 0
        what = error.problem or error.context
        raise ConfigurationError(f"{path}, line {line}, is not YAML: {what}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigurationError(f"{path} is not YAML: {error}") from error
    if twice:
        raise ConfigurationError("\n".join([f"{path}:", *twice]))
    unset: dict[Place, list[str]] = {}
    mistakes: list[tuple[Place, str]] = []
    value = expanded(document or {}, os.environ, unset)
    try:
        config = Config.model_validate(value)
    except ValidationError as error:
        mistakes = [each for each in map(_explained, error.errors()) if each[0] not in unset]
    if unset or mistakes:
        missing = [
            (place, f"the environment has no value for {', '.join(names)}")
            for place, names in unset.items()
        ]
        lines = [f"  {_line(*each, root)}" for each in (*missing, *mistakes)]
        raise ConfigurationError("\n".join([f"{path}:", *lines]))
    return config


def _explained(problem: ErrorDetails) -> tuple[Place, str]:
    """Return the place, without pydantic's tag of the union, and the text of a problem."""
    place, text = problem["loc"], reason_of(problem)
    if problem["type"] in ("union_tag_not_found", "union_tag_invalid"):
        place, text = (*place, "protocol"), f"must be one of {', '.join(MODELS)}"
    elif problem["type"] == "extra_forbidden" and len(place) == 1:
        text += did_you_mean(str(place[0]), Config.model_fields)
    elif place[:1] == ("agents",) and place[2:3] in [(tag,) for tag in MODELS]:
        place = (*place[:2], *place[3:])
    return place, text


def _line(place: Place, text: str, root: yaml.Node | None) -> str:
    number = line_of(root, place)
    at = f"line {number}: " if number else ""
    return f"{at}{'.'.join(map(str, place)) or 'file'}: {text}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more if names else "none is configured"
