"""Serves the routes that start a workflow by its name, and say for what its run waits."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.bus import Bus
from penstock.bus.records.runs import ForkedFrom, RunRecord
from penstock.bus.subjects import is_run_id
from penstock.runs.depth import HEADER, MAX_DEPTH, depth_of_request
from penstock.runs.start import Origin, Start, Starter, check_fork
from penstock.settings import WorkflowAgent
from penstock.start_fields import Tags
from penstock.web.answers import json_answer
from penstock.web.auth import acting_user, identity_of
from penstock.web.auth.identity import check_run
from penstock.web.bodies import read_model
from penstock.web.operation import TEXT, Parameter, a_list, an_object, in_path, json, serves
from penstock.web.problems import Problem
from penstock_workflows.api.common import WORKFLOW, name_of, operation
from penstock_workflows.effects.turns import place_of

Key = Annotated[str, Field(min_length=1, max_length=256)]
Id = Annotated[str, Field(min_length=1, max_length=512)]

_KEY = Parameter(
    "Idempotency-Key",
    "A repeated request with the same key gets the run of the first one",
    location="header",
)
_DEPTH = Parameter(
    "Penstock-Depth",
    "The header of the webhook that led to this request, so that circles of rules end",
    location="header",
)


class RunBody(BaseModel):
    """What a run of a workflow begins with."""

    model_config = ConfigDict(extra="forbid", strict=True)

    input: dict[str, Any] | None = Field(
        None, description="The input, which must fit the input schema of the definition."
    )
    message: str = Field(
        "",
        max_length=262_144,
        description="A message. Expressions see it as `input.message`, unless the schema has no "
        "such field.",
    )
    version: str | None = Field(
        None, max_length=32, description="The version. Default: the latest one."
    )
    session_id: Id | None = Field(None, description="The session. Default: a new one.")
    user_id: Id | None = Field(
        None, description="The user, if it is not the caller; needs the scope act-as."
    )
    idempotency_key: Key | None = Field(None, description="The same as the header.")
    forked_from: ForkedFrom | None = Field(None, description="The run that this run repeats.")
    tags: Tags | None = None


class Starts:
    """The handlers of the routes."""

    def __init__(self, bus: Bus, starter: Starter, max_body_bytes: int) -> None:
        self._bus = bus
        self._starter = starter
        self._max_body_bytes = max_body_bytes

    @serves(
        operation(
            method="POST",
            path="/v1/workflows/{name}/runs",
            summary="Start a run of a workflow",
            description="The answer comes when the run is stored; its events are those of "
            "`GET /v1/runs/{run_id}/events`. An input that does not fit the definition's schema is "
            "refused with 422, and nothing starts.",
            answers={
                200: json("The first run of the same idempotency key", RunRecord),
                202: json("The run", RunRecord),
            },
            scopes=("start",),
            sometimes={"act-as": "to start a run of another user"},
            parameters=(WORKFLOW, _KEY, _DEPTH),
            body=RunBody,
            example={"input": {"who": "Ada"}},
            refusals=(404, 409),
        )
    )
    async def start(self, request: Request) -> Response:
        who, name = identity_of(request), name_of(request)
        body = await read_model(request, RunBody, self._max_body_bytes)
        user_id = acting_user(who, body.user_id)
        depth = depth_of_request(request.headers.get(HEADER), MAX_DEPTH)
        await check_fork(self._bus, who, body.forked_from)
        started = await self._starter.start(
            Start(
                WorkflowAgent(id=name, protocol="workflow", agent=name, version=body.version),
                body.message,
                body.session_id,
                who.run_user(user_id),
                input=body.input,
                key=_key(request, body),
                # The Starter compares these bytes when an idempotency key comes again. They
                # contain the workflow's name, because the name is in the path, and the same
                # body with another name is another request.
                request=orjson.dumps(
                    [name, body.model_dump(exclude={"idempotency_key"})],
                    option=orjson.OPT_SORT_KEYS,
                ),
                origin=Origin(depth=depth),
                forked_from=body.forked_from,
                tags=body.tags,
            )
        )
        record = started.record.model_copy(update={"unredacted": None})
        headers = {"location": f"/v1/runs/{record.run_id}", "penstock-run-id": record.run_id}
        return Response(record.dump(), 202 if started.new else 200, headers, "application/json")

    @serves(
        operation(
            method="GET",
            path="/v1/workflows/{name}/runs/{run_id}/turn",
            summary="Behind which runs a run of a workflow with `exclusive` waits",
            description="`key` is what these runs have in common; `before` counts the runs that "
            "come first, and `runs` names those of them that the caller may see, the run under way "
            "first.",
            answers={
                200: json(
                    "The turn",
                    an_object(key=TEXT, before={"type": "integer"}, runs=a_list(TEXT)),
                )
            },
            scopes=("read",),
            parameters=(WORKFLOW, in_path("run_id", "The run's id")),
            refusals=(404,),
        )
    )
    async def turn(self, request: Request) -> Response:
        who, name = identity_of(request), name_of(request)
        run_id = str(request.path_params["run_id"])
        unknown = Problem(404, f"there is no run {run_id[:64]}")
        if not is_run_id(run_id):
            raise unknown
        record = await self._bus.bucket("runs").load(run_id, RunRecord)
        if record is None:
            raise unknown
        check_run(who, record.user_id, record.run_id, record.session_id)
        place = await place_of(self._bus, run_id)
        if place is None or place.workflow != name:
            raise Problem(404, f"the run {run_id} has asked for no turn in the workflow {name}")
        shown = [run for run, user in place.before if who.may_see_runs_of(user)]
        return json_answer({"key": place.key, "before": len(place.before), "runs": shown})


def _key(request: Request, body: RunBody) -> str | None:
    header = request.headers.get("idempotency-key")
    if header is not None and body.idempotency_key not in (None, header):
        raise Problem(422, "idempotency_key: the body and the header differ; send one of them")
    if header == "":
        raise Problem(422, "Idempotency-Key: must not be empty")
    return header or body.idempotency_key
