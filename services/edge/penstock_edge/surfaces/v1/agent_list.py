"""Serves `GET /v1/agents`: lists the configured agents, and whether each agent's server answers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final, Literal

import httpx
from starlette.requests import Request
from starlette.types import ASGIApp

from penstock.bus import BusError
from penstock.http.tls import tls_context
from penstock.runs.workflows import find_workflow
from penstock.settings import AgentConfig, ServerAgent, WorkflowAgent
from penstock.web.operation import FLAG, TEXT, Operation, a_list, an_object, json, serves
from penstock.web.problems import Problem
from penstock_edge.edge import Edge
from penstock_edge.surfaces.bodies import json_response

TIMEOUT_S: Final = 2.0
KNOWN_FOR_S: Final = 5.0  # seconds for which the edge uses an agent server's last answer
AT_A_TIME: Final = 8
_AGENT: Final = an_object(id=TEXT, name=TEXT, protocol=TEXT, kind=TEXT, answers=FLAG, starting=FLAG)
# What an agent server does when it is asked. It is `starting` if it says so itself: 503 with a
# `Retry-After` (RFC 9110).
State = Literal["answering", "starting", "silent"]


@dataclass(slots=True)
class _Known:
    at_s: float
    state: asyncio.Task[State]


class AgentList:
    """Has the handler of /v1/agents; a server gets at most one request within `KNOWN_FOR_S`."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        # The client follows no redirect and sends no credential, because a redirect or a 401 also
        # shows that the server answers.
        self._client = httpx.AsyncClient(
            verify=tls_context(), timeout=TIMEOUT_S, follow_redirects=False
        )
        self._known: dict[str, _Known] = {}
        self._room = asyncio.Semaphore(AT_A_TIME)

    async def close(self) -> None:
        asked = [known.state for known in self._known.values()]
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await self._client.aclose()

    @serves(
        Operation(
            method="GET",
            path="/v1/agents",
            summary="The agents, and whether their servers answer",
            tag="agents",
            answers={200: json("All agents", an_object(agents=a_list(_AGENT)))},
            scopes=("read",),
        )
    )
    async def index(self, request: Request) -> ASGIApp:
        agents = self._edge.config.agents
        shown = [
            {
                "id": agent.id,
                "name": agent.name or agent.id,
                "protocol": agent.protocol,
                "kind": agent.kind,
                "answers": state == "answering",
                "starting": state == "starting",
            }
            for agent, state in zip(agents, await self.states(), strict=True)
        ]
        return json_response({"agents": shown})

    async def states(self) -> list[State]:
        """Keep the order of the configuration. A workflow answers if its definition exists."""
        agents = self._edge.config.agents
        # `_state` shields the requests, because other callers may wait for the same request when
        # this caller's client leaves.
        return await asyncio.gather(*map(self._state, agents))

    async def _state(self, agent: AgentConfig) -> State:
        if not isinstance(agent, WorkflowAgent):
            return await asyncio.shield(self._server_state(agent))
        try:
            await find_workflow(self._edge.bus, agent.agent, agent.version)
        except (Problem, BusError):
            return "silent"
        return "answering"

    def _server_state(self, agent: ServerAgent) -> asyncio.Task[State]:
        now_s = time.monotonic()
        known = self._known.get(agent.url)
        if known is None or (known.state.done() and now_s - known.at_s > KNOWN_FOR_S):
            known = _Known(now_s, asyncio.create_task(self._ask(agent.url)))
            self._known[agent.url] = known
        return known.state

    async def _ask(self, url: str) -> State:
        """Any HTTP answer counts: an AG-UI server answers a GET with 405."""
        try:
            async with self._room, self._client.stream("GET", url) as answer:
                is_unavailable = answer.status_code == 503
                return (
                    "starting"
                    if is_unavailable and "retry-after" in answer.headers
                    else "answering"
                )
        except (httpx.HTTPError, httpx.InvalidURL):
            return "silent"
