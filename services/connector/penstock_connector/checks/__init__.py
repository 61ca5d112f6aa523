"""Checks whether an agent's server answers, speaks the configured protocol and has the agent.

A check sends only GETs, so it starts no run and changes nothing. The findings name addresses, so
they are shown to operators and not to clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import httpx

from penstock.http.tls import tls_context
from penstock.settings import ServerAgent
from penstock_connector.checks.finding import Finding, Verdict
from penstock_connector.checks.probe import NotReached, Probe
from penstock_connector.checks.protocols import check_adk, check_agno, check_agui
from penstock_connector.secrets import without_secrets

__all__ = ["TIMEOUT_S", "Finding", "Verdict", "check", "check_all"]

TIMEOUT_S: Final = 5.0  # the most seconds for one request; a check sends a few requests
AT_A_TIME: Final = 8  # the most agents that are checked at the same time

_CHECKS: Final[Mapping[str, Callable[[Probe, ServerAgent], Awaitable[Finding]]]] = {
    "agno": check_agno,
    "adk": check_adk,
    "agui": check_agui,
}


async def check_all(agents: Sequence[ServerAgent], timeout_s: float = TIMEOUT_S) -> list[Finding]:
    """Check the agents; return one finding for each, in the order of the agents."""
    turns = asyncio.Semaphore(AT_A_TIME)
    # Redirects are not followed, because the connector does not follow them either.
    async with httpx.AsyncClient(
        verify=tls_context(), timeout=timeout_s, follow_redirects=False
    ) as client:

        async def one(agent: ServerAgent) -> Finding:
            async with turns:
                return await check(client, agent, timeout_s)

        return list(await asyncio.gather(*map(one, agents)))


async def check(
    client: httpx.AsyncClient, agent: ServerAgent, timeout_s: float = TIMEOUT_S
) -> Finding:
    """Check one agent; the text of the finding contains none of the agent's credentials."""
    probe = Probe(client, agent.url, agent.headers, timeout_s)
    try:
        found = await _CHECKS[agent.protocol](probe, agent)
    except NotReached as error:
        found = Finding(agent.id, "unreachable", str(error))
    return Finding(agent.id, found.verdict, without_secrets(agent, {"text": found.text})["text"])
