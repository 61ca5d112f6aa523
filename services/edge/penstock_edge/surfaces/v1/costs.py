"""Serves what runs used and cost, added up: /v1/costs."""

from __future__ import annotations

import csv
import io
from datetime import date
from typing import Any, Final

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from penstock.web.answers import page_after
from penstock.web.auth import identity_of
from penstock.web.operation import (
    JSON,
    NULLABLE,
    OBJECT,
    TEXT,
    Answer,
    Operation,
    Parameter,
    a_list,
    an_object,
    one_of,
    serves,
)
from penstock.web.problems import Problem
from penstock_edge.sources.cost_list import COLUMNS, COUNTS, Costs
from penstock_edge.sources.run_list import began_between
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.bodies import json_response
from penstock_edge.surfaces.query import number, time_of
from penstock_edge.surfaces.surface import Handlers

CSV: Final = "text/csv"
DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1000
DATE: Final = {"type": "string", "format": "date"}
# Maps the parameters that choose runs to keys of `COLUMNS`.
_FILTERS: Final = {
    "agent": "agent",
    "user": "user",
    "tenant": "tenant",
    "model": "model",
    "tool": "tool",
    "session_id": "session",
}


class CostSums(Handlers):
    """Has the handler of /v1/costs."""

    @serves(
        Operation(
            tag="runs",
            method="GET",
            path="/v1/costs",
            summary="What the caller's runs used and cost",
            description="The sums of the events `llm.usage`, and of `llm.tool_result` with a cost, "
            "by the names of `by`, in their order. `cost_micros` maps each currency to millionths "
            "of it; `without_price` counts events whose price is not known, `estimated` those "
            "whose tokens are estimates. `total` is of all pages. An event is in the sums some "
            "seconds after it is published. Sums are kept for 400 days.",
            answers={
                200: Answer(
                    "A page; as CSV with one line for each name",
                    {
                        JSON: an_object(by=TEXT, costs=a_list(OBJECT), total=OBJECT, next=NULLABLE),
                        CSV: TEXT,
                    },
                )
            },
            scopes=("read",),
            parameters=(
                Parameter("by", "What the sums are grouped by; default `agent`", one_of(COLUMNS)),
                Parameter("since", "The first day (UTC)", DATE),
                Parameter("until", "The first day (UTC) that no longer counts", DATE),
                Parameter("runs_since", "Only runs that have begun at this time or later", by.TIME),
                by.AGENT,
                Parameter("user", "Only runs of this user"),
                Parameter("tenant", "Only runs of this tenant"),
                Parameter("model", "Only this model"),
                Parameter("tool", "Only calls of this tool"),
                by.OF_SESSION,
                by.limit(MAX_LIMIT),
                Parameter("after", "`next` of the page before"),
                Parameter(
                    "format", "`csv` for CSV, as `Accept: text/csv`", one_of(("json", "csv"))
                ),
            ),
        )
    )
    async def sums(self, request: Request) -> ASGIApp:
        who, query = identity_of(request), request.query_params
        group = query.get("by", "agent")
        if group not in COLUMNS:
            raise Problem(422, f"by: must be one of {', '.join(COLUMNS)}")
        form = query.get("format", "csv" if CSV in request.headers.get("accept", "") else "json")
        if form not in ("json", "csv"):
            raise Problem(422, "format: must be json or csv")
        limit = number(query.get("limit"), "limit", DEFAULT_LIMIT, MAX_LIMIT)
        wanted = {key: query[name] for name, key in _FILTERS.items() if name in query}
        since, until = _day(query, "since"), _day(query, "until")
        began = began_between(time_of(request, "runs_since"), None)
        async with self._edge.turns.of(who.tenant_user):
            found = await self._edge.cost_list.grouped(
                group, who.owners, wanted, since, until, began
            )
        total = Costs()
        for costs in found.values():
            total.merge(costs)
        names, more = page_after(sorted(found), query.get("after"), limit, lambda name: name)
        rows = [{group: name, **found[name].shown()} for name in names]
        following = names[-1] if more else None
        if form == "csv":
            headers = {"penstock-next": following} if following is not None else {}
            return Response(_csv(group, rows), media_type=CSV, headers=headers)
        body = {"by": group, "costs": rows, "total": total.shown(), "next": following}
        return json_response(body)


def _day(query: QueryParams, name: str) -> str | None:
    """Return YYYY-MM-DD; None without the parameter. Raises Problem 422."""
    text = query.get(name)
    if text is None:
        return None
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise Problem(422, f"{name}: must be a day, as 2026-11-26") from error


def _csv(group: str, rows: list[dict[str, Any]]) -> str:
    currencies = sorted({currency for row in rows for currency in row["cost_micros"]})
    text = io.StringIO()
    lines = csv.writer(text)
    lines.writerow([group, *COUNTS, *(f"cost_micros_{currency}" for currency in currencies)])
    for row in rows:
        costs = [row["cost_micros"].get(currency, 0) for currency in currencies]
        lines.writerow([row[group], *(row[name] for name in COUNTS), *costs])
    return text.getvalue()
