"""Finds the agent that a client names, by an id in the configuration or by an upstream name."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.settings import AgentConfig, Config
from penstock.web.problems import Problem
from penstock_edge.surfaces.errors import shortened


def agent_by_id(config: Config, agent_id: str) -> AgentConfig:
    agent = config.agent(agent_id)
    if agent is None:
        raise Problem(404, config.no_agent(agent_id))
    return agent


def agent_of_kind(config: Config, kind: str, name: str) -> AgentConfig:
    agents = [each for each in config.agents if each.kind == kind]
    return _named(agents, name, f"{kind.capitalize()} not found")


def agent_of_app(config: Config, name: str) -> AgentConfig:
    """Return the agent that ADK's clients name by this `appName`: for an ADK agent always its name
    at the ADK server, because requests are relayed unchanged; for any other agent the id in the
    configuration, or else its name at its agent server."""
    agent = config.by_app_name(name)
    if agent is not None:
        return agent
    others = [each for each in config.agents if each.protocol != "adk"]
    return _named(others, name, f"there is no agent with the appName {shortened(name)}")


def _named(agents: Iterable[AgentConfig], name: str, unknown: str) -> AgentConfig:
    """Return the agent with this id, or else with this name at its agent server."""
    found = sorted(
        (each for each in agents if name in (each.id, each.agent)), key=lambda each: each.id != name
    )
    if not found:
        raise Problem(404, unknown)
    return found[0]
