"""Serves chats to `useChat` of the Vercel AI SDK: start, answer, resume and stop (decision 0312).

A chat is a session, and one run is one assistant message.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from penstock import sse
from penstock.dialects import vercel
from penstock.runs.start import Start
from penstock.settings import AgentConfig
from penstock.web.auth import Identity, identity_of, require
from penstock.web.bodies import ignore_body
from penstock.web.operation import OBJECT, Operation, Parameter, in_path, json, one_of, serves
from penstock.web.problems import Problem
from penstock_edge.sources.sessions import newest_run
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.agents import agent_by_id
from penstock_edge.surfaces.bodies import json_body, json_response, workflow_input
from penstock_edge.surfaces.errors import shortened
from penstock_edge.surfaces.legs import decide, first_leg, next_leg, replay, reply_of
from penstock_edge.surfaces.query import cursor_of
from penstock_edge.surfaces.session_start import session_of
from penstock_edge.surfaces.surface import Handlers
from penstock_edge.surfaces.vercel.request import Chat, ChatRequest
from penstock_edge.views.encoded_leg import LegForm
from penstock_edge.views.framing import Sse
from penstock_edge.views.upstream_frames import INTERRUPTED

VERCEL: Final = "vercel"
# The SDK's client sends no cursor, so a stream that ends before its run must end in an error.
FRAMING: Final = Sse(named=False, is_resumable=False)
CUT: Final = [
    sse.encode(orjson.dumps({"type": "error", "errorText": INTERRUPTED})),
    sse.encode(vercel.DONE),
]
Form = LegForm[vercel.VercelEncoder]
FORMS: Final[dict[str, Form]] = {
    sdk: LegForm(
        (f"sdk={sdk}",),
        VERCEL,
        partial(vercel.VercelEncoder, sdk),
        FRAMING.event,
        lambda encoder: CUT,
        FRAMING,
        vercel.DONE,
        vercel.HEADERS,
    )
    for sdk in vercel.SDKS
}
SDK: Final = Parameter("sdk", "The major version of the client's package `ai`", one_of(vercel.SDKS))
CHAT_ID: Final = in_path("chat", "The chat's id, which is the session's id")
HELLO: Final = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}
_chats = partial(Operation, tag=VERCEL, refusals=(404, 409, 410))


class Chats(Handlers):
    """Has the handlers of /vercel/{agent}."""

    @serves(
        _chats(
            method="POST",
            path="/vercel/{agent}",
            summary="Start a run, or answer a pause, and stream the leg as a UI message",
            answers={200: by.STREAMED},
            scopes=(),
            any_scope=("start", "decide"),
            parameters=(by.AGENT_ID, SDK),
            body=ChatRequest,
            example={"id": "chat-1", "trigger": "submit-message", "messages": [HELLO]},
            description="Only the last message counts: a user's starts a run (scope `start`), and "
            "an assistant's answers a pause, with the digests of what was asked (`decide`).",
        )
    )
    async def post(self, request: Request) -> ASGIApp:
        edge, who = self._edge, identity_of(request)
        agent = agent_by_id(edge.config, request.path_params["agent"])
        form = _form_of(request)
        edge.streams.require_room(request.scope)
        body = await json_body(edge, request)
        chat = Chat.parse(body)
        if not (answers := chat.answers()):
            require(who, "start")
            return await self._start(who, agent, chat, body, form)
        require(who, "decide")
        reply = await reply_of(edge.bus, who, agent, chat.request.id, "messages", answers)
        leg = await next_leg(edge, reply)
        await decide(edge, who, VERCEL, reply, user_id=who.user_id)
        return await edge.stream(leg.view(form), leg.position, who)

    async def _start(
        self, who: Identity, agent: AgentConfig, chat: Chat, body: bytes, form: Form
    ) -> ASGIApp:
        """For a repeated request, stream the run of the first one. A message that is generated
        again is no repetition: the client removes the earlier answer, and wants another."""
        edge, asked = self._edge, chat.request
        again = asked.trigger == "regenerate-message"
        digest = hashlib.sha256(body).hexdigest()
        start = Start(
            agent,
            chat.text(),
            asked.id,
            who.run_user(who.user_id),
            input=workflow_input(agent, asked.input, "input"),
            key=None if again else orjson.dumps([VERCEL, agent.id, asked.id, digest]).decode(),
            request=body,
            when_busy="refuse" if again else asked.when_busy,
        )
        started, leg = await first_leg(edge, start)
        if not started.new:
            return await edge.stream(*await replay(edge, started.record, form, None), who)
        return await edge.stream(leg.view(form), leg.position, who)

    @serves(
        _chats(
            method="GET",
            path="/vercel/{agent}/{chat}/stream",
            summary="The chat's newest message from its start, or from after a cursor",
            description="The stream ends with the run, or with a pause that waits for an answer. "
            "204 if there is no message, or if the client has all of it.",
            answers=by.FOLLOWED,
            scopes=("read",),
            parameters=(by.AGENT_ID, CHAT_ID, SDK, by.USER, *by.CURSOR),
        )
    )
    async def resume(self, request: Request) -> ASGIApp:
        edge, form = self._edge, _form_of(request)
        session = await session_of(edge, request, "chat", request.path_params["agent"])
        edge.streams.require_room(request.scope)
        record, after = await newest_run(edge.bus, session), cursor_of(request)
        if record is None:
            return Response(status_code=204)
        try:
            return await edge.stream(*await replay(edge, record, form, after), identity_of(request))
        except Problem as problem:
            if problem.status != 410 or after is not None:
                raise
            # The events have expired. Pages ask for the stream of every chat that they open.
            return Response(status_code=204)

    @serves(
        _chats(
            method="POST",
            path="/vercel/{agent}/{chat}/stop",
            summary="Cancel the chat's newest run: a client that leaves does not",
            answers={
                200: json("The run is cancelled: `run_id`, and `confirmed` by its server", OBJECT),
                202: json("Not known yet", OBJECT),
            },
            scopes=("start",),
            parameters=(by.AGENT_ID, CHAT_ID, by.USER),
        )
    )
    async def stop(self, request: Request) -> ASGIApp:
        edge = self._edge
        await ignore_body(request)
        session = await session_of(edge, request, "chat", request.path_params["agent"])
        record = await newest_run(edge.bus, session)
        if record is None:
            raise Problem(404, f"there is no chat {shortened(session.session_id)}")
        cancelled = await edge.canceller.cancel(record.run_id, identity_of(request))
        body = {"run_id": record.run_id, "confirmed": cancelled.confirmed}
        return json_response(body, 202 if cancelled.at is None else 200)


def _form_of(request: Request) -> Form:
    sdk = request.query_params.get("sdk", vercel.DEFAULT_SDK)
    if sdk not in FORMS:
        raise Problem(422, f"sdk: must be one of {', '.join(FORMS)}")
    return FORMS[sdk]
