"""Serves the route of endpoints, which lists the receivers whose breakers are not closed."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from penstock.bus import Bus
from penstock.events import timestamp
from penstock.web.answers import json_answer
from penstock.web.auth import identity_of
from penstock.web.operation import NULLABLE, TEXT, Json, a_list, an_object, json, one_of, serves
from penstock_automations.actions.webhook.mirror import EndpointRecord, endpoints_of
from penstock_automations.api.common import operation

_ENDPOINT: Final[Json] = an_object(
    endpoint=TEXT,
    rule=TEXT,
    process=TEXT,
    state=one_of(("open", "half_open")),
    failures={"type": "integer"},
    next_at=NULLABLE,
)


class EndpointStates:
    """The handler of the route."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    @serves(
        operation(
            method="GET",
            path="/v1/automations/endpoints",
            summary="Endpoints of the caller's rules that get no requests for now, by process",
            description="Each rule has circuit breakers of its own. A breaker is open after five "
            "failures in a row. `next_at` is the time of the next request; it is null if the next "
            "delivery is sent at once. The calls of workflows have the rule `_call`. With the "
            "scope administer, the endpoints of all rules.",
            answers={200: json("The endpoints", an_object(endpoints=a_list(_ENDPOINT)))},
        )
    )
    async def index(self, request: Request) -> Response:
        who = identity_of(request)
        found = await endpoints_of(self._bus)
        everything = who.has_scope("administer")
        shown = [each for each in found if everything or each.owner == who.user_id]
        now = timestamp(int(self._bus.clock.time() * 1000))
        return json_answer({"endpoints": [_shown(each, now) for each in shown]})


def _shown(record: EndpointRecord, now: str) -> dict[str, Any]:
    fields = record.model_dump(mode="json", exclude={"owner"})
    return fields | {"next_at": record.next_at if record.next_at > now else None}
