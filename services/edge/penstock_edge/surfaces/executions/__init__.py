"""Serves the contract executions-sse.md: triggers and cancels runs.

A topology is an agent that this contract names by a number (`topologyId`). Errors are `{code,
message, data: null}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.types import ASGIApp

from penstock import start_fields
from penstock.runs.start import Start
from penstock.web.auth import identity_of
from penstock.web.bodies import read_model
from penstock.web.operation import TEXT, Operation, an_object, json, serves
from penstock.web.problems import ErrorShape, Problem, schema_of
from penstock_edge.runs.records import is_workflow
from penstock_edge.surfaces.bodies import Message, json_response
from penstock_edge.surfaces.errors import unaccepted_as_422
from penstock_edge.surfaces.legs import begin
from penstock_edge.surfaces.parameters import STREAMED
from penstock_edge.surfaces.surface import Handlers, Surface


class TriggerRequest(BaseModel):
    """The body of a trigger. `topologyId` must be an integer in JSON, not a text with digits."""

    model_config = ConfigDict(strict=True, extra="allow")

    topology_id: int = Field(alias="topologyId")
    user_message: Message = Field(alias="userMessage")


class CancelRequest(BaseModel):
    """The body of a cancel."""

    model_config = ConfigDict(strict=True)

    run_id: str = Field(alias="runId", min_length=1)


CODES: Final = {
    400: "INVALID_REQUEST",
    401: "UNAUTHORIZED",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    413: "PAYLOAD_TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
    422: "INVALID_REQUEST",
    429: "TOO_MANY_REQUESTS",
    503: "UNAVAILABLE",
}
_DATA: Final = an_object(type=TEXT, runId=TEXT, content=TEXT, timestamp=TEXT)


def _shape(codes: Mapping[int, str]) -> ErrorShape:
    def body(problem: Problem) -> Mapping[str, Any]:
        code = codes.get(problem.status, "ERROR")
        return {"code": code, "message": problem.detail, "data": None}

    schema = schema_of(code=TEXT, message=TEXT, data={"type": "null"})
    return ErrorShape("executions", "application/json", schema, body)


class TriggerAndCancel(Handlers):
    """Has the handlers of the executions contract."""

    @serves(
        Operation(
            method="POST",
            path="/api/service/v1/executions/trigger",
            summary="Start a run of a topology, streamed to its end",
            tag="executions",
            answers={200: STREAMED},
            scopes=("start",),
            errors=_shape(CODES),
            body=TriggerRequest,
            example={"topologyId": 123, "userMessage": "Hello"},
            refusals=(404,),
        )
    )
    async def trigger(self, request: Request) -> ASGIApp:
        """Stream whatever the `Accept` header says."""
        edge = self._edge
        who = identity_of(request)
        asked = await read_model(request, TriggerRequest, edge.settings.max_body_bytes)
        agent = edge.config.by_topology(asked.topology_id)
        if agent is None:
            raise Problem(404, f"topologyId: {edge.config.no_topology(asked.topology_id)}")
        with unaccepted_as_422():
            start_fields.refuse_answers(asked.model_extra)
        edge.streams.require_room(request.scope)
        start = Start(
            agent,
            asked.user_message,
            None,
            who.run_user(who.user_id),
        )
        started, position = await begin(edge, start)
        record = started.record
        view = edge.view(record.run_id, "executions", children=is_workflow(record))
        return await edge.stream(view, position, who)

    @serves(
        Operation(
            method="POST",
            path="/api/service/v1/executions/cancel",
            summary="Cancel a run",
            tag="executions",
            answers={
                200: json("The run is cancelled", an_object(code=TEXT, message=TEXT, data=_DATA))
            },
            scopes=("start",),
            errors=_shape(CODES | {404: "CANCEL_FAILED", 409: "CANCEL_FAILED"}),
            body=CancelRequest,
            refusals=(404, 409),
        )
    )
    async def cancel(self, request: Request) -> ASGIApp:
        edge = self._edge
        who = identity_of(request)
        asked = await read_model(request, CancelRequest, edge.settings.max_body_bytes)
        try:
            cancelled = await edge.canceller.cancel(asked.run_id, who)
        except Problem as problem:
            if problem.status == 404:
                raise Problem(404, "Execution not found") from problem
            raise
        if cancelled.at is None:
            raise Problem(503, "The cancellation is not confirmed yet; ask for the run's state")
        body = {
            "code": "SUCCESS",
            "message": "Execution cancelled",
            "data": {
                "type": "cancelled",
                "runId": asked.run_id,
                "content": "Execution was cancelled by user",
                "timestamp": cancelled.at,
            },
        }
        return json_response(body)


class Executions(Surface):
    """Has the handlers for runs of topologies."""

    handlers = (TriggerAndCancel,)
