"""Checks a Google ADK server: `GET /list-apps` lists its apps. Only a run shows whether an app
loads."""

from __future__ import annotations

from penstock.settings import ServerAgent
from penstock.validation import did_you_mean
from penstock_connector.checks.finding import Finding, listed
from penstock_connector.checks.known import adk_server, refusal_of, what_answers
from penstock_connector.checks.probe import Probe


async def check(probe: Probe, agent: ServerAgent) -> Finding:
    """Return the finding about an ADK agent.

    Raises:
        NotReached: no HTTP response came.
    """
    answer = await probe.get(f"{probe.url}/list-apps")
    found = adk_server(answer, probe.url)
    if found is None:
        if (refused := refusal_of(answer, agent)) is not None:
            return refused
        instead = await what_answers(probe, agent)
        text = instead or f"{answer}, which no ADK server says: check `url` and `protocol`"
        return Finding(agent.id, "wrong_protocol", text)
    if agent.agent in found.apps:
        return Finding(
            agent.id, "ok", f"{probe.url} is an ADK server and has the app {agent.agent}"
        )
    return Finding(
        agent.id,
        "wrong_agent",
        f"the ADK server at {probe.url} has no app {agent.agent}"
        f"{did_you_mean(agent.agent, found.apps)} (apps: {listed(found.apps)}): "
        "set `agent` to one of them",
    )
