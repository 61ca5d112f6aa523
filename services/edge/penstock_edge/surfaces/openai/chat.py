"""Serves OpenAI's Chat Completions: /openai/v1/chat/completions."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp

from penstock.web.operation import JSON, OBJECT, SSE, Answer, Operation, Parameter, serves
from penstock_edge.edge import Edge
from penstock_edge.runs.records import run_of
from penstock_edge.stream.responses.single_body import SingleBody
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.openai.request import ERRORS, ChatRequest, message_of
from penstock_edge.surfaces.openai.runs import SESSION, Asked, Runs
from penstock_edge.surfaces.openai.views import Completion, chat_form

_SESSION: Final = Parameter(
    "X-Penstock-Session",
    "The session. Without it, each request is a new one, which gets the whole conversation",
    location="header",
)


class Chat:
    """Has the handler of completions. A completion is one leg of a run."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._runs = Runs(edge)

    @serves(
        Operation(
            method="POST",
            path="/openai/v1/chat/completions",
            summary="Start a run with the last message; `model` is an agent",
            tag="openai",
            answers={
                200: Answer("The completion, or its stream", {JSON: OBJECT, SSE: by.STREAM}),
            },
            scopes=("start",),
            errors=ERRORS,
            refusals=(400, 404, 409, 410, 502),
            parameters=(_SESSION,),
            body=ChatRequest,
            example={
                "model": "assistant",
                "messages": [{"role": "user", "content": "Hello"}],
                "stream": True,
            },
        )
    )
    async def create(self, request: Request) -> ASGIApp:
        edge = self._edge
        asked = await Asked.read(edge, request)
        body = asked.parsed(ChatRequest)
        agent = self._runs.agent(body.model)
        edge.streams.require_room(request.scope)
        session_id = request.headers.get(SESSION) or (body.metadata or {}).get("session_id")
        message = message_of(body.messages, "messages", in_session=session_id is not None)
        response, leg = await self._runs.start(asked, agent, message, session_id, body.metadata)
        usage = bool(body.stream_options and body.stream_options.include_usage)
        form = chat_form(response, streaming=bool(body.stream), include_usage=usage)
        if leg is None:
            record = await run_of(edge.bus, asked.who, response.run_id)
            view, position = await self._runs.open(response, record, form, request)
        else:
            view, position = leg.view(form), leg.position
        if body.stream:
            return await edge.stream(view, position)
        return SingleBody(await edge.hubs.join(view, position), Completion(), ERRORS.response)
