"""Serves OpenAI's Chat Completions: /openai/v1/chat/completions.

The protocol cannot ask. A pause ends the answer with a text, and a one-time link if the caller may
decide. While a decision is missing, every message of the conversation gets this answer again; after
it, the next message gets the rest (decision 0319).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp

from penstock.bus import BusError, Stored
from penstock.bus.records.approvals import LinkRequest
from penstock.bus.records.runs import RunRecord
from penstock.dialects.openai import ChatEncoder
from penstock.runs.decide import request_link
from penstock.service.deciders import decider_of
from penstock.settings import AgentConfig, WorkflowAgent
from penstock.web.auth import Identity
from penstock.web.operation import JSON, OBJECT, SSE, Answer, Operation, Parameter, serves
from penstock.web.problems import Problem
from penstock_edge.runs.records import is_workflow
from penstock_edge.sources.sessions import Session, newest_run
from penstock_edge.surfaces import legs
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.openai.request import (
    ERRORS,
    ChatRequest,
    ResponseId,
    message_of,
    reference_in,
)
from penstock_edge.surfaces.openai.runs import SESSION, Asked, Runs
from penstock_edge.surfaces.openai.views import Completion, chat_form, follow

log = logging.getLogger(__name__)

_SESSION: Final = Parameter(
    "X-Penstock-Session",
    "The session. Without it, each request is a new one, which gets the whole conversation",
    location="header",
)


class Chat(Runs):
    """Has the handler of completions. A completion is one leg of a run."""

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
            parameters=(_SESSION, by.WHEN_BUSY),
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
        agent = self.agent(body.model)
        edge.streams.require_room(request.scope)
        session_id = request.headers.get(SESSION) or (body.metadata or {}).get("session_id")
        message = message_of(body.messages, "messages", in_session=session_id is not None)
        record, response = await self._conversation(asked.who, body, session_id)
        whole = None if body.stream else Completion()
        look_up = partial(self._look_up, asked, agent)
        if record is not None:
            newest = await legs.newest_leg(edge, record.run_id)
            if newest.waits:
                number = await self._waiting(record, newest)
                shown = ResponseId(record.run_id, legs.LegId(number))
                form = chat_form(shown, body, look_up)
                view, position = await legs.replay(edge, record, form, None, newest)
                return await self.send(asked.who, view, replace(position, ended=False), whole)
        leg = None
        if response is None:
            response, leg = await self.start(asked, agent, message, session_id, body.metadata)
        return await self.respond(asked, response, leg, chat_form(response, body, look_up), whole)

    async def _conversation(
        self, who: Identity, body: ChatRequest, session_id: str | None
    ) -> tuple[RunRecord | None, ResponseId | None]:
        """Find the run that the last answer names, and what follows the pause that the client has
        seen; or else the newest run of the session. What is found says only what the client reads;
        the text decides nothing."""
        if (name := reference_in(body.messages)) is not None:
            with suppress(Problem):
                response, record = await self.run(who, name, "messages")
                if record.agent == body.model and session_id in (None, record.session_id):
                    return record, response
        if session_id is None:
            return None, None
        session = Session(who.user_id, session_id, (body.model,), any_agent=False)
        return await newest_run(self._edge.bus, session), None

    async def _waiting(self, record: RunRecord, newest: legs.Newest) -> int:
        """Return the number of the leg whose pause waits, as the events that clients see count."""
        if not is_workflow(record):
            return newest.number
        return (await legs.next_leg(self._edge, legs.Reply([], record))).number - 1

    async def _look_up(
        self, asked: Asked, agent: AgentConfig, encoder: ChatEncoder, paused: Stored
    ) -> None:
        """Give the encoder what the text of a pause needs: the links, and what follows."""
        await follow(encoder, paused, is_workflow=isinstance(agent, WorkflowAgent))
        for approval_id in encoder.waiting:
            if (link := await self._link(asked, approval_id)) is not None:
                encoder.links[approval_id] = link

    async def _link(self, asked: Asked, approval_id: str) -> str | None:
        """Return a link with which the caller decides; None if the caller may not decide."""
        who = asked.who
        for role in (None, *sorted(who.roles)):
            maker = decider_of(who, "openai")
            request = LinkRequest(maker=maker, user=who.user_id, role=role)
            try:
                reply = await request_link(self._edge.bus, approval_id, request)
            except BusError as error:
                log.warning("approval %s gets no link: %s", approval_id, error)
                return None
            if reply.url is not None:
                is_path = reply.url.startswith("/")
                base = str(asked.request.base_url).rstrip("/") if is_path else ""
                return base + reply.url
            if reply.status != 422:
                return None
        return None
