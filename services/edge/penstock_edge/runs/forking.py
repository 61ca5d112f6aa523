"""Says what a fork takes over from its first run, by the kind of the run's agent. Pure.

An agent's fork begins with the first run's conversation up to the last message or result that was
complete at the fork's point. A workflow's fork does no step again that had completed by then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.bus.records.runs import ENDED, RunRecord, TakenOver
from penstock.dialects.base import JsonObject
from penstock.events import TERMINAL
from penstock.settings import AgentConfig, WorkflowAgent
from penstock_edge.views.run_state import RunState

_OPEN: Final = frozenset({"called", "waits"})  # the outcomes of calls without a result
_SHARED: Final = frozenset({"state.snapshot", "state.delta"})


class NotForkable(Exception):
    """The run cannot be forked here; the text says the reason."""


@dataclass(slots=True)
class FirstRun:
    """The run that is forked, folded from its events; `at` is the last event that counts."""

    record: RunRecord
    at: int
    state: RunState = field(default_factory=RunState)
    last: int = 0  # the sequence of the run's last event
    end: str = ""  # how the run has ended; the record may say so a moment later than the events
    workflow: JsonObject = field(default_factory=dict)  # the data of `workflow.started`
    messages: int = 0  # the messages of the agent that were complete
    says_last: bool = False  # whether the conversation ends with a message of the agent
    shares: bool = False  # whether the run has changed the shared state by then
    later_tools: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)  # all that have begun, in order
    asking: set[str] = field(default_factory=set)  # the steps in which people decide

    def take(self, event_type: str, event: JsonObject) -> None:
        self.last, data = event["sequence"], event["data"]
        if event_type in TERMINAL:
            self.end = event_type.removeprefix("lifecycle.")
        if event_type == "workflow.started" and data.get("run_id") == self.record.run_id:
            self.workflow = data
        if event_type == "workflow.step_started":
            self.steps.append(data["step_id"])
            if data.get("kind") == "approve":
                self.asking.add(data["step_id"])
        if self.last > self.at:
            if event_type == "llm.tool_call":
                self.later_tools.append(data["tool"])
            return
        self.state.take(event_type, event)
        if event_type == "llm.message_completed" and data.get("role") != "user":
            self.messages += 1
            self.says_last = True
        elif event_type == "llm.tool_result":
            self.says_last = False
        self.shares = self.shares or event_type in _SHARED

    @property
    def shown(self) -> JsonObject:
        return self.state.shown()


@dataclass(frozen=True, slots=True)
class Fork:
    """What a fork is started with. `session_id` is None for a session of its own."""

    agent: AgentConfig
    message: str
    taken_over: TakenOver
    session_id: str | None = None
    input: JsonObject | None = None
    needs_message: bool = False  # whether the agent has nothing to answer without a message


def why_not(record: RunRecord, agent: AgentConfig | None, end: str) -> str | None:
    """Return why a run that has ended so cannot be forked, if this can be said without its
    events."""
    if end not in ENDED:
        return "the run has not ended: wait for its end, or cancel it"
    if record.erasure is not None:
        return "the content of the run was erased"
    if record.target == "workflows":
        return None
    if agent is None:
        return f"there is no agent {record.agent} any more"
    if agent.protocol == "agno" and (agent.kind != "agent" or end == "cancelled"):
        what = f"a {agent.kind}'s run" if agent.kind != "agent" else "a cancelled run"
        return f"Agno cannot fork {what}"
    return None


def fork_of(first: FirstRun, agent: AgentConfig | None, message: str | None) -> Fork:
    """Return the fork of a run. `agent` is the run's agent in the configuration, `message` what is
    said to it besides. Raises NotForkable."""
    if (reason := why_not(first.record, agent, first.end)) is not None:
        raise NotForkable(reason)
    if agent is None or first.record.target == "workflows":
        return _workflow(first, agent, message)
    shown, record = first.shown, first.record
    calls = [each for each in shown["tool_calls"] if each["outcome"] not in _OPEN]
    taken_over = TakenOver(
        messages=first.messages,
        tool_calls=len(calls),
        user_id=record.user_id,
        session_id=record.session_id,
        state=shown["state"] if first.shares else None,
    )
    return _OF_AGENTS[agent.protocol](first, agent, message or "", taken_over)


def _workflow(first: FirstRun, agent: AgentConfig | None, message: str | None) -> Fork:
    if message is not None:
        raise NotForkable("a workflow takes no message in between")
    told = first.workflow
    if not told.get("version"):
        raise NotForkable("the workflow did not begin, so there is no step to take over")
    named = {"version": told["version"], "agent": told["workflow"]}
    if isinstance(agent, WorkflowAgent):
        of_version = agent.model_copy(update=named)
    else:
        of_version = WorkflowAgent(id=first.record.agent, protocol="workflow", **named)
    steps = [each["step_id"] for each in first.shown["steps"] if each["status"] == "completed"]
    given = dict(told["input"] or {})
    # The record's message may be what the input says, and is cut.
    said = given.get("message")
    text = said if isinstance(said, str) else ""
    return Fork(of_version, text, TakenOver(steps=steps), input=given)


def _agui(first: FirstRun, agent: AgentConfig, message: str, taken: TakenOver) -> Fork:
    return Fork(agent, message, taken, needs_message=first.says_last)


def _agno(first: FirstRun, agent: AgentConfig, message: str, taken: TakenOver) -> Fork:
    # Agno makes a fork in the session of the first run.
    session_id = first.record.session_id
    return Fork(agent, message, taken, session_id, needs_message=first.says_last)


def _adk(first: FirstRun, agent: AgentConfig, message: str, taken: TakenOver) -> Fork:
    return Fork(agent, message, taken, needs_message=True)


_OF_AGENTS: Final[Mapping[str, Callable[[FirstRun, AgentConfig, str, TakenOver], Fork]]] = {
    "agno": _agno,
    "agui": _agui,
    "adk": _adk,
}


def preview(first: FirstRun, agent: AgentConfig | None) -> dict[str, Any]:
    """Return what a fork would take over, and what the first run did besides; `reason` says why it
    is not possible, if so."""
    fork, reason = None, None
    try:
        fork = fork_of(first, agent, None)
    except NotForkable as error:
        reason = str(error)
    taken = fork.taken_over if fork is not None else TakenOver()
    return {
        "run_id": first.record.run_id,
        "sequence": first.state.at,
        "possible": fork is not None,
        "reason": reason,
        "needs_message": fork is not None and fork.needs_message,
        "taken_over": {
            "steps": [each for each in taken.steps if each not in first.asking],
            "messages": taken.messages,
            "tool_calls": taken.tool_calls,
        },
        "asks_again": [each for each in taken.steps if each in first.asking],
        "later_steps": [each for each in dict.fromkeys(first.steps) if each not in taken.steps],
        "later_tools": first.later_tools,
    }
