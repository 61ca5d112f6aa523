"""What is known of the outer run and of the runs inside it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from penstock.dialects.agno.values import string
from penstock.dialects.base import Json, JsonObject, Source, Subrun

# Which of Agno's three things a frame is about, by the key that names it. The order counts:
# an agent's frame inside a workflow names both.
_KINDS = (
    ("agent", "agent_id", "agent_name"),
    ("team", "team_id", "team_name"),
    ("workflow", "workflow_id", "workflow_name"),
)


@dataclass(slots=True)
class Message:
    """The message that a run is saying. `value` is structured output, given whole."""

    id: str
    parts: list[str] = field(default_factory=list)
    value: Json = None
    content_type: str | None = None
    citations: JsonObject | None = None


@dataclass(slots=True)
class Run:
    """A run of the upstream. `key` names it in our state: "" is the outer, whatever its id."""

    key: str = ""
    id: str = ""
    kind: str = "agent"
    name: str = ""
    source: Source | None = None
    subrun: Subrun | None = None
    step_id: str | None = None
    finished: bool = False
    message: Message | None = None
    spoke: bool = False  # a message was begun, in any leg
    last_text: str = ""  # of the last whole message
    reasoning_id: str | None = None  # the train of thought that is open
    announced: bool = False  # ... by ReasoningStarted: then tool calls do not end it
    thoughts: list[str] = field(default_factory=list)  # whole, since ReasoningStep repeats it

    @property
    def inner(self) -> bool:
        """True for a run inside the outer one."""
        return self.key != ""

    def dump(self) -> JsonObject:
        """As JSON, between legs."""
        return asdict(self)

    @classmethod
    def load(cls, state: JsonObject) -> Run:
        """The opposite of `dump`."""
        message = state["message"]
        return cls(**{**state, "message": Message(**message) if message else None})


def named(body: JsonObject) -> tuple[str, str, str] | None:
    """Kind, id and name of what the frame is about; None where it does not say."""
    for kind, id_key, name_key in _KINDS:
        if agent_id := string(body.get(id_key)):
            return kind, agent_id, string(body.get(name_key)) or agent_id
    return None


def parent_id(body: JsonObject) -> str | None:
    """The run around this frame's own: a member names its team's, a step's agent the workflow's."""
    run_id = body.get("run_id")
    for key in ("parent_run_id", "workflow_run_id"):
        around = string(body.get(key))
        if around and around != run_id:
            return around
    return None
