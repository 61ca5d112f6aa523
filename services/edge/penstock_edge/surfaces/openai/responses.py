"""Serves OpenAI's Responses API: /openai/v1/responses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from penstock.bus.records.runs import RunRecord
from penstock.dialects.openai import ObjectEncoder
from penstock.settings import AgentConfig, WorkflowAgent
from penstock.web.auth import identity_of, require
from penstock.web.bodies import ignore_body
from penstock.web.operation import (
    JSON,
    OBJECT,
    SSE,
    Answer,
    Operation,
    Parameter,
    in_path,
    json,
    serves,
)
from penstock_edge.runs.records import is_workflow, run_of
from penstock_edge.stream.responses.single_body import Json
from penstock_edge.surfaces import legs
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.bodies import json_response
from penstock_edge.surfaces.openai.request import (
    ERRORS,
    ResponseId,
    ResponsesRequest,
    answers_of,
    message_of,
    refused,
)
from penstock_edge.surfaces.openai.runs import SESSION, Asked, Runs
from penstock_edge.surfaces.openai.views import object_form, stream_form

_ID: Final = in_path("response_id", "The response's id")
_RESPONSE: Final = {200: Answer("The response, or its stream", {JSON: OBJECT, SSE: by.STREAM})}
_operation: Final = partial(Operation, tag="openai", errors=ERRORS, refusals=(400, 404, 409, 410))


class Responses(Runs):
    """Has the handlers of responses. A response is one leg of a run."""

    @serves(
        _operation(
            method="POST",
            path="/openai/v1/responses",
            summary="Start a run, or answer its requests; `model` is an agent",
            description="A new run needs the scope `start`, an answer `decide`. Without `stream`, "
            "the answer is the response when it has ended, with `background` at once.",
            answers=_RESPONSE,
            scopes=(),
            any_scope=("start", "decide"),
            parameters=(by.WHEN_BUSY,),
            body=ResponsesRequest,
            example={"model": "assistant", "input": "Hello", "stream": True},
        )
    )
    async def create(self, request: Request) -> ASGIApp:
        edge = self._edge
        asked = await Asked.read(edge, request)
        body = asked.parsed(ResponsesRequest)
        agent = self.agent(body.model)
        if body.stream:
            edge.streams.require_room(request.scope)
        if answers := answers_of(body):
            response, leg = await self._answer(asked, body, agent, answers)
        else:
            session_id = await self._session(asked, body)
            items = body.input
            given = [{"role": "user", "content": items}] if isinstance(items, str) else items
            message = message_of(given, "input", in_session=session_id is not None)
            response, leg = await self.start(asked, agent, message, session_id, body.metadata)
        if body.background and not body.stream:
            record = await run_of(edge.bus, asked.who, response.run_id)
            return await self._so_far(request, response, record)
        write, whole = (stream_form, None) if body.stream else (object_form, Json())
        form: Any = write(response, is_workflow=isinstance(agent, WorkflowAgent))
        return await self.respond(asked, response, leg, form, whole)

    async def _session(self, asked: Asked, body: ResponsesRequest) -> str | None:
        conversation = body.conversation
        if isinstance(conversation, dict):
            conversation = str(conversation.get("id"))
        named = conversation or asked.request.headers.get(SESSION)
        if body.previous_response_id is None:
            return named
        name = "previous_response_id"
        _, previous = await self.run(asked.who, body.previous_response_id, name)
        if named not in (None, previous.session_id) or previous.agent != body.model:
            text = "is of another conversation or model, which does not know what was said"
            raise refused(name, text)
        return previous.session_id

    async def _answer(
        self,
        asked: Asked,
        body: ResponsesRequest,
        agent: AgentConfig,
        answers: Sequence[legs.ClientAnswer],
    ) -> tuple[ResponseId, legs.Leg | None]:
        """Decide, and return the leg that follows; None instead of a leg for a repeated request."""
        edge, who = self._edge, asked.who
        require(who, "decide")
        reply = await legs.reply_of(edge.bus, who, agent, None, "input", answers)
        leg = await legs.next_leg(edge, reply)
        if body.previous_response_id is not None:
            name = "previous_response_id"
            if (await self.run(who, body.previous_response_id, name))[1].run_id != leg.run_id:
                raise refused("input", "the answers belong to another run")
        earlier = await self.earlier(asked) if asked.is_retry else None
        if earlier is None:
            response = ResponseId(leg.run_id, leg)
            await self.remember(asked, response=str(response))
        else:
            response = (await self.run(who, earlier["response"], "input"))[0]
        await legs.decide(edge, who, "openai", reply, user_id=who.user_id, key=asked.key)
        return response, leg if earlier is None else None

    @serves(
        _operation(
            method="GET",
            path="/openai/v1/responses/{response_id}",
            summary="A response as it is, or with `stream=true` its stream",
            answers=_RESPONSE,
            scopes=("read",),
            parameters=(
                _ID,
                Parameter("stream", "Whether the answer is a stream", {"type": "boolean"}),
                Parameter(
                    "starting_after",
                    "The `sequence_number` of the last frame that the client has",
                    {"type": "integer", "minimum": 0},
                ),
                by.LAST_EVENT_ID,
            ),
        )
    )
    async def show(self, request: Request) -> ASGIApp:
        query = request.query_params
        response, record = await self._named(request)
        if query.get("stream") != "true":
            return await self._so_far(request, response, record)
        self._edge.streams.require_room(request.scope)
        after = query.get("starting_after", "-1")
        if after != "-1" and not (after.isascii() and after.isdigit() and len(after) <= 9):
            raise refused("starting_after", "must be the sequence_number of a frame")
        form = stream_form(response, int(after), is_workflow=is_workflow(record))
        opened = await self.open(response, record, form, request)
        return await self._edge.stream(*opened, identity_of(request))

    @serves(
        _operation(
            method="POST",
            path="/openai/v1/responses/{response_id}/cancel",
            summary="Cancel the run of a response",
            answers={200: json("The response as it is then", OBJECT)},
            scopes=("start",),
            parameters=(_ID,),
        )
    )
    async def cancel(self, request: Request) -> ASGIApp:
        await ignore_body(request)
        response, record = await self._named(request)
        await self._edge.canceller.cancel(record.run_id, identity_of(request))
        return await self._so_far(request, response, record)

    @serves(
        _operation(
            method="GET",
            path="/openai/v1/responses/{response_id}/input_items",
            summary="What the response answers: the user's message, or answers to requests",
            answers={200: json("The items", OBJECT)},
            scopes=("read",),
            parameters=(_ID,),
        )
    )
    async def input_items(self, request: Request) -> ASGIApp:
        items = (await self._read(request, *await self._named(request))).inputs
        ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {}
        return json_response({"object": "list", "data": items, "has_more": False, **ends})

    async def _named(self, request: Request) -> tuple[ResponseId, RunRecord]:
        name = request.path_params["response_id"]
        return await self.run(identity_of(request), name, "response_id")

    async def _so_far(self, request: Request, response: ResponseId, record: RunRecord) -> Response:
        encoder = await self._read(request, response, record)
        queued = {"model": record.agent} if encoder.status == "queued" else {}
        return json_response(encoder.response() | queued)

    async def _read(
        self, request: Request, response: ResponseId, record: RunRecord
    ) -> ObjectEncoder:
        """Return an encoder that has read the stored events up to the end of the leg."""
        form = object_form(response, is_workflow=is_workflow(record))
        who, leg = identity_of(request), response.leg
        return (await legs.read_stored(self._edge, who, record, form, leg))[0]
