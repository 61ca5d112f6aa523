"""Whether an agent's server is there, speaks the protocol, and has that agent: asked by GETs alone.

No check starts a run or changes anything. What comes out is for who runs the services: it names
addresses. A module per protocol, as in `upstreams`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import httpx

from penstock.settings import AgentConfig
from penstock_connector.checks import adk, agno, agui
from penstock_connector.checks.finding import Finding, Verdict
from penstock_connector.checks.probe import NotReached, Probe
from penstock_connector.secrets import without_secrets

__all__ = ["TIMEOUT_S", "Finding", "Verdict", "check", "check_all"]

TIMEOUT_S: Final = 5.0  # of one request; a check makes a handful
AT_A_TIME: Final = 8

_CHECKS: Final[Mapping[str, Callable[[Probe, AgentConfig], Awaitable[Finding]]]] = {
    "agno": agno.check,
    "adk": adk.check,
    "agui": agui.check,
}


async def check_all(agents: Sequence[AgentConfig], timeout_s: float = TIMEOUT_S) -> list[Finding]:
    """What is found of each, in their order."""
    turns = asyncio.Semaphore(AT_A_TIME)
    # as the connector calls them: no redirect is followed
    async with httpx.AsyncClient(timeout=timeout_s, follow_redirects=False) as client:

        async def one(agent: AgentConfig) -> Finding:
            async with turns:
                return await check(client, agent, timeout_s)

        return list(await asyncio.gather(*map(one, agents)))


async def check(
    client: httpx.AsyncClient, agent: AgentConfig, timeout_s: float = TIMEOUT_S
) -> Finding:
    """What is found of one. Its words hold no credential that it is called with."""
    probe = Probe(client, agent.url, agent.headers, timeout_s)
    try:
        found = await _CHECKS[agent.protocol](probe, agent)
    except NotReached as error:
        found = Finding(agent.id, "unreachable", str(error))
    return Finding(agent.id, found.verdict, without_secrets(agent, {"said": found.said})["said"])
