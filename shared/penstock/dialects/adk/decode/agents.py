"""Finds the agents of a run, which are the root agent and its workers."""

from __future__ import annotations

from penstock.dialects.adk.decode.steps import Place, Steps
from penstock.dialects.base import AgentFacts, AgentKind, AgentType, Source


class Agents:
    """Makes the `source` for each author of events.

    The outermost name in `nodeInfo.path` or `branch` is the root agent. In ADK 1.x, if the first
    event has no branch, the event's author is the root agent, unless the configuration says `kind:
    workflow`. The type of the root agent is the configured kind. If the events show a graph, the
    type is `workflow`. In a tree of ADK 2.x, no event names the root agent. All authors are then
    workers, and the configured agent is the source of events about the run as a whole.
    """

    def __init__(self, agent: AgentFacts, steps: Steps) -> None:
        self.root: str | None = None
        self._agent = agent
        self._steps = steps
        self._known: dict[tuple[str, str], Source] = {}

    def notice(self, place: Place) -> None:
        """Take the name of the root agent from a new place, if the place contains this name."""
        if self.root is None:
            self.root = place.root
        if self.root is None and place.path is None and self._agent.kind != "workflow":
            self.root = place.author

    def source(self, author: str) -> Source:
        """Return the source of this author's events. An empty author means the run as a whole."""
        if not author:
            return self.outer()
        return self._source(author, self._root_type() if author == self.root else "worker", author)

    def outer(self) -> Source:
        """Return the source for events of the run as a whole."""
        if self.root:
            return self._source(self.root, self._root_type(), self.root)
        agent = self._agent
        return self._source(agent.id, self._root_type(), agent.name or agent.id)

    def snapshot(self) -> str | None:
        return self.root

    def restore(self, state: str | None) -> None:
        self.root = state

    def _root_type(self) -> AgentKind:
        return "workflow" if self._steps.graph else self._agent.kind

    def _source(self, agent_id: str, agent_type: AgentType, name: str) -> Source:
        key = (agent_id, agent_type)
        if key not in self._known:
            self._known[key] = {
                "agent_id": agent_id,
                "agent_type": agent_type,
                "agent_name": name,
                "team_name": None,
            }
        return self._known[key]
