"""`/v1/approvals`: list, look, decide."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.bus import BusError, ObjectGone
from penstock.bus.records import ApprovalRecord, DecideReply, DecideRequest
from penstock.web.auth import Identity, act_as, check_owner, identity_of, require
from penstock.web.bodies import read_model
from penstock.web.leaving import CLIENT_LEFT, while_there
from penstock.web.problems import Problem, invalid
from penstock.web.read_turns import ReadTurns
from penstock_approvals.decisions import Approvals

T = TypeVar("T")
Decide = Callable[[str, DecideRequest], Awaitable[DecideReply]]


class ItemBody(BaseModel):
    """One item's decision, as a client sends it."""

    model_config = ConfigDict(extra="forbid")

    item_id: str
    decision: Literal["approve", "reject"]
    note: str | None = None
    value: Any = None


class DecisionBody(BaseModel):
    """A whole decision: every item, an optional note for all of them."""

    model_config = ConfigDict(extra="forbid")

    items: list[ItemBody]
    note: str | None = None
    by: str | None = Field(
        None, description="Who decides: the caller, unless it may act for others"
    )
    digest: str | None = Field(None, description="Of the request that was shown")
    idempotency_key: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Makes a repeat of the same decision harmless: it is answered as the first was",
    )


class Query(BaseModel):
    """Which requests to list."""

    model_config = ConfigDict(extra="forbid")

    status: Literal["pending", "decided", "withdrawn", "expired"] | None = None
    run_id: str | None = None
    agent: str | None = None
    session_id: str | None = None
    limit: int = Field(100, ge=1, le=1000)


def routes(approvals: Approvals, decide: Decide) -> list[BaseRoute]:
    """The routes; `decide` takes a decision and sees to what follows."""
    turns = ReadTurns()

    async def read_all(who: Identity) -> list[ApprovalRecord]:
        async with turns.of(who.user_id):
            return await _asked(approvals.all())

    async def list_all(request: Request) -> Response:
        who = identity_of(request)
        require(who, "read")
        try:
            query = Query.model_validate(dict(request.query_params))
        except ValidationError as error:
            raise invalid(error) from error
        wanted = query.model_dump(exclude={"limit"}, exclude_none=True)
        records = await while_there(request.receive, read_all(who))
        if records is None:
            return Response(status_code=CLIENT_LEFT)
        found = [
            record
            for record in records
            if who.sees(record.user_id)
            and all(getattr(record, name) == value for name, value in wanted.items())
        ]
        page = [record.model_dump(exclude_none=True) for record in found[: query.limit]]
        return _json({"approvals": page})

    async def show(request: Request) -> Response:
        require(identity_of(request), "read")
        return _json(await _found(request))

    async def take(request: Request) -> Response:
        who = identity_of(request)
        require(who, "decide")
        approval_id = (await _found(request)).approval_id
        body = await read_model(request, DecisionBody)
        given = body.model_dump() | {"by": act_as(who, body.by)}
        reply = await _asked(decide(approval_id, DecideRequest.model_validate(given)))
        if reply.status != 200 or reply.approval is None:
            raise Problem(reply.status, reply.detail)
        return _json(reply.approval)

    async def _found(request: Request) -> ApprovalRecord:
        approval_id = request.path_params["approval_id"]
        # a foreign id may hold what no key may
        record = await _asked(approvals.get(approval_id)) if _is_key(approval_id) else None
        if record is None:
            raise Problem(404, f"there is no approval {approval_id}")
        check_owner(identity_of(request), record.user_id, f"approval {approval_id}")
        return record

    return [
        Route("/v1/approvals", list_all, methods=["GET"]),
        Route("/v1/approvals/{approval_id}", show, methods=["GET"]),
        Route("/v1/approvals/{approval_id}/decision", take, methods=["POST"]),
    ]


def _is_key(text: str) -> bool:
    return text.replace("-", "").isalnum() and text.isascii()


async def _asked(answer: Awaitable[T]) -> T:
    try:
        return await answer
    except ObjectGone as error:
        raise Problem(410, str(error)) from error
    except BusError as error:
        raise Problem(503, f"the bus does not answer: {error}; try again") from error


def _json(value: BaseModel | dict[str, Any]) -> Response:
    body = (
        value.model_dump_json(exclude_none=True).encode()
        if isinstance(value, BaseModel)
        else orjson.dumps(value)
    )
    return Response(body, media_type="application/json")
