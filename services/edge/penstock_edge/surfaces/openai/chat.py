"""Serves OpenAI's Chat Completions: /openai/v1/chat/completions.

The protocol cannot ask. A pause ends the answer with a text, and a one-time link if the caller may
decide. While a decision is missing, every message of the conversation is answered by that text;
after it, the next message gets the rest (decision 0319).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from penstock import sse
from penstock.bus import BusError, Stored
from penstock.bus.messages import now
from penstock.bus.records import LinkRequest, RunRecord
from penstock.dialects.openai import DONE, ChatEncoder, ResponsesEncoder
from penstock.runs.decide import request_link
from penstock.service.deciders import decider_of
from penstock.web.operation import JSON, OBJECT, SSE, Answer, Operation, Parameter, serves
from penstock.web.problems import Problem
from penstock_edge.edge import Edge
from penstock_edge.runs import pauses
from penstock_edge.runs.records import is_workflow, run_of
from penstock_edge.sources.locate import record_of
from penstock_edge.sources.sessions import Session
from penstock_edge.stream.responses.single_body import SingleBody
from penstock_edge.surfaces import legs
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.openai.ids import ResponseId
from penstock_edge.surfaces.openai.request import ERRORS, ChatRequest, message_of, reference_in
from penstock_edge.surfaces.openai.runs import SESSION, Asked, Runs
from penstock_edge.surfaces.openai.views import Completion, chat_form

log = logging.getLogger(__name__)

_SESSION: Final = Parameter(
    "X-Penstock-Session",
    "The session. Without it, each request is a new one, which gets the whole conversation",
    location="header",
)


@dataclass(frozen=True, slots=True)
class _Conversation:
    """A request, and the run to which its conversation has come, if it paused: `response` is what
    follows the pause that the client has seen."""

    asked: Asked
    body: ChatRequest
    session_id: str | None
    record: RunRecord | None = None
    response: ResponseId | None = None

    def encoder(self, response: ResponsesEncoder) -> ChatEncoder:
        usage = self.body.stream_options is not None and self.body.stream_options.include_usage
        return ChatEncoder(response, bool(self.body.stream), bool(usage))


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
        agent = self._runs.agent(body.model)
        edge.streams.require_room(request.scope)
        session_id = request.headers.get(SESSION) or (body.metadata or {}).get("session_id")
        message = message_of(body.messages, "messages", in_session=session_id is not None)
        talk = await self._conversation(asked, body, session_id)
        if talk.record is not None and (waiting := await self._waiting(talk, talk.record)):
            return waiting
        if (response := talk.response) is None:
            response, leg = await self._runs.start(asked, agent, message, session_id, body.metadata)
        else:
            leg = None
        form = chat_form(response, talk.encoder, partial(self._look_up, asked, response))
        if leg is None:
            record = await run_of(edge.bus, asked.who, response.run_id)
            view, position = await self._runs.open(response, record, form, request)
        else:
            view, position = leg.view(form), leg.position
        if body.stream:
            return await edge.stream(view, position)
        return SingleBody(await edge.hubs.join(view, position), Completion(), ERRORS.response)

    async def _conversation(
        self, asked: Asked, body: ChatRequest, session_id: str | None
    ) -> _Conversation:
        """Find the pause that the last answer names, or else the newest run of the session. What is
        found says only what the client reads; the text decides nothing."""
        bus, who = self._edge.bus, asked.who
        if (name := reference_in(body.messages)) is not None:
            with suppress(Problem):
                response, record = await self._runs.run(who, name, "messages")
                if record.agent == body.model and session_id in (None, record.session_id):
                    return _Conversation(asked, body, session_id, record, response)
        if session_id is None:
            return _Conversation(asked, body, session_id)
        session = Session(who.user_id, session_id, (body.model,), any_agent=False)
        newest = await pauses.newest_runs(bus, session)
        last = await record_of(bus, newest[-1]) if newest else None
        return _Conversation(asked, body, session_id, last)

    async def _waiting(self, talk: _Conversation, record: RunRecord) -> ASGIApp | None:
        """Return the answer that the run waits for decisions, if it does."""
        edge, who = self._edge, talk.asked.who
        if (paused := await pauses.pause_event(edge.bus, record.run_id)) is None:
            return None
        if is_workflow(record):
            found = await pauses.open_approvals(edge.bus, who.user_id, record, lambda _: True)
            asked = [(each.approval, each.items) for each in found]
            reply = legs.Reply([], record)
        else:
            approval = await pauses.approval_record(
                edge.bus, await pauses.approval_id_of(edge.bus, paused)
            )
            is_open = approval is not None and approval.status == "pending"
            asked = [(approval, approval.items)] if approval is not None and is_open else []
            reply = legs.Reply([legs.Answer(each) for each, _ in asked])
        if not asked:
            return None
        leg = await legs.next_leg(edge, reply)
        following = ResponseId(leg.run_id, leg.number, leg.after)
        encoder = talk.encoder(ResponsesEncoder(f"resp_{record.run_id}"))
        said: dict[str, Any] = {"run_id": record.run_id, "timestamp": now(), "leg": 1}
        events: list[tuple[str, str, dict[str, Any]]] = [
            ("lifecycle", "started", {"agent": record.agent})
        ]
        for each, items in asked:
            data = {"approval_id": each.approval_id, "items": items}
            events.append(("approval", "requested", data))
        frames: list[sse.Frame] = []
        for category, action, data in (*events, ("lifecycle", "paused", {})):
            if action == "paused":
                await self._add_links(talk.asked, encoder, following)
            event = {**said, "event": {"category": category, "action": action}, "data": data}
            frames += encoder.feed(event)
        if not talk.body.stream:
            return Response(frames[-1].data, media_type=JSON)
        stream = b"".join(sse.encode(each.data) for each in frames) + sse.encode(DONE)
        return Response(stream, media_type=SSE)

    async def _look_up(
        self, asked: Asked, response: ResponseId, encoder: ChatEncoder, paused: Stored
    ) -> None:
        root = await record_of(self._edge.bus, response.run_id)
        after = paused.sequence if is_workflow(root) else 0
        following = ResponseId(response.run_id, encoder.response.at_leg + 1, after)
        await self._add_links(asked, encoder, following)

    async def _add_links(self, asked: Asked, encoder: ChatEncoder, following: ResponseId) -> None:
        encoder.following = str(following)
        for approval_id in encoder.response.waiting:
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
                text = "approval %s gets no link: %s"
                log.warning(text, approval_id, error)
                return None
            if reply.url is not None:
                is_path = reply.url.startswith("/")
                base = str(asked.request.base_url).rstrip("/") if is_path else ""
                return base + reply.url
            if reply.status != 422:
                return None
        return None
