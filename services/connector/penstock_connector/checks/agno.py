"""Checks an Agno AgentOS: `GET /config` lists its agents, teams and workflows."""

from __future__ import annotations

from penstock.settings import ServerAgent
from penstock.validation import did_you_mean
from penstock_connector.checks.finding import Finding, listed
from penstock_connector.checks.known import agent_os, refusal_of, what_answers
from penstock_connector.checks.probe import Probe


async def check(probe: Probe, agent: ServerAgent) -> Finding:
    """Return the finding about an Agno agent.

    Raises:
        NotReached: no HTTP response came.
    """
    answer = await probe.get(f"{probe.url}/config")
    found = agent_os(answer, probe.url)
    if found is None:
        if (refused := refusal_of(answer, agent)) is not None:
            return refused
        instead = await what_answers(probe, agent)
        text = instead or f"{answer}, which no Agno AgentOS says: check `url` and `protocol`"
        return Finding(agent.id, "wrong_protocol", text)
    ids = found.ids[agent.kind]
    if agent.agent in ids:
        return Finding(
            agent.id, "ok", f"{probe.url} is an Agno AgentOS and has the {agent.kind} {agent.agent}"
        )
    has_none = f"the Agno AgentOS at {probe.url} has no {agent.kind} {agent.agent}"
    for kind, others in found.ids.items():
        if agent.agent in others:
            text = f"{has_none}, but a {kind} of that name: set `kind: {kind}`"
            return Finding(agent.id, "wrong_agent", text)
    guess = did_you_mean(agent.agent, ids)
    text = f"{has_none}{guess} ({agent.kind}s: {listed(ids)}): set `agent` to one of them"
    return Finding(agent.id, "wrong_agent", text)
