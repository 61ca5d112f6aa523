"""Serves /v1/runs/{run_id}/fork: a new run that goes on after an event of an earlier one."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.types import ASGIApp

from penstock.bus.records.runs import ForkedFrom, RunRecord
from penstock.runs.depth import HEADER, MAX_DEPTH, depth_of_request
from penstock.runs.start import Origin, Start
from penstock.web.auth import Identity, acting_user, identity_of
from penstock.web.bodies import read_json
from penstock.web.operation import (
    FLAG,
    NULLABLE,
    TEXT,
    Operation,
    Parameter,
    a_list,
    an_object,
    json,
    serves,
)
from penstock.web.problems import Problem, invalid
from penstock_edge.runs.forking import FirstRun, NotForkable, fork_of, preview
from penstock_edge.runs.records import run_of
from penstock_edge.sources.read_run import BYTES_READ, EVENTS_READ, READ_S, Allowance, read_run
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.bodies import Message, json_response
from penstock_edge.surfaces.query import number
from penstock_edge.surfaces.surface import Handlers
from penstock_edge.surfaces.v1.runs import Key, key_of, shown

_operation = partial(Operation, tag="runs", path="/v1/runs/{run_id}/fork")
_INTEGER: Final = {"type": "integer"}
_ANY_NUMBER: Final = {"type": "integer", "minimum": 1, "maximum": EVENTS_READ}
_TAKEN_OVER: Final = an_object(steps=a_list(TEXT), messages=_INTEGER, tool_calls=_INTEGER)
Sequence = Annotated[int, Field(ge=1, le=EVENTS_READ)]


class ForkRequest(BaseModel):
    """The body of POST /v1/runs/{run_id}/fork."""

    model_config = ConfigDict(extra="forbid", strict=True)

    sequence: Sequence | None = Field(
        None,
        description="The `sequence` of the last event of the run that is taken over. Default: its "
        "last event, so that a workflow runs again from the step that has failed",
    )
    message: Message | None = Field(
        None, description="What is said to the agent at this point; a workflow takes none"
    )
    idempotency_key: Key | None = None


class Forks(Handlers):
    """Has the handlers of forks."""

    @serves(
        _operation(
            method="GET",
            summary="What a fork of a run would take over",
            description="Nothing is started. `reason` says why a fork is not possible. People are "
            "asked again in the steps `asks_again`, and in nested workflows. `later_steps` and "
            "`later_tools` are what the run had not completed at the event, and the fork may do "
            "again.",
            answers={
                200: json(
                    "What it would take over",
                    an_object(
                        run_id=TEXT,
                        sequence=_INTEGER,
                        possible=FLAG,
                        reason=NULLABLE,
                        needs_message=FLAG,
                        taken_over=_TAKEN_OVER,
                        asks_again=a_list(TEXT),
                        later_steps=a_list(TEXT),
                        later_tools=a_list(TEXT),
                    ),
                )
            },
            scopes=("read",),
            parameters=(
                by.RUN_ID,
                Parameter("sequence", "As in the body of the POST", _ANY_NUMBER),
            ),
            refusals=(404, 410),
        )
    )
    async def look(self, request: Request) -> ASGIApp:
        query = request.query_params
        sequence = number(query.get("sequence"), "sequence", EVENTS_READ, EVENTS_READ)
        first = await self._first(request, sequence)
        return json_response(preview(first, self._edge.config.agent(first.record.agent)))

    @serves(
        _operation(
            method="POST",
            summary="Begin a run after an event of an ended run",
            description="The new run belongs to the caller, and `forked_from` names the first run "
            "and the event. A workflow takes over the steps that had completed by then "
            "(`taken_from` in their events), and asks for every approval again, also in nested "
            "workflows, which are forked, too. An agent's run begins with the conversation up to "
            "the event. 409 says why a run cannot be forked.",
            answers={
                200: json("The first run of the same idempotency key", RunRecord),
                202: json("The run", RunRecord),
            },
            scopes=("start",),
            parameters=(by.RUN_ID, by.IDEMPOTENCY_KEY, by.DEPTH),
            body=ForkRequest,
            example={"sequence": 12},
            refusals=(404, 409, 410),
        )
    )
    async def fork(self, request: Request) -> ASGIApp:
        edge, who = self._edge, identity_of(request)
        body = await read_json(request, edge.settings.max_body_bytes)
        try:
            asked = ForkRequest.model_validate(body)
        except ValidationError as error:
            raise invalid(error) from error
        depth = depth_of_request(request.headers.get(HEADER), MAX_DEPTH)
        first = await self._first(request, asked.sequence or EVENTS_READ)
        run_id, at = first.record.run_id, first.state.at
        if asked.sequence is not None and asked.sequence > at:
            raise Problem(422, f"sequence: the run has {at} events")
        try:
            fork = fork_of(first, edge.config.agent(first.record.agent), asked.message)
        except NotForkable as error:
            raise Problem(409, str(error)) from error
        if fork.needs_message and asked.message is None:
            raise Problem(
                422, "message: the agent has nothing to answer after this event; say something"
            )
        started = await edge.starter.start(
            Start(
                fork.agent,
                fork.message,
                fork.session_id,
                who.run_user(_owner(who, first.record, fork.session_id)),
                input=fork.input,
                key=key_of(request, asked.idempotency_key),
                request=orjson.dumps([run_id, body], option=orjson.OPT_SORT_KEYS),
                origin=Origin(depth=depth),
                forked_from=ForkedFrom(run_id=run_id, sequence=at),
                tags=first.record.tags,
                taken_over=fork.taken_over,
            )
        )
        return shown(who, started.record, 202 if started.new else 200)

    async def _first(self, request: Request, at: int) -> FirstRun:
        """Read the run that the request names. Raises Problem 410 if its events have expired."""
        edge, who = self._edge, identity_of(request)
        record = await run_of(edge.bus, who, request.path_params["run_id"])
        first = FirstRun(record, at)
        allowance = Allowance(EVENTS_READ, BYTES_READ, READ_S)
        turn = edge.turns.for_caller(who)
        await read_run(edge.bus, record, allowance, turn, first.take, who=who)
        if first.state.first != 1:
            raise Problem(410, "the run's first events are no longer kept")
        if first.last < record.sequence and allowance.is_spent:
            raise Problem(422, "the run has too many events to be forked")
        if first.last < record.sequence:
            raise Problem(422, f"event {record.sequence} of the run is not stored; try again later")
        return first


def _owner(who: Identity, record: RunRecord, session_id: str | None) -> str:
    """Return the user of the fork: the caller. A fork in the session of the first run belongs to
    the user of this session, for whom the caller must be able to act."""
    return acting_user(who, None if session_id is None else record.user_id)
