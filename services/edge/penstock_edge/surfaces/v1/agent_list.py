"""Serves `GET /v1/agents`: lists the configured agents, and whether each agent's server answers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

import httpx
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from penstock.bus import BusError
from penstock.runs.workflows import find_workflow
from penstock.settings import AgentConfig, ServerAgent, WorkflowAgent
from penstock.web.operation import FLAG, TEXT, Operation, a_list, an_object, json, serves
from penstock.web.problems import Problem
from penstock_edge.edge import Edge

TIMEOUT_S: Final = 2.0
KNOWN_FOR_S: Final = 5.0  # seconds for which the edge uses an agent server's last answer
AT_A_TIME: Final = 8
_AGENT: Final = an_object(id=TEXT, name=TEXT, protocol=TEXT, kind=TEXT, answers=FLAG)


@dataclass(slots=True)
class _Known:
    at_s: float
    answers: asyncio.Task[bool]


class AgentList:
    """Has the handler of /v1/agents; a server gets at most one request within `KNOWN_FOR_S`."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        # The client follows no redirect and sends no credential, because a redirect or a 401 also
        # shows that the server answers.
        self._client = httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False)
        self._known: dict[str, _Known] = {}
        self._room = asyncio.Semaphore(AT_A_TIME)

    async def close(self) -> None:
        """Cancel the open requests, and close the connections."""
        asked = [known.answers for known in self._known.values()]
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
        """Respond with `{agents: [{id, name, protocol, kind, answers}]}`.

        The agents are in the order of the configuration.
        """
        agents = self._edge.config.agents
        shown = [
            {
                "id": agent.id,
                "name": agent.name or agent.id,
                "protocol": agent.protocol,
                "kind": agent.kind,
                "answers": answered,
            }
            for agent, answered in zip(agents, await self.answers(), strict=True)
        ]
        return Response(orjson.dumps({"agents": shown}), media_type="application/json")

    async def answers(self) -> list[bool]:
        """Return whether each agent can be started, in the order of the configuration.

        The server of an agent must answer, and the definition of a workflow must exist.
        """
        agents = self._edge.config.agents
        # `_answers` shields the requests, because other callers may wait for the same request when
        # this caller's client leaves.
        return await asyncio.gather(*map(self._answers, agents))

    async def _answers(self, agent: AgentConfig) -> bool:
        if not isinstance(agent, WorkflowAgent):
            return await asyncio.shield(self._server_answers(agent))
        try:
            await find_workflow(self._edge.bus, agent.agent, agent.version)
        except (Problem, BusError):
            return False
        return True

    def _server_answers(self, agent: ServerAgent) -> asyncio.Task[bool]:
        now_s = time.monotonic()
        known = self._known.get(agent.url)
        if known is None or (known.answers.done() and now_s - known.at_s > KNOWN_FOR_S):
            known = _Known(now_s, asyncio.create_task(self._ask(agent.url)))
            self._known[agent.url] = known
        return known.answers

    async def _ask(self, url: str) -> bool:
        """Return whether the server sends an HTTP answer.

        Any status counts, because an AG-UI server answers a GET with 405.
        """
        try:
            async with self._room, self._client.stream("GET", url):
                return True
        except (httpx.HTTPError, httpx.InvalidURL):
            return False
