"""Serves the erasure of content, and legal holds: docs/privacy.md."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from penstock.bus import subjects
from penstock.bus.records.erasures import Erasure, Hold, HoldChange
from penstock.bus.records.runs import RunRecord
from penstock.bus.subjects import is_run_id
from penstock.web.auth import acting_user, identity_of, require
from penstock.web.bodies import ignore_body, read_json
from penstock.web.operation import (
    JSON,
    NULLABLE,
    TEXT,
    Answer,
    Json,
    Operation,
    Parameter,
    a_list,
    an_object,
    in_path,
    json,
    one_of,
    serves,
)
from penstock.web.problems import Problem, invalid
from penstock_edge.edge import Edge
from penstock_edge.runs.erasing import WAIT_S, Erasing, new_erasure_id, places_of
from penstock_edge.runs.records import run_of
from penstock_edge.sources.run_list import began_between
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.bodies import json_response
from penstock_edge.surfaces.query import number
from penstock_edge.surfaces.surface import Handlers
from penstock_edge.views import erasure_page

Id = Annotated[str, Field(min_length=1, max_length=512)]
MAX_REASON: Final = 500
AT_ONCE: Final = 100  # the runs of one answer
MAX_LIMIT: Final = 1000
HTML: Final = "text/html"
_REFUSED: Final = an_object(run_id=TEXT, reason=TEXT)
_ERASED: Final = an_object(
    erasure_id=TEXT,
    erased=a_list(TEXT),
    requested=a_list(TEXT),
    refused=a_list(_REFUSED),
    next=NULLABLE,
)
_STATES: Final = ("requested", "erasing", "erased")
_PLACE: Final = an_object(
    place=TEXT, state=one_of(("erased", "erasing", "overwritten", "kept", "out_of_reach"))
)
_REPORT: Final = an_object(
    run_id=TEXT, state=one_of(_STATES), erasure=NULLABLE, places=a_list(_PLACE)
)
_RUNS: Final = an_object(
    erasure_id=TEXT,
    by=TEXT,
    at=TEXT,
    reason=NULLABLE,
    runs=a_list(an_object(run_id=TEXT, state=one_of(_STATES), erased_at=NULLABLE)),
    next=NULLABLE,
)
_FORMAT: Final = Parameter(
    "format", "`html` for a page to print, as `Accept: text/html`", one_of(("json", "html"))
)
_ANOTHER_USER: Final = "for the run of another user"
_REASON: Final = Field(None, max_length=MAX_REASON, description="For the audit")
_operation = partial(Operation, tag="privacy")
_of_run = partial(_operation, parameters=(by.RUN_ID,))


def _answer(description: str, schema: Json) -> Answer:
    return Answer(description, {JSON: schema, HTML: TEXT})


class ErasureRequest(BaseModel):
    """The body of POST /v1/erasures: runs that fit all that it names."""

    model_config = ConfigDict(extra="forbid", strict=True)

    user_id: Id | None = Field(None, description="Of this user. Default: of the caller")
    session_id: Id | None = Field(None, description="Of this session")
    tenant: Id | None = Field(None, description="Of all users of this tenant")
    older_than: AwareDatetime | None = Field(
        None, strict=False, description="That have begun before this time"
    )
    reason: str | None = _REASON
    erasure_id: Id | None = Field(None, description="That of the answer before")
    before: Id | None = Field(None, description="`next` of the answer before")


class HoldRequest(BaseModel):
    """The body of PUT /v1/runs/{run_id}/hold."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reason: str | None = Field(None, max_length=MAX_REASON)


class Erasures(Handlers):
    """Has the handlers of erasures and legal holds."""

    def __init__(self, edge: Edge) -> None:
        super().__init__(edge)
        self._erasing = Erasing(edge.bus, edge.run_list)

    @serves(
        _operation(
            method="DELETE",
            path="/v1/runs/{run_id}/content",
            summary="Erase the content of a run that has ended",
            description="When the answer has come, nobody gets content of the run any more; its "
            "messages are deleted in the background. The runs of a workflow's steps go with it. "
            "The run's id, times, costs and decisions stay, and the audit has who has erased it, "
            "when, and why. A repeat answers with the state.",
            answers={202: json("What has become of the content in each place", _REPORT)},
            scopes=("erase",),
            sometimes={"act-as": _ANOTHER_USER},
            parameters=(
                by.RUN_ID,
                Parameter("reason", "For the audit", {"type": "string", "maxLength": MAX_REASON}),
            ),
            refusals=(404, 409),
        )
    )
    async def erase(self, request: Request) -> ASGIApp:
        await ignore_body(request)
        who = identity_of(request)
        reason = request.query_params.get("reason")
        if reason is not None and len(reason) > MAX_REASON:
            raise Problem(422, f"reason: at most {MAX_REASON} characters")
        record = await run_of(self._edge.bus, who, request.path_params["run_id"])
        await self._erasing.ask(who, record, new_erasure_id(), reason)
        withheld = await self._erasing.withheld(record.run_id)
        return await self._report(withheld or record.model_copy(update={"erasure": None}), 202)

    @serves(
        _operation(
            method="POST",
            path="/v1/erasures",
            summary="Erase the content of all runs of a user, session or tenant, or before a time",
            description=f"Of up to {AT_ONCE} runs, the newest first: repeat the request with "
            "`erasure_id` and `next` as `before` until `next` is null. `refused` has runs that "
            "cannot be erased now, and why; `requested` those whose content is not withheld yet.",
            answers={
                202: json(
                    "The runs whose content nobody gets any more; GET its `location` to see what "
                    "has become of all runs of the erasure",
                    _ERASED,
                )
            },
            scopes=("erase",),
            sometimes={"act-as": "for runs of another user, or of a tenant"},
            body=ErasureRequest,
            example={"session_id": "s-42", "reason": "request of 3 November"},
            refusals=(409,),
        )
    )
    async def erase_many(self, request: Request) -> ASGIApp:
        who, edge = identity_of(request), self._edge
        try:
            asked = ErasureRequest.model_validate(
                await read_json(request, edge.settings.max_body_bytes)
            )
        except ValidationError as error:
            raise invalid(error) from error
        if asked.before is not None and not is_run_id(asked.before):
            raise Problem(422, "before: must be `next` of an earlier answer")
        if asked.erasure_id is not None and not is_run_id(asked.erasure_id):
            raise Problem(422, "erasure_id: must be that of an earlier answer")
        if asked.tenant is not None:
            require(who, "act-as")
        owners = None
        if asked.tenant is None or asked.user_id is not None:
            owners = frozenset({acting_user(who, asked.user_id)})
        wanted = asked.model_dump(include={"session_id", "tenant"}, exclude_none=True)
        if not wanted and asked.user_id is None and asked.older_than is None:
            raise Problem(422, "name a user_id, a session_id, a tenant or older_than")
        began = began_between(None, asked.older_than)
        async with edge.turns.of(who.tenant_user):
            page, more = await edge.run_list.page(
                owners, who.may_see_runs_of, wanted, asked.before, AT_ONCE, began
            )
        erasure_id = asked.erasure_id or new_erasure_id()
        # A run of a step goes with the outermost workflow's.
        runs = [each for each in map(RunRecord.model_validate, page) if not each.ancestors]
        asking = [self._erasing.ask(who, each, erasure_id, asked.reason) for each in runs]
        answers = await asyncio.gather(*asking, return_exceptions=True)
        until = asyncio.get_running_loop().time() + WAIT_S
        erased: list[str] = []
        requested: list[str] = []
        refused: list[dict[str, str]] = []
        # One after another, so that the looks at 100 runs are not in the way of others.
        for record, answer in zip(runs, answers, strict=True):
            try:
                if answer is not None:
                    raise answer
                is_withheld = await self._erasing.withheld(record.run_id, until) is not None
                (erased if is_withheld else requested).append(record.run_id)
            except Problem as problem:
                refused.append({"run_id": record.run_id, "reason": problem.detail})
        following = page[-1]["run_id"] if page and more else None
        response = json_response(
            {
                "erasure_id": erasure_id,
                "erased": sorted(erased),
                "requested": sorted(requested),
                "refused": refused,
                "next": following,
            },
            202,
        )
        response.headers["location"] = f"/v1/erasures/{erasure_id}"
        return response

    @serves(
        _operation(
            method="GET",
            path="/v1/erasures/{erasure_id}",
            summary="The runs of an erasure, the newest first, and what has become of each",
            description="Those that the caller may see, from when their content is withheld. "
            "`erasing`: nobody gets content, and its messages are being deleted; `erased`: all are "
            "deleted. GET /v1/runs/{run_id}/erasure has the places of one run.",
            answers={200: _answer("A page of runs", _RUNS)},
            scopes=("read",),
            parameters=(
                in_path("erasure_id", "The erasure's id, which several runs may have"),
                by.limit(MAX_LIMIT),
                Parameter("before", "`next` of the page before"),
                _FORMAT,
            ),
            refusals=(404,),
        )
    )
    async def show_many(self, request: Request) -> ASGIApp:
        who, edge, query = identity_of(request), self._edge, request.query_params
        erasure_id, before = request.path_params["erasure_id"], query.get("before")
        limit = number(query.get("limit"), "limit", AT_ONCE, MAX_LIMIT)
        if before is not None and not is_run_id(before):
            raise Problem(422, "before: must be `next` of an earlier answer")
        is_page = _is_page(request)
        async with edge.turns.of(who.tenant_user):
            page, more = await edge.run_list.page(
                who.owners, who.may_see_runs_of, {"erasure_id": erasure_id}, before, limit
            )
        runs = [RunRecord.model_validate(each) for each in page]
        found = [(each.run_id, each.erasure) for each in runs if each.erasure is not None]
        if not found:
            raise Problem(404, f"no run that you may see has the erasure {erasure_id[:64]}")
        _, erasure = found[0]
        facts = {"by": erasure.by, "at": erasure.at, "reason": erasure.reason}
        rows = [
            {"run_id": run_id, "state": _state(each), "erased_at": each.erased_at}
            for run_id, each in found
        ]
        following = runs[-1].run_id if more else None
        if is_page:
            shown = {"erasure": erasure_id, **facts, "the page after": following}
            return _page("Erasure of several runs", shown, "Runs", rows)
        return json_response({"erasure_id": erasure_id, **facts, "runs": rows, "next": following})

    @serves(
        _operation(
            method="GET",
            path="/v1/runs/{run_id}/erasure",
            summary="What has become of the content of a run that was erased, in each place",
            answers={200: _answer("The places", _REPORT)},
            scopes=("read",),
            parameters=(by.RUN_ID, _FORMAT),
            refusals=(404,),
        )
    )
    async def show(self, request: Request) -> ASGIApp:
        who = identity_of(request)
        record = await run_of(self._edge.bus, who, request.path_params["run_id"])
        if record.erasure is None:
            raise Problem(404, f"the content of run {record.run_id} was not erased")
        if _is_page(request):
            return await self._printed(record, record.erasure)
        return await self._report(record, 200)

    @serves(
        _of_run(
            method="PUT",
            path="/v1/runs/{run_id}/hold",
            summary="Put a run under a legal hold, so that nobody can erase its content",
            description="A hold does not prolong how long anything is kept.",
            answers={200: json("The run", RunRecord)},
            scopes=("administer",),
            body=HoldRequest,
            refusals=(404, 409),
        )
    )
    async def hold(self, request: Request) -> ASGIApp:
        who, edge = identity_of(request), self._edge
        try:
            asked = HoldRequest.model_validate(
                await read_json(request, edge.settings.max_body_bytes)
            )
        except ValidationError as error:
            raise invalid(error) from error
        hold = Hold(by=who.user_id, at=edge.bus.clock.stamp(), reason=asked.reason)
        record = await run_of(edge.bus, who, request.path_params["run_id"])

        def add(record: RunRecord) -> None:
            if record.erasure is not None:
                raise Problem(409, f"the content of run {record.run_id} was erased already")
            record.hold = record.hold or hold

        record = await self._changed(record, add)
        # A hold that could not be written into the audit holds, and a repeat writes it.
        if (held := record.hold) is not None:
            await self._audit(record, "hold_set", held.by, held.at, held)
        return _shown(record)

    @serves(
        _of_run(
            method="DELETE",
            path="/v1/runs/{run_id}/hold",
            summary="Lift the legal hold of a run",
            answers={200: json("The run", RunRecord)},
            scopes=("administer",),
            refusals=(404,),
        )
    )
    async def lift(self, request: Request) -> ASGIApp:
        await ignore_body(request)
        who, bus = identity_of(request), self._edge.bus
        record = await run_of(bus, who, request.path_params["run_id"])
        if (hold := record.hold) is None:
            return _shown(record)
        # First the audit, because afterwards nothing says that there was a hold.
        await self._audit(record, "hold_lifted", who.user_id, bus.clock.stamp(), hold)

        def remove(record: RunRecord) -> None:
            if record.hold == hold:
                record.hold = None

        return _shown(await self._changed(record, remove))

    async def _changed(self, record: RunRecord, change: Callable[[RunRecord], None]) -> RunRecord:
        runs = self._edge.bus.bucket("runs")
        return await runs.change(record.run_id, RunRecord, change) or record

    async def _audit(
        self,
        record: RunRecord,
        change: Literal["hold_set", "hold_lifted"],
        by: str,
        at: str,
        hold: Hold,
    ) -> None:
        """Let the approvals service write who has set or lifted a hold. Raises BusError."""
        told = HoldChange(change=change, by=by, at=at, reason=hold.reason, hold_at=hold.at)
        await self._edge.bus.request(subjects.hold(record.run_id), told.dump())

    async def _printed(self, record: RunRecord, erasure: Erasure) -> Response:
        places = await places_of(self._edge.bus, record, erasure)
        facts = {
            "run": record.run_id,
            "agent": record.agent,
            "session": record.session_id,
            "user": record.user_id,
            "tenant": record.tenant,
            "began": record.created_at,
            "state": _state(erasure),
            "erasure": erasure.id,
            "by": erasure.by,
            "at": erasure.at,
            "reason": erasure.reason,
            "all messages deleted": erasure.erased_at,
        }
        rows = [{name: each.get(name) for name in ("place", "state", "detail")} for each in places]
        return _page("Erasure of a run's content", facts, "Where the content was", rows)

    async def _report(self, record: RunRecord, status: int) -> Response:
        erasure = record.erasure
        body: dict[str, Any] = {"run_id": record.run_id, "erasure": None, "places": []}
        if erasure is not None:
            body["erasure"] = erasure.model_dump(mode="json", exclude_none=True)
            body["places"] = await places_of(self._edge.bus, record, erasure)
        body["state"] = _state(erasure)
        response = json_response(body, status)
        response.headers["location"] = f"/v1/runs/{record.run_id}/erasure"
        return response


def _shown(record: RunRecord) -> Response:
    return json_response(record.model_dump(mode="json", exclude_none=True))


def _is_page(request: Request) -> bool:
    """Return whether the caller wants a page to print. Raises Problem 422."""
    accepts_html = HTML in request.headers.get("accept", "")
    form = request.query_params.get("format", "html" if accepts_html else "json")
    if form not in ("json", "html"):
        raise Problem(422, "format: must be json or html")
    return form == "html"


def _page(title: str, facts: dict[str, Any], caption: str, rows: list[dict[str, Any]]) -> Response:
    body = erasure_page.page(title, facts, caption, rows)
    return Response(body, headers=dict(erasure_page.HEADERS))


def _state(erasure: Erasure | None) -> str:
    if erasure is None:
        return "requested"
    return "erased" if erasure.erased_at is not None else "erasing"
