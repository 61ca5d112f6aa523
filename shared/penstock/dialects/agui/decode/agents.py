"""Decodes the subagents of an agent, and the steps of the agent and its subagents.

A subagent begins with SUBAGENT_STARTED, or with the first other event that names the subagent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from penstock.dialects.agui.decode.frames import AguiFrame, with_metadata
from penstock.dialects.base import (
    MAX_OPEN,
    AgentFacts,
    Draft,
    Ids,
    JsonObject,
    LimitReached,
    Source,
    Subrun,
    short,
)
from penstock.dialects.json import obj, string, without_none
from penstock.dialects.snapshots import AS_IS, PART, Snapshots, Table, of, values

SubagentId = str | None  # the upstream id of a subagent; None for the agent itself


@dataclass(slots=True)
class _Agent:
    """The agent (`key` is "") or a subagent. Each of the open `steps` is inside the previous
    one."""

    source: Source
    key: str = ""
    subrun: Subrun | None = None
    # whether the subagent waits together with the run, and continues in a later leg
    suspended: bool = False
    steps: list[list[str]] = field(default_factory=list)  # pairs of name and step id


class Agents(Snapshots):
    """Keeps the agent of a run and its subagents."""

    STORED: ClassVar[Table] = {
        "outer": ("_outer", of(_Agent)),
        "subagents": ("_subagents", values(of(_Agent))),
        "subrun_ids": ("_subrun_ids", PART),
        "step_ids": ("_step_ids", PART),
        "run_id": ("run_id", AS_IS),
    }

    def __init__(self, agent: AgentFacts) -> None:
        self._outer = _Agent(
            Source(
                agent_id=agent.id,
                agent_type=agent.kind,
                agent_name=agent.name or agent.id,
                team_name=None,
            )
        )
        self._subagents: dict[str, _Agent] = {}
        self._subrun_ids = Ids()
        self._step_ids = Ids()
        self.run_id = ""  # the upstream id of this leg's run

    @property
    def source(self) -> Source:
        return self._outer.source

    def draft(self, body: AguiFrame, event_type: str, data: JsonObject) -> Draft:
        agent = self._agent(subagent_of(body))
        step_id = agent.steps[-1][1] if agent.steps else None
        return Draft(event_type, data, agent.source, agent.subrun, step_id)

    def subrun(self, subagent_id: SubagentId) -> Subrun | None:
        return self._agent(subagent_id).subrun

    def start_unknown(self, body: AguiFrame) -> list[Draft]:
        """Start the subagent of an event that is no SUBAGENT_*, if it is unknown."""
        subagent_id = subagent_of(body)
        if subagent_id is None or subagent_id in self._subagents or _is_about_subagent(body):
            return []
        return [self._dispatch(subagent_id, {"name": subagent_id})]

    # Subagents.

    def started(self, body: AguiFrame) -> list[Draft] | None:
        # A subagent that waited during the pause only continues.
        subagent_id = subagent_of(body)
        if subagent_id is None:
            return None
        known = self._subagents.get(subagent_id)
        if known is not None and known.suspended:
            known.suspended = False
            return []
        return [*self._finish(subagent_id, "cancelled"), self._dispatch(subagent_id, body)]

    def finished(self, body: AguiFrame) -> list[Draft] | None:
        # The subagent has ended, or waits until the run's next leg.
        subagent_id = subagent_of(body)
        agent = self._subagents.get(subagent_id) if subagent_id else None
        if subagent_id is None or agent is None:
            return None
        if obj(body.get("outcome")).get("type") == "suspended":
            agent.suspended = True
            return None  # the caller then emits the upstream's event as a `custom.event`
        return self._finish(subagent_id, "completed", result=body.get("result"))

    def failed(self, body: AguiFrame) -> list[Draft] | None:
        subagent_id = subagent_of(body)
        if subagent_id is None or subagent_id not in self._subagents:
            return None
        code = string(body.get("code"))
        return self._finish(
            subagent_id, "failed", error=string(body.get("message")) or code or "failed"
        )

    def _dispatch(self, subagent_id: str, body: AguiFrame) -> Draft:
        around = self._agent(string(body.get("parentSubagentRunId")))
        key, name = (
            self._subrun_ids.unique(subagent_id),
            short(string(body.get("name")) or subagent_id),
        )
        subrun = Subrun(id=key, name=name)
        if around.key:
            subrun["parent_id"] = around.key
        source = Source(agent_id=name, agent_type="worker", agent_name=name, team_name=None)
        self._subagents[subagent_id] = _Agent(source, key, subrun)
        data = {
            "worker_name": name,
            "task": string(body.get("description")) or "",
            "subrun_id": key,
            "parent_subrun_id": around.key or None,
            "parent_tool_call_id": string(body.get("parentToolCallId")),
            "parent_message_id": string(body.get("parentMessageId")),
        }
        step_id = around.steps[-1][1] if around.steps else None
        data = with_metadata(without_none(data), body)
        return Draft("dispatch.worker", data, around.source, around.subrun, step_id)

    def _finish(self, subagent_id: str, status: str, **outcome: object) -> list[Draft]:
        agent = self._subagents.pop(subagent_id, None)
        if agent is None:
            return []
        error: JsonObject | None = None
        if status != "completed":
            error = {"code": status, "message": outcome.get("error") or f"the subagent is {status}"}
        drafts = []
        while agent.steps:
            drafts.append(self._end_step(agent, agent.steps.pop()[1], error))
        data = {"subrun_id": agent.key, "status": status, **outcome}
        return [*drafts, Draft("dispatch.finished", without_none(data), agent.source, agent.subrun)]

    # Steps.

    def step_started(self, body: AguiFrame) -> list[Draft] | None:
        # A step of AG-UI has a name and no other data.
        name = string(body.get("stepName"))
        if name is None:
            return None
        step_id = self._step_ids.unique(name)
        steps = self._agent(subagent_of(body)).steps
        steps.append([name, step_id])
        LimitReached.check(len(steps), MAX_OPEN, "open steps")
        data = {"run_id": short(self.run_id), "step_id": step_id, "description": name}
        return [self.draft(body, "workflow.step_started", with_metadata(data, body))]

    def step_finished(self, body: AguiFrame) -> list[Draft] | None:
        """End the agent's last open step of this name. AG-UI has no outputs."""
        agent = self._agent(subagent_of(body))
        name = body.get("stepName")
        step = next((step for step in reversed(agent.steps) if step[0] == name), None)
        if step is None:
            return None
        data = {"run_id": short(self.run_id), "step_id": step[1], "output": None}
        draft = self.draft(body, "workflow.step_completed", with_metadata(data, body))
        draft.step_id = step[1]
        agent.steps.remove(step)
        return [draft]

    # Ends.

    def close(self, status: str, error: JsonObject | None = None) -> list[Draft]:
        """End all open steps, failed if there is an `error`, and all subagents, with `status`."""
        drafts = []
        for agent in (*reversed(self._subagents.values()), self._outer):
            while agent.steps:
                drafts.append(self._end_step(agent, agent.steps.pop()[1], error))
        for subagent_id in reversed(list(self._subagents)):
            drafts += self._finish(subagent_id, status)
        return drafts

    def _end_step(self, agent: _Agent, step_id: str, error: JsonObject | None) -> Draft:
        data: JsonObject = {"run_id": short(self.run_id), "step_id": step_id}
        if error is None:
            kind, data = "workflow.step_completed", {**data, "output": None}
        else:
            kind, data = "workflow.step_failed", {**data, "error": error}
        return Draft(kind, data, agent.source, agent.subrun, step_id)

    def _agent(self, subagent_id: SubagentId) -> _Agent:
        return self._subagents.get(subagent_id, self._outer) if subagent_id else self._outer


def subagent_of(body: AguiFrame) -> SubagentId:
    """Return None for the agent itself."""
    return string(body.get("subagentRunId"))


def _is_about_subagent(body: AguiFrame) -> bool:
    return str(body.get("type")).startswith("SUBAGENT_")
