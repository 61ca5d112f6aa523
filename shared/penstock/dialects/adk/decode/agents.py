"""The agents of a run: the root agent, and the workers below it."""

from __future__ import annotations

from penstock.dialects.adk.decode.steps import Place, Steps
from penstock.dialects.base import AgentFacts, AgentKind, AgentType, Source


class Agents:
    """Makes the `source` of every author.

    The root is the outermost name of `nodeInfo.path` or `branch`, else the first author. Its type
    is the configured kind, or `workflow` where the events show a graph. A tree of ADK 2.x does not
    name its root: there all authors are workers, and the run's own source is the configured agent.
    """

    def __init__(self, agent: AgentFacts, steps: Steps) -> None:
        self.root: str | None = None
        self._agent = agent
        self._steps = steps
        self._known: dict[tuple[str, str], Source] = {}

    def notice(self, place: Place) -> None:
        """Takes the root's name from a new place, if the place shows it."""
        if self.root is None:
            self.root = place.root
        if self.root is None and place.path is None and self._agent.kind != "workflow":
            self.root = place.author

    def source(self, author: str) -> Source:
        """The source of this author's events. An empty author means the run itself."""
        if not author:
            return self.outer()
        return self._source(author, self._root_type() if author == self.root else "worker", author)

    def outer(self) -> Source:
        """The source of events of the run as a whole."""
        if self.root:
            return self._source(self.root, self._root_type(), self.root)
        agent = self._agent
        return self._source(agent.id, self._root_type(), agent.name or agent.id)

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
