"""Serves the endpoints for runs in Penstock's own API: /v1/runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, get_args

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from penstock import start_fields
from penstock.bus.records.runs import ENDED, ForkedFrom, RunRecord, RunStatus, WhenBusy
from penstock.bus.subjects import is_run_id
from penstock.runs.depth import HEADER, MAX_DEPTH, depth_of_request
from penstock.runs.start import SHOWN_CHARACTERS, Origin, Start, check_fork
from penstock.start_fields import MAX_TAGS, Tags
from penstock.web.auth import Identity, acting_user, identity_of, require
from penstock.web.bodies import ignore_body, read_json
from penstock.web.operation import (
    FLAG,
    JSON,
    NULLABLE,
    OBJECT,
    SSE,
    TEXT,
    Answer,
    Operation,
    Parameter,
    a_list,
    an_object,
    json,
    one_of,
    serves,
)
from penstock.web.problems import Problem, invalid
from penstock_edge.runs.deliveries import deliveries_of
from penstock_edge.runs.forking import why_not
from penstock_edge.runs.records import is_workflow, run_of, unfinished_descendants
from penstock_edge.runs.trace import trace_of
from penstock_edge.sources.locate import locate, with_marker
from penstock_edge.sources.read_run import BYTES_READ, EVENTS_READ, READ_S, Allowance, read_run
from penstock_edge.sources.run_list import Contained, began_between
from penstock_edge.stream.responses.pages import MAX_PAGE
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.bodies import Message, json_response, page_of
from penstock_edge.surfaces.errors import unaccepted_as_422
from penstock_edge.surfaces.legs import begin
from penstock_edge.surfaces.query import (
    cursor_of,
    dialect_of,
    first_of,
    include_of,
    number,
    switch,
    time_of,
    types_of,
    wants_page,
    with_children,
)
from penstock_edge.surfaces.surface import Handlers
from penstock_edge.views.audience import PII
from penstock_edge.views.dialects import DIALECTS, RAW_DIALECT
from penstock_edge.views.framing import PageItems, Sse
from penstock_edge.views.run_state import RunState
from penstock_edge.views.view import ReadFrom

Key = Annotated[str, Field(min_length=1, max_length=256)]
Id = Annotated[str, Field(min_length=1, max_length=512)]


class StartRequest(BaseModel):
    """The body of POST /v1/runs. Naming another user in `user_id` requires the scope `act-as`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    agent: str
    message: Message
    session_id: Id | None = None
    user_id: Id | None = None
    input: dict[str, Any] | None = None
    idempotency_key: Key | None = None
    when_busy: WhenBusy = Field(
        "queue",
        description="What happens while a run of the session is open (queued, running or paused). "
        "`queue`: the new run waits for its turn. `refuse`: 409. `interrupt`: the open runs are "
        "cancelled, then the new run begins with their messages, followed by its own. `steer`: the "
        "open run takes the message, where its agent server can; none can today, so 409",
    )
    forked_from: ForkedFrom | None = None
    tags: Tags | None = None


DEFAULT_LIMIT = 50  # the number of runs on a page if the client names no limit
MAX_LIMIT = 1000  # the greatest number of runs on a page
KEY_HEADER = "idempotency-key"
STATUSES = get_args(RunStatus)

# The filters of `GET /v1/runs`. Each filter has the name of a field of the run's record.
# `sources/run_list.py` maps the name to a column of the index.
FILTERS = (
    by.AGENT,
    by.OF_SESSION,
    Parameter(
        "parent_run_id",
        "Only the runs of the steps of this workflow's run, and those to which its events led. "
        "If it is empty, only runs that no other run has led to",
    ),
    Parameter("tenant", "Only runs of this tenant. If it is empty, only runs without a tenant"),
)


_RAW = "for `dialect=raw`, the bytes of the agent server"
_runs = partial(Operation, tag="runs")


class Runs(Handlers):
    """Has the handlers of /v1/runs."""

    @serves(
        _runs(
            method="POST",
            path="/v1/runs",
            summary="Start a run",
            description="With `Accept: text/event-stream`, the answer is the run's stream, in "
            "`dialect`. Otherwise it is the run's record: 202, or 200 if an earlier request with "
            "the same idempotency key has started the run; `dialect` then has no effect.",
            answers={
                200: Answer(
                    "The stream, or the first run of the same idempotency key",
                    {JSON: RunRecord, SSE: by.STREAM},
                ),
                202: json("The run", RunRecord),
            },
            scopes=("start",),
            sometimes={"raw": _RAW},
            parameters=(by.IDEMPOTENCY_KEY, by.DEPTH, by.DIALECT, by.NAMES, by.INCLUDE),
            body=StartRequest,
            example={"agent": "assistant", "message": "Hello"},
            refusals=(404, 409),
        )
    )
    async def start(self, request: Request) -> ASGIApp:
        """With `Accept: text/event-stream`, respond with the stream, else with 202 and the record,
        or 200 if an earlier request with the same idempotency key has started the run."""
        edge = self._edge
        who = identity_of(request)
        body = await read_json(request, edge.settings.max_body_bytes)
        try:
            asked = StartRequest.model_validate(body)
        except ValidationError as error:
            raise invalid(error) from error
        user_id = acting_user(who, asked.user_id)
        agent = edge.config.agent(asked.agent)
        if agent is None:
            raise Problem(404, edge.config.no_agent(asked.agent))
        with unaccepted_as_422("input"):
            start_fields.accepted_input(agent.protocol, agent.accepts, asked.input)
        depth = depth_of_request(request.headers.get(HEADER), MAX_DEPTH)
        await check_fork(edge.bus, who, asked.forked_from)
        streams = "text/event-stream" in request.headers.get("accept", "")
        dialect, named = _dialect(request)
        include = include_of(request, dialect, of_workflow=agent.protocol == "workflow")
        if streams:
            _require_dialect(who, dialect)
            edge.streams.require_room(request.scope)
        start = Start(
            agent,
            asked.message,
            asked.session_id,
            who.run_user(user_id),
            input=asked.input,
            key=key_of(request, asked.idempotency_key),
            request=orjson.dumps(body, option=orjson.OPT_SORT_KEYS),
            origin=Origin(depth=depth),
            when_busy=asked.when_busy,
            forked_from=asked.forked_from,
            tags=asked.tags,
            sees_pii=who.has_scope(PII),
        )
        if not streams:
            started = await edge.starter.start(start)
            return shown(who, started.record, 202 if started.new else 200)
        started, position = await begin(edge, start, frames=dialect == RAW_DIALECT)
        children = with_children(include, dialect, started.record)
        view = edge.view(started.record.run_id, dialect, Sse(named), children=children)
        if not started.new:
            position = await locate(edge.bus, view, None)
        return await edge.stream(view, position, who)

    @serves(
        _runs(
            method="GET",
            path="/v1/runs",
            summary="The caller's runs, the newest first",
            answers={200: json("A page", an_object(runs=a_list(OBJECT), next=NULLABLE))},
            scopes=("read",),
            parameters=(
                *FILTERS,
                Parameter(
                    "status",
                    "Only runs of this status; of several `status=`, one must fit",
                    a_list(one_of(STATUSES)),
                ),
                Parameter("user_id", "Only runs of this user"),
                Parameter(
                    "tag",
                    "Only runs with this tag, as `key=value`; several `tag=` must all fit",
                    {"type": "array", "items": {"type": "string"}, "maxItems": MAX_TAGS},
                ),
                Parameter(
                    "text",
                    "Only runs with this text in the first 200 characters of their message, "
                    "whatever the case",
                    {"type": "string", "maxLength": SHOWN_CHARACTERS},
                ),
                Parameter("since", "Only runs that have begun at this time or later", by.TIME),
                Parameter("until", "Only runs that have begun before this time", by.TIME),
                by.limit(MAX_LIMIT),
                Parameter("before", "`next` of the page before"),
            ),
        )
    )
    async def index(self, request: Request) -> ASGIApp:
        """Respond with the caller's runs, the newest first: `{runs, next}`. The runs that a
        workflow's steps have started are listed, too; `parent_run_id` names the workflow's run."""
        who = identity_of(request)
        query = request.query_params
        limit = number(query.get("limit"), "limit", DEFAULT_LIMIT, MAX_LIMIT)
        before, statuses = query.get("before"), tuple(dict.fromkeys(query.getlist("status")))
        if before is not None and not is_run_id(before):
            raise Problem(422, "before: must be `next` of an earlier page, which is a run id")
        if not set(statuses) <= set(STATUSES):
            raise Problem(422, f"status: each must be one of {', '.join(STATUSES)}")
        wanted: dict[str, str | Sequence[str]]
        wanted = {each.name: query[each.name] for each in FILTERS if each.name in query}
        if statuses:
            wanted["status"] = statuses[0] if len(statuses) == 1 else statuses
        began = began_between(time_of(request, "since"), time_of(request, "until"))
        contained = Contained(query.get("text", ""), tuple(query.getlist("tag")))
        if len(contained.text) > SHOWN_CHARACTERS:
            raise Problem(422, f"text: at most {SHOWN_CHARACTERS} characters are searched for")
        if len(contained.tags) > MAX_TAGS or not all("=" in tag for tag in contained.tags):
            raise Problem(422, f"tag: send at most {MAX_TAGS}, each as key=value")
        owners = who.owners
        if (user := query.get("user_id")) is not None:
            owners = frozenset({user}) if owners is None else owners & {user}
        async with self._edge.turns.of(who.tenant_user):
            runs, more = await self._edge.run_list.page(
                owners, who.may_see_runs_of, wanted, before, limit, began, contained
            )
        if not who.has_scope("administer"):
            for run in runs:
                run.pop("unredacted", None)
        for run, usage in zip(
            runs, await self._usage([run["run_id"] for run in runs]), strict=True
        ):
            run.update(usage)
        return json_response({"runs": runs, "next": runs[-1]["run_id"] if more else None})

    @serves(
        _runs(
            method="GET",
            path="/v1/runs/{run_id}",
            summary="One run",
            description="`deliveries` has what automations have sent or done for the run's events, "
            "also after its end: `id`, `automation` (the rule), `status` (waiting, delivered, "
            "failed), `result` and `attempts`. `usage` has what the run's models used and cost, if "
            "anything, `usage_with_children` adds the runs that it led to, if these did. `no_fork` "
            "is why an ended run cannot be forked, if so. `trace_id` is the run's trace, and "
            "`trace_url` its address if `PENSTOCK_TRACE_URL` is set and the trace is sampled.",
            answers={200: json("The run", RunRecord)},
            scopes=("read",),
            parameters=(by.RUN_ID,),
            refusals=(404,),
        )
    )
    async def show(self, request: Request) -> ASGIApp:
        who, bus = identity_of(request), self._edge.bus
        record = await run_of(bus, who, request.path_params["run_id"])
        usage: dict[str, Any] = {}
        indexes = (self._edge.cost_list.index, self._edge.run_list.index)
        # An edge that has just started may still read the buckets. It then shows no sums.
        if all(index.is_complete for index in indexes):
            await asyncio.gather(*(index.caught_up() for index in indexes))
            [usage] = await self._usage([record.run_id])
        agent, end = self._edge.config.agent(record.agent), record.status
        if end in ENDED and (no_fork := why_not(record, agent, end)) is not None:
            usage["no_fork"] = no_fork
        deliveries, trace = await asyncio.gather(
            deliveries_of(bus, record), trace_of(bus, record, self._edge.settings.trace_url)
        )
        return shown(who, record, deliveries=deliveries, **usage, **trace)

    async def _usage(self, run_ids: Sequence[str]) -> list[dict[str, Any]]:
        # A list does not wait for the latest events: its sums may lack those of some seconds.
        found = []
        for first in range(0, len(run_ids), 50):
            found += self._edge.usage_of(run_ids[first : first + 50])
            await asyncio.sleep(0)  # fifty runs take a millisecond, in which others wait
        return found

    @serves(
        Operation(
            tag="events",
            method="GET",
            path="/v1/runs/{run_id}/events",
            summary="A run's events",
            answers=by.STREAM_OR_PAGE,
            scopes=("read",),
            sometimes={"raw": _RAW},
            parameters=(
                by.RUN_ID,
                by.DIALECT,
                by.NAMES,
                by.MARKERS,
                by.INCLUDE,
                *by.TYPES,
                *by.CURSOR,
                by.FROM,
                by.limit(MAX_PAGE),
            ),
            refusals=(404, 406, 409, 410),
        )
    )
    async def events(self, request: Request) -> ASGIApp:
        edge = self._edge
        who = identity_of(request)
        dialect, named = _dialect(request)
        _require_dialect(who, dialect)
        types = types_of(request, dialect)
        record = await run_of(edge.bus, who, request.path_params["run_id"])
        as_page = wants_page(request)
        if not as_page:
            edge.streams.require_room(request.scope)
        include = include_of(request, dialect, of_workflow=is_workflow(record))
        children = with_children(include, dialect, record)
        framing = PageItems() if as_page else Sse(named)
        view = edge.view(record.run_id, dialect, framing, types, children=children)
        first = first_of(request)
        if first is not None and (view.reads_from is ReadFrom.START or view.reads_frames):
            text = "from: these frames depend on those of earlier events, so leave it out"
            raise Problem(422, text)
        place = await locate(edge.bus, view, cursor_of(request), record, first)
        if children and place.truncated:
            known = await unfinished_descendants(edge.run_list, record)
            view = edge.tree(record.run_id, known).whole(dialect, framing, types)
        if not as_page:
            if switch(request, "markers", default=False) and not place.ended:
                place = await with_marker(edge.bus, view, place)
            return await edge.stream(view, place, who)
        if dialect == RAW_DIALECT:
            raise Problem(406, "raw bytes have no JSON pages; accept text/event-stream")
        return json_response(await page_of(edge, request, view, place))

    @serves(
        _runs(
            method="GET",
            path="/v1/runs/{run_id}/state",
            summary="A run's state after any of its events",
            description="It is made of the run's events up to `at`: `status`, `messages` with the "
            "text so far, `tool_calls` (`outcome` is `called` or `waits` before there is a "
            "result), `approvals`, `steps`, the shared `state` and `usage`, each as it was then. "
            "The answer's `at` is the last event that it is made of; without `at`, that is at "
            "least the `sequence` of the run's record.",
            answers={200: json("The state", OBJECT)},
            scopes=("read",),
            parameters=(
                by.RUN_ID,
                Parameter(
                    "at",
                    "The `sequence` of the last event that counts; without it, of the last event "
                    "that is stored",
                    {"type": "integer", "minimum": 1, "maximum": EVENTS_READ},
                ),
            ),
            refusals=(404, 410),
        )
    )
    async def state(self, request: Request) -> ASGIApp:
        edge, who = self._edge, identity_of(request)
        at = number(request.query_params.get("at"), "at", EVENTS_READ, EVENTS_READ)
        record = await run_of(edge.bus, who, request.path_params["run_id"])
        state = RunState()

        def take(event_type: str, event: dict[str, Any]) -> None:
            if event["sequence"] <= at:
                state.take(event_type, event)

        allowance = Allowance(at, BYTES_READ, READ_S)
        turn = edge.turns.for_caller(who)
        await read_run(edge.bus, record, allowance, turn, take, who=who)
        if state.first > 1 or (state.at == 0 and record.sequence > 0):
            raise Problem(410, "the run's first events are no longer kept")
        wanted = at if "at" in request.query_params else max(at, record.sequence)
        if allowance.is_spent and state.at < wanted:
            raise Problem(
                422,
                f"at: the events up to here are too many or too large; the state after event "
                f"{state.at} can be made",
            )
        return json_response({"run_id": record.run_id, **state.shown()})

    @serves(
        _runs(
            method="POST",
            path="/v1/runs/{run_id}/cancel",
            summary="Cancel a run",
            answers={
                200: json(
                    "The run is cancelled; `confirmed` is false if its agent server may go on",
                    an_object(run_id=TEXT, status=TEXT, timestamp=NULLABLE, confirmed=FLAG),
                ),
                202: json("Not known yet", an_object(run_id=TEXT, status=TEXT)),
            },
            scopes=("start",),
            parameters=(by.RUN_ID,),
            refusals=(404, 409),
        )
    )
    async def cancel(self, request: Request) -> ASGIApp:
        who = identity_of(request)
        await ignore_body(request)
        run_id = request.path_params["run_id"]
        cancelled = await self._edge.canceller.cancel(run_id, who)
        body = {"run_id": run_id, "status": "cancelled", "timestamp": cancelled.at}
        if cancelled.at is None:
            return json_response(body | {"status": "cancelling"}, 202)
        return json_response(body | {"confirmed": cancelled.confirmed})


def _require_dialect(who: Identity, dialect: str) -> None:
    if dialect == RAW_DIALECT:
        require(who, "raw")


def shown(who: Identity, record: RunRecord, status: int = 200, **more: object) -> Response:
    """Show only administrators the field `unredacted`."""
    if not who.has_scope("administer"):
        record = record.model_copy(update={"unredacted": None})
    headers = {"location": f"/v1/runs/{record.run_id}", "penstock-run-id": record.run_id}
    body = orjson.dumps({**orjson.loads(record.dump()), **more})
    return Response(body, status, headers, "application/json")


def key_of(request: Request, in_body: str | None) -> str | None:
    """Return the idempotency key of a start, from its header or its body."""
    header = request.headers.get(KEY_HEADER)
    if header is not None and in_body not in (None, header):
        raise Problem(422, "idempotency_key: the body and the header differ; send one of them")
    if header == "":
        raise Problem(422, "Idempotency-Key: must not be empty")
    return header or in_body


def _dialect(request: Request) -> tuple[str, bool]:
    return dialect_of(request, DIALECTS), switch(request, "names", default=True)
