"""Starts runs for OpenAI's clients, and opens the legs of their responses.

A client repeats a request whose answer it did not get, and sends no idempotency key. The same body
with `x-stainless-retry-count` above 0 repeats the newest request with this body (decision 0317).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.types import ASGIApp

from penstock.bus.records.runs import ENDED, RunRecord
from penstock.bus.subjects import key_of
from penstock.runs.start import Start
from penstock.settings import AgentConfig
from penstock.web.auth import Identity, identity_of, require
from penstock_edge.edge import Edge
from penstock_edge.runs.records import run_of
from penstock_edge.sources.locate import StartPosition
from penstock_edge.stream.responses.single_body import Json, SingleBody
from penstock_edge.surfaces.bodies import Model, document_of, json_body, validated, workflow_input
from penstock_edge.surfaces.legs import Leg, first_leg, located
from penstock_edge.surfaces.openai.request import ERRORS, ResponseId, refused
from penstock_edge.surfaces.query import cursor_of, when_busy_of
from penstock_edge.surfaces.surface import Handlers
from penstock_edge.views.encoded_leg import LegForm
from penstock_edge.views.view import View

KEY: Final = "idempotency-key"
RETRY: Final = "x-stainless-retry-count"
SESSION: Final = "x-penstock-session"
RETRIED_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: its caller, its body, and the key under which its retries find what it began."""

    request: Request
    who: Identity
    body: bytes

    @classmethod
    async def read(cls, edge: Edge, request: Request) -> Asked:
        return cls(request, identity_of(request), await json_body(edge, request))

    def parsed(self, model: type[Model]) -> Model:
        return validated(model, document_of(self.body))

    @property
    def key(self) -> str:
        digest = hashlib.sha256(self.body).hexdigest()
        return key_of("openai", self.who.user_id, self.request.url.path, digest)

    @property
    def is_retry(self) -> bool:
        return self.request.headers.get(RETRY, "0") != "0"


class Runs(Handlers):
    """What the handlers of both APIs share."""

    def agent(self, model: str) -> AgentConfig:
        agent = self._edge.config.agent(model)
        if agent is None:
            text = self._edge.config.no_agent(model)
            raise refused("model", text, 404, code="model_not_found")
        return agent

    async def start(
        self,
        asked: Asked,
        agent: AgentConfig,
        message: str,
        session_id: str | None,
        metadata: Mapping[str, str] | None,
    ) -> tuple[ResponseId, Leg]:
        """Start a run, or find the one that an earlier request has started."""
        require(asked.who, "start")
        given = workflow_input(agent, (metadata or {}).get("input"), "metadata", "input")
        user = asked.who.run_user(asked.who.user_id)
        start = Start(agent, message, session_id, user, given, request=asked.body)
        start = replace(start, when_busy=when_busy_of(asked.request))
        if (key := asked.request.headers.get(KEY)) is not None:
            start = replace(start, key=key)
        elif RETRY in asked.request.headers:
            start = replace(start, run_id=await self._run_id(asked, session_id))
        _, leg = await first_leg(self._edge, start)
        return ResponseId(leg.run_id), leg

    async def _run_id(self, asked: Asked, session_id: str | None) -> str:
        """Return the id of the run that the request starts, after storing it for its retries."""
        if asked.is_retry and (known := await self.earlier(asked)) is not None:
            record = await self._edge.bus.bucket("runs").load(known["run_id"], RunRecord)
            at = known["at"] if record is None else record.updated_at
            is_open = record is not None and record.status not in ENDED
            if is_open or self._edge.bus.clock.age_s(at) <= RETRIED_S:
                return str(known["run_id"])
        run_id = await self._edge.starter.new_run_id(asked.who.user_id, session_id)
        await self.remember(asked, run_id=run_id)
        return run_id

    async def earlier(self, asked: Asked) -> dict[str, Any] | None:
        entry = await self._edge.bus.bucket("idempotency").get(asked.key)
        return orjson.loads(entry.value) if entry is not None else None

    async def remember(self, asked: Asked, **begun: str) -> None:
        value = orjson.dumps({**begun, "at": self._edge.bus.clock.stamp()})
        await self._edge.bus.bucket("idempotency").put(asked.key, value)

    async def run(
        self, who: Identity, response_id: str, param: str
    ) -> tuple[ResponseId, RunRecord]:
        response = ResponseId.parse(response_id)
        unknown = refused(param, f"there is no response {response_id[:128]!r}", 404)
        if response is None:
            raise unknown
        return response, await run_of(self._edge.bus, who, response.run_id, unknown)

    async def open(
        self, response: ResponseId, record: RunRecord, form: LegForm[Any], request: Request
    ) -> tuple[View, StartPosition]:
        """Return the view of a leg that has begun, or will begin, and where the client reads. A
        GET continues after the cursor in `Last-Event-ID`, if the client has one."""
        after = cursor_of(request) if request.method == "GET" else None
        view, place = await located(self._edge, record, form, after, response.leg)
        # These clients do not know 204, so a response that has ended is an empty stream.
        return view, replace(place, ended=False)

    async def respond(
        self,
        asked: Asked,
        response: ResponseId,
        leg: Leg | None,
        form: LegForm[Any],
        body: Json | None,
    ) -> ASGIApp:
        """Answer with a leg: with its stream, or at its end with the `body`. Without `leg`, it is
        the one that the response names."""
        if leg is not None:
            return await self.send(asked.who, leg.view(form), leg.position, body)
        record = await run_of(self._edge.bus, asked.who, response.run_id)
        opened = await self.open(response, record, form, asked.request)
        return await self.send(asked.who, *opened, body)

    async def send(
        self, who: Identity, view: View, position: StartPosition, body: Json | None
    ) -> ASGIApp:
        if body is None:
            return await self._edge.stream(view, position, who)
        client = await self._edge.hubs.join(view, position, who)
        return SingleBody(client, body, ERRORS.response)
