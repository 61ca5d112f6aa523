"""Serves OpenAI's Responses API: /openai/v1/responses."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.types import ASGIApp

from penstock.bus.records import RunRecord
from penstock.dialects.openai import Asked as AskedItem
from penstock.dialects.openai import ResponsesEncoder
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
from penstock.web.problems import Problem
from penstock_edge.edge import Edge
from penstock_edge.runs.pauses import approval_record
from penstock_edge.runs.records import is_workflow, run_of
from penstock_edge.sources.locate import ancestors_of
from penstock_edge.stream.responses.single_body import SingleBody
from penstock_edge.surfaces import legs
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.bodies import json_response, page_of
from penstock_edge.surfaces.openai.ids import ResponseId
from penstock_edge.surfaces.openai.request import (
    ERRORS,
    Answered,
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


class Responses:
    """Has the handlers of responses. A response is one leg of a run."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._runs = Runs(edge)

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
        agent = self._runs.agent(body.model)
        if body.stream:
            edge.streams.require_room(request.scope)
        leg: legs.Leg | None
        if answers := answers_of(body):
            response, leg = await self._answer(asked, body, answers)
        else:
            session_id = await self._session(asked, body)
            items = body.input
            given = [{"role": "user", "content": items}] if isinstance(items, str) else items
            message = message_of(given, "input", in_session=session_id is not None)
            response, leg = await self._runs.start(asked, agent, message, session_id, body.metadata)
        record = await run_of(edge.bus, asked.who, response.run_id)
        if body.background and not body.stream:
            return json_response(await self._so_far(request, response, record))
        form: Any = stream_form(response) if body.stream else object_form(response)
        if leg is None:
            view, position = await self._runs.open(response, record, form, request)
        else:
            view, position = leg.view(form), leg.position
        if body.stream:
            return await edge.stream(view, position)
        return SingleBody(await edge.hubs.join(view, position), shape=ERRORS.response)

    async def _session(self, asked: Asked, body: ResponsesRequest) -> str | None:
        conversation = body.conversation
        if isinstance(conversation, dict):
            conversation = str(conversation.get("id"))
        named = conversation or asked.request.headers.get(SESSION)
        if body.previous_response_id is None:
            return named
        name = "previous_response_id"
        _, previous = await self._runs.run(asked.who, body.previous_response_id, name)
        if named not in (None, previous.session_id) or previous.agent != body.model:
            text = "is of another conversation or model, which does not know what was said"
            raise refused(name, text)
        return previous.session_id

    async def _answer(
        self, asked: Asked, body: ResponsesRequest, answers: list[Answered]
    ) -> tuple[ResponseId, legs.Leg | None]:
        """Decide, and return the leg that follows; None instead of a leg for a repeated request."""
        edge, who = self._edge, asked.who
        require(who, "decide")
        decisions, roots = [], {}
        for answered in answers:
            approval = await approval_record(edge.bus, answered.asked.approval_id)
            unknown = refused("input", f"no request {answered.asked} waits", 404)
            if approval is None:
                raise unknown
            await run_of(edge.bus, who, approval.run_id, unknown)
            of_approval = {
                AskedItem.of(approval.approval_id, each): each for each in approval.items
            }
            if (item := of_approval.get(answered.asked)) is None:
                raise Problem(409, "the request is not the one that was shown; look at it again")
            decisions.append((approval, answered.decision(item)))
            root = (await ancestors_of(edge.bus, approval.run_id))[-1]
            roots[root.run_id] = root
        root = next(iter(roots.values()))
        previous = body.previous_response_id
        if previous is not None:
            _, before = await self._runs.run(who, previous, "previous_response_id")
            roots[before.run_id] = before
        if len(roots) > 1:
            raise refused("input", "the answers belong to different runs")
        in_tree = is_workflow(root)
        reply = legs.Reply.in_tree(root, decisions)
        if not in_tree:
            if len(reply.answers) > 1:
                raise refused("input", "the answers belong to different pauses")
            reply = legs.Reply(reply.answers)
        earlier = await self._runs.earlier(asked) if asked.is_retry else None
        leg = None
        if earlier is None:
            leg = await legs.next_leg(edge, reply)
            answered_ids = [each.approval.approval_id for each in reply.answers] if in_tree else []
            response = ResponseId(leg.run_id, leg.number, leg.after, tuple(answered_ids))
            await self._runs.remember(asked, response=str(response))
        else:
            response = (await self._runs.run(who, earlier["response"], "input"))[0]
        await legs.decide(edge, who, "openai", reply, user_id=who.user_id, key=asked.key)
        return response, leg

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
            return json_response(await self._so_far(request, response, record))
        self._edge.streams.require_room(request.scope)
        after = query.get("starting_after", "-1")
        if after != "-1" and not (after.isascii() and after.isdigit() and len(after) <= 9):
            raise refused("starting_after", "must be the sequence_number of a frame")
        form = stream_form(response, int(after))
        return await self._edge.stream(*await self._runs.open(response, record, form, request))

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
        return json_response(await self._so_far(request, response, record))

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
        response, record = await self._named(request)
        encoder = ResponsesEncoder(str(response), response.leg)
        await self._read(request, response, record, encoder)
        items = encoder.inputs
        ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {}
        return json_response({"object": "list", "data": items, "has_more": False, **ends})

    async def _named(self, request: Request) -> tuple[ResponseId, RunRecord]:
        name = request.path_params["response_id"]
        return await self._runs.run(identity_of(request), name, "response_id")

    async def _so_far(self, request: Request, response: ResponseId, record: RunRecord) -> Any:
        encoder = ResponsesEncoder(str(response), response.leg)
        await self._read(request, response, record, encoder)
        return encoder.response() | ({"model": record.agent} if encoder.status == "queued" else {})

    async def _read(
        self, request: Request, response: ResponseId, record: RunRecord, encoder: ResponsesEncoder
    ) -> None:
        """Feed the encoder the stored events up to the end of the leg."""
        form = object_form(response, encoder)
        view, position = await self._runs.open(response, record, form, request)
        await page_of(self._edge, request, view, position)
