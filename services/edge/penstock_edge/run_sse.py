"""adk-streaming.md: POST /run_sse, which starts a run, or answers a pause, and streams the leg."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from penstock.bus import OutcomeUnknown
from penstock.bus.records import ApprovalRecord, DecideReply, DecideRequest
from penstock.bus.subjects import decide, key_of
from penstock.settings import AgentConfig
from penstock.web.bodies import read_body, require_json
from penstock.web.problems import Problem
from penstock_edge import adk_request
from penstock_edge.adk_request import Answer, InvalidRequest, RunAgentRequest
from penstock_edge.edge import Edge
from penstock_edge.endpoint import route
from penstock_edge.locate import Place, lifecycle_of, place_of_new
from penstock_edge.start import Start
from penstock_edge.views import leg_view

PATH: Final = "/run_sse"
NOT_ENABLED: Final = (
    "ADK canonical streaming not enabled. "
    "Set ENABLE_ADK_CANONICAL_STREAM=true to use this endpoint."
)
LOOKUP_S: Final = 2.0
LOOKUP_RETRY_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Alias:
    """What KV knows of a pending request's foreign id."""

    approval_id: str
    run_id: str
    leg: int
    item_id: str


class RunSse:
    """The handler of /run_sse."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def routes(self) -> list[BaseRoute]:
        """The path, and for WebSockets the refusal that HTTP's other methods get too."""
        return [
            route(self._edge.bus, PATH, {"POST": self.post}, _shape),
            WebSocketRoute(PATH, _no_websocket),
        ]

    async def post(self, request: Request) -> ASGIApp:
        """The leg's bytes as the upstream sends them."""
        if not self._edge.settings.enable_adk_canonical_stream:
            raise Problem(501, NOT_ENABLED)
        body = await self._body(request)
        try:
            asked = adk_request.parse(body)
            agent = self._edge.config.by_app_name(asked.app_name)
            if agent is None:
                raise Problem(404, f"there is no agent with the appName {asked.app_name[:128]}")
            answers = adk_request.answers_of(asked)
            aliases = await self._pending(agent, asked, answers)
            if aliases:
                return await self._decide(agent, asked, answers, aliases)
        except InvalidRequest as error:
            raise Problem(422, str(error), errors=error.errors) from error
        return await self._start(agent, asked, body.decode())

    async def _body(self, request: Request) -> bytes:
        require_json(request)
        return await read_body(request, self._edge.settings.max_body_bytes)

    async def _start(self, agent: AgentConfig, asked: RunAgentRequest, body: str) -> ASGIApp:
        edge = self._edge
        place = await place_of_new(edge.bus, over_raw=True)
        start = Start(agent, adk_request.text_of(asked), asked.session_id, asked.user_id, body=body)
        started = await edge.starter.start(start)
        return await edge.stream(leg_view(started.record.run_id, 1, agent.timeout_s), place)

    async def _pending(
        self, agent: AgentConfig, asked: RunAgentRequest, answers: Sequence[Answer]
    ) -> list[Alias]:
        """The pending requests that are answered: one for each answer, or none at all.

        The id decides, whatever the name. Raises Problem 404 for an answer to a request of ADK's
        own that nobody knows: forwarded, it would be a way around the approval.
        """
        aliases = await self._lookup(agent, asked, answers)
        if any(answer.to_request for answer in answers):
            # the answer may be faster than the record of what it answers
            deadline = asyncio.get_running_loop().time() + LOOKUP_S
            while None in aliases and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(LOOKUP_RETRY_S)
                aliases = await self._lookup(agent, asked, answers)
        found = [alias for alias in aliases if alias is not None]
        for answer, alias in zip(answers, aliases, strict=True):
            if alias is None and answer.to_request:
                raise Problem(404, f"no request with the id {answer.id[:128]!r} is pending")
        if found and len(found) < len(asked.new_message.parts):
            raise Problem(422, "newMessage.parts: answers to a pause come with nothing else")
        if len({alias.approval_id for alias in found}) > 1:
            raise Problem(422, "newMessage.parts: the answers belong to different pauses")
        return found

    async def _lookup(
        self, agent: AgentConfig, asked: RunAgentRequest, answers: Sequence[Answer]
    ) -> list[Alias | None]:
        async def alias_of(answer: Answer) -> Alias | None:
            key = key_of("approval", agent.id, asked.session_id, answer.id)
            entry = await self._edge.bus.bucket("aliases").get(key)
            if entry is None or entry.value is None:
                return None
            known = orjson.loads(entry.value)
            return Alias(known["approval_id"], known["run_id"], known["leg"], known["item_id"])

        return await asyncio.gather(*(alias_of(answer) for answer in answers))

    async def _decide(
        self,
        agent: AgentConfig,
        asked: RunAgentRequest,
        answers: Sequence[Answer],
        aliases: Sequence[Alias],
    ) -> ASGIApp:
        """Hand the decision to the approvals service; then stream the leg that follows."""
        edge = self._edge
        approval_id, run_id = aliases[0].approval_id, aliases[0].run_id
        kinds = await self._kinds(approval_id)
        items = [
            adk_request.decided(answer, kinds.get(answer.id, adk_request.CONFIRMATION))
            for answer in answers
        ]
        place = await self._place_of_next_leg(run_id)
        request = DecideRequest(by=asked.user_id, items=items)
        try:
            answer = await edge.bus.request(decide(approval_id), request.dump())
        except OutcomeUnknown as error:
            text = "it is not known whether the decision was taken; ask for the approval's state"
            raise Problem(503, text) from error
        reply = DecideReply.model_validate_json(answer.data)
        if reply.status != 200:
            raise Problem(reply.status, reply.detail)
        return await edge.stream(leg_view(run_id, aliases[0].leg + 1, agent.timeout_s), place)

    async def _kinds(self, approval_id: str) -> dict[str, str]:
        entry = await self._edge.bus.bucket("approvals").get(approval_id)
        if entry is None or entry.value is None:
            raise Problem(404, f"there is no approval {approval_id}")
        record = ApprovalRecord.model_validate_json(entry.value)
        return {item["item_id"]: item["kind"] for item in record.items}

    async def _place_of_next_leg(self, run_id: str) -> Place:
        """After all frames that there are; the run's end is looked for from its pause on."""
        place = await place_of_new(self._edge.bus, over_raw=True)
        paused = await lifecycle_of(self._edge.bus, run_id)
        return Place(place.start, paused.sequence if paused else place.events_start)


def _shape(problem: Problem) -> Response:
    detail: Any = problem.more.get("errors", problem.detail)
    return Response(orjson.dumps({"detail": detail}), problem.status, media_type="application/json")


async def _no_websocket(websocket: WebSocket) -> None:
    refusal = _shape(Problem(405, f"WebSockets are not served here; POST {PATH}"))
    refusal.headers["allow"] = "POST"
    await websocket.send_denial_response(refusal)
