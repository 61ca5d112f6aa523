"""Agno AgentOS: `GET /config` tells what it has."""

from __future__ import annotations

from penstock.settings import AgentConfig, did_you_mean
from penstock_connector.checks.finding import Finding, listed
from penstock_connector.checks.known import agent_os, asks_who, what_answers
from penstock_connector.checks.probe import Probe


async def check(probe: Probe, agent: AgentConfig) -> Finding:
    """Raises NotReached."""
    answer = await probe.get(f"{probe.url}/config")
    found = agent_os(answer, probe.url)
    if found is None:
        if (refused := asks_who(answer, agent)) is not None:
            return refused
        instead = await what_answers(probe, agent)
        said = instead or f"{answer}, which no Agno AgentOS says: check `url` and `protocol`"
        return Finding(agent.id, "wrong_protocol", said)
    ids = found.ids[agent.kind]
    if agent.agent in ids:
        return Finding(
            agent.id, "ok", f"{probe.url} is an Agno AgentOS and has the {agent.kind} {agent.agent}"
        )
    has_none = f"the Agno AgentOS at {probe.url} has no {agent.kind} {agent.agent}"
    for kind, others in found.ids.items():
        if agent.agent in others:
            said = f"{has_none}, but a {kind} of that name: set `kind: {kind}`"
            return Finding(agent.id, "wrong_agent", said)
    guess = did_you_mean(agent.agent, ids)
    said = f"{has_none}{guess} ({agent.kind}s: {listed(ids)}): set `agent` to one of them"
    return Finding(agent.id, "wrong_agent", said)
