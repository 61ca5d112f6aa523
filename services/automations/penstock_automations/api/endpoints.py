"""Serves the route of endpoints, which lists the receivers whose breakers are not closed."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from penstock.bus import Bus
from penstock.web.auth import identity_of
from penstock.web.operation import TEXT, Json, a_list, an_object, json, one_of, serves
from penstock_automations.actions.webhook.endpoints import origin
from penstock_automations.actions.webhook.mirror import endpoints_of
from penstock_automations.api.common import answer, may_use, operation, or_problem
from penstock_automations.rules.store import CurrentRules

_ENDPOINT: Final[Json] = an_object(
    endpoint=TEXT,
    process=TEXT,
    state=one_of(("open", "half_open")),
    failures={"type": "integer"},
    next_at=TEXT,
)


class EndpointStates:
    """The handler of the route."""

    def __init__(self, bus: Bus, current: CurrentRules) -> None:
        self._bus = bus
        self._current = current

    @serves(
        operation(
            method="GET",
            path="/v1/automations/endpoints",
            summary="Endpoints of the caller's rules that get no requests for now, by process",
            description="A circuit breaker is open after five failures in a row. With the scope "
            "administer, the endpoints of all rules.",
            answers={200: json("The endpoints", an_object(endpoints=a_list(_ENDPOINT)))},
        )
    )
    async def index(self, request: Request) -> Response:
        """Return the breakers of the endpoints in the caller's rules, except for closed
        breakers."""
        who = identity_of(request)
        await or_problem(self._current.refresh())
        own = {
            origin(webhook.url)
            for rule in self._current.all()
            if may_use(who, rule.record)
            and (webhook := rule.record.rule.action.webhook) is not None
        }
        found = await or_problem(endpoints_of(self._bus))
        everything = who.has_scope("administer")
        shown = [each for each in found if everything or each.endpoint in own]
        return answer({"endpoints": [each.model_dump(mode="json") for each in shown]})
