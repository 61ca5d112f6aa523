"""Which agent a client means: by its id in the configuration, or by the name of its upstream."""

from __future__ import annotations

from penstock.settings import AgentConfig, Config
from penstock.web.problems import Problem
from penstock_edge.surfaces.errors import shortened


def agent_by_id(config: Config, id: str) -> AgentConfig:
    """The agent with this id in the configuration.

    Raises:
        Problem: 404 where there is none.
    """
    agent = config.agent(id)
    if agent is None:
        raise Problem(404, config.no_agent(id))
    return agent


def agent_of_kind(config: Config, kind: str, name: str) -> AgentConfig:
    """The agent, team or workflow with this id in the configuration, else with this upstream name.

    Raises:
        Problem: 404 where there is none of this kind.
    """
    agents = [each for each in config.agents if each.kind == kind]
    found = [each for each in agents if each.id == name] or [
        each for each in agents if each.agent == name
    ]
    if not found:
        raise Problem(404, f"{kind.capitalize()} not found")
    return found[0]


def agent_of_app(config: Config, name: str) -> AgentConfig:
    """The agent that ADK's clients call by this `appName`.

    An ADK agent has the name of its upstream alone, because requests are relayed to its server
    unchanged. Any other agent has its id in the configuration, else the name of its upstream.

    Raises:
        Problem: 404 where there is none.
    """
    agent = config.by_app_name(name)
    if agent is not None:
        return agent
    others = [each for each in config.agents if each.protocol != "adk"]
    found = [each for each in others if each.id == name] or [
        each for each in others if each.agent == name
    ]
    if not found:
        raise Problem(404, f"there is no agent with the appName {shortened(name)}")
    return found[0]
