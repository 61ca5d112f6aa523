"""Finds the run to which a frame belongs, and the agent of each run.

A run of Agno may contain inner runs. Only the outer run decides how the whole run ends. In each
leg, the outer run is the first run that starts or continues outside of any other run. A frame
without a `run_id` belongs to the outer run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from penstock.dialects.agno.decode.frames import AgnoFrame
from penstock.dialects.agno.decode.steps import Steps
from penstock.dialects.base import (
    AgentFacts,
    AgentKind,
    Draft,
    Json,
    JsonObject,
    Source,
    Subrun,
    short,
)
from penstock.dialects.json import string
from penstock.dialects.snapshots import of, optional

_IdKey = Literal["agent_id", "team_id", "workflow_id"]
_NameKey = Literal["agent_name", "team_name", "workflow_name"]

# The kinds of senders, each with the keys that name such a sender in a frame. The order matters:
# the sender has the first kind whose key the frame has. For example, if an agent inside a workflow
# sends a frame, the frame has the keys of both the agent and the workflow.
_KINDS: Final[tuple[tuple[AgentKind, _IdKey, _NameKey], ...]] = (
    ("agent", "agent_id", "agent_name"),
    ("team", "team_id", "team_name"),
    ("workflow", "workflow_id", "workflow_name"),
)

# The rank of each kind of run. A run of a higher rank contains runs of lower ranks. A workflow can
# contain agents, but an agent cannot contain a workflow.
_RANK: Final[Mapping[AgentKind, int]] = {"agent": 0, "team": 1, "workflow": 2}

BEGIN = frozenset(
    {
        "RunStarted",
        "TeamRunStarted",
        "WorkflowStarted",
        "WorkflowAgentStarted",
        "RunContinued",
        "TeamRunContinued",
    }
)

# The id that the decoder gives to the run of a workflow's own agent, because Agno sends no id when
# this agent starts.
_WORKFLOW_AGENT = "workflow-agent"


@dataclass(slots=True)
class Message:
    """An open message. `value` is structured output, which Agno sends as one value."""

    id: str
    parts: list[str] = field(default_factory=list)
    value: Json = None
    content_type: str | None = None
    citations: JsonObject | None = None


@dataclass(slots=True)
class Run:
    """A run of the upstream. `key` is its name in this decoder: "" for the outer run, whose
    upstream id may change."""

    key: str = ""
    id: str = ""
    kind: AgentKind = "agent"
    name: str = ""
    source: Source | None = None
    subrun: Subrun | None = None
    step_id: str | None = None
    dispatched: bool = False  # whether dispatch.worker was emitted
    finished: bool = False
    message: Message | None = None
    spoke: bool = False  # Whether a message has begun in any leg.
    last_text: str = ""  # The text of the last complete message.
    reasoning_id: str | None = None  # The open train of thought.
    # Whether ReasoningStarted came; if so, tool calls do not end the thoughts.
    announced: bool = False
    # all thoughts, because ReasoningStep repeats them
    thoughts: list[str] = field(default_factory=list)
    model: str | None = None
    model_provider: str | None = None
    n_calls: int = 0  # the number of model calls that frames have reported
    leg: int = 1  # the leg in which the run began

    @property
    def is_inner(self) -> bool:
        return self.key != ""


_RUN: Final = of(Run, message=optional(of(Message)))


class Agents:
    """Keeps all runs that frames have named."""

    def __init__(self, agent: AgentFacts, steps: Steps) -> None:
        self._agent = agent
        self._steps = steps
        self._by_id: dict[str, Run] = {}  # maps a run's upstream id to the run
        self._by_key: dict[str, Run] = {}
        # maps a run id to the number of times the run began, if more than once
        self._attempts: dict[str, int] = {}
        self._outer_announced = False  # whether a frame of this leg has named the outer run
        self.outer = Run(kind=agent.kind)
        self.session_id: str | None = None
        self.last_message_text = ""  # the text of the last complete message of any run

    def open(self) -> None:
        self._outer_announced = False

    def of(self, name: str, body: AgnoFrame) -> Run:
        run_id = string(body.get("run_id"))
        run = self._by_id.get(run_id) if run_id else self.outer
        if run is None:
            run = self._new(str(run_id), name, body)
        elif run is self.outer and run_id and name in BEGIN:
            self._outer_announced = True
        if run.source is None:
            self._introduce(run, body)
        if run is self.outer and self.session_id is None:
            self.session_id = string(body.get("session_id"))
        return run

    def around(self, body: AgnoFrame) -> Run:
        """Return the outer run if no frame has named the run that contains this frame's run."""
        return self._by_id.get(_parent_id(body) or "", self.outer)

    def known(self, run_id: str | None) -> Run | None:
        return self._by_id.get(run_id) if run_id else None

    def by_key(self, key: str) -> Run:
        return self._by_key.get(key, self.outer)

    def inner(self) -> list[Run]:
        return list({id(run): run for run in self._by_id.values() if run.is_inner}.values())

    def restarted(self, run: Run, body: AgnoFrame) -> Run:
        """Add `<id>#2` for a run that has ended and starts again under the same id."""
        attempt = self._attempts[run.id] = self._attempts.get(run.id, 1) + 1
        return self._add(f"{run.id}#{attempt}", run.id, body)

    def workflow_agent(self) -> Run:
        # The workflow's own agent decides whether the workflow runs.
        run = self._by_id.get(_WORKFLOW_AGENT)
        if run is None:
            source = self.source(self.outer)
            run = self._by_id[_WORKFLOW_AGENT] = Run(_WORKFLOW_AGENT, _WORKFLOW_AGENT)
            self._by_key[run.key] = run
            run.name = source["agent_name"]
            run.source = {**source, "agent_type": "worker"}
            run.subrun = Subrun(id=run.key, name=run.name)
        return run

    def source(self, run: Run) -> Source:
        """Return the configured agent, until a frame names the agent."""
        agent = self._agent
        return run.source or Source(
            agent_id=agent.id,
            agent_type=agent.kind,
            agent_name=agent.name or agent.id,
            team_name=None,
        )

    def draft(self, run: Run, event_type: str, data: JsonObject) -> Draft:
        return Draft(event_type, data, run.source or self.source(run), run.subrun, run.step_id)

    # Several ids may name one run, so the runs are stored once, and the ids with their keys.

    def snapshot(self) -> JsonObject:
        return {
            "session_id": self.session_id,
            "outer": _RUN.dump(self.outer),
            "inner": [_RUN.dump(run) for run in self.inner()],
            "keys": {run_id: run.key for run_id, run in self._by_id.items()},
            "attempts": dict(self._attempts),
            "last_said": self.last_message_text,
        }

    def restore(self, state: JsonObject) -> None:
        self.session_id = state["session_id"]
        self.outer = _RUN.load(state["outer"])
        loaded = self._by_key = {run["key"]: _RUN.load(run) for run in state["inner"]}
        self._by_id = {run_id: loaded.get(key, self.outer) for run_id, key in state["keys"].items()}
        self._attempts = dict(state["attempts"])
        self.last_message_text = state["last_said"]

    def _new(self, run_id: str, name: str, body: AgnoFrame) -> Run:
        outer = self.outer
        begins = name in BEGIN
        if not self._is_inner(body) and (not outer.id or (begins and not self._outer_announced)):
            # When a run continues, Agno 3.1 forks the run. So the outer run may have a new id in
            # this leg.
            self._by_id.pop(outer.id, None)
            outer.id = run_id
            self._outer_announced = begins
            self._by_id[run_id] = outer
            return outer
        if body.get("workflow_agent") is True:
            return self._by_id.setdefault(run_id, self.workflow_agent())
        return self._add(run_id, run_id, body)

    def _is_inner(self, body: AgnoFrame) -> bool:
        if _parent_id(body) is not None:
            return True
        depth = body.get("nested_depth")
        if isinstance(depth, int) and depth > 0:
            return True
        about = _named(body)
        return about is not None and _RANK[about[0]] < _RANK.get(self._agent.kind, 0)

    def _add(self, key: str, run_id: str, body: AgnoFrame) -> Run:
        run = self._by_id[run_id] = Run(key=short(key), id=run_id)
        self._by_key[run.key] = run
        self._introduce(run, body)
        if step_id := string(body.get("step_id")):
            run.step_id = self._steps.id_of(step_id)
        return run

    def _introduce(self, run: Run, body: AgnoFrame) -> None:
        about = _named(body)
        if about is None:
            if not run.is_inner:
                return  # a later frame may name the agent
            run.kind, agent_id, run.name = "agent", short(run.id), short(run.id)
        else:
            run.kind, agent_id, run.name = about[0], short(about[1]), short(about[2])
        around = self.around(body) if run.is_inner else None
        run.source = Source(
            agent_id=agent_id,
            agent_type="worker" if run.is_inner else run.kind,
            agent_name=run.name,
            team_name=around.name if around and around.kind == "team" else None,
        )
        if around is not None:
            run.subrun = Subrun(id=run.key, name=run.name)
            if around.is_inner:
                run.subrun["parent_id"] = around.key


def _named(body: AgnoFrame) -> tuple[AgentKind, str, str] | None:
    for kind, id_key, name_key in _KINDS:
        if agent_id := string(body.get(id_key)):
            return kind, agent_id, string(body.get(name_key)) or agent_id
    return None


def _parent_id(body: AgnoFrame) -> str | None:
    run_id = body.get("run_id")
    for around in (string(body.get("parent_run_id")), string(body.get("workflow_run_id"))):
        if around and around != run_id:
            return around
    return None
