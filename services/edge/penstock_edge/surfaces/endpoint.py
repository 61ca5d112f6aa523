"""What is around every handler of the edge: the trace context, and a bus that does not answer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp

from penstock.bus import Bus, BusError, ObjectGone
from penstock.web.auth.csrf import SAFE_METHODS
from penstock.web.leaving import while_there
from penstock.web.operation import Handler
from penstock.web.problems import Problem
from penstock_edge.runs import trace

log = logging.getLogger(__name__)


def on_bus(bus: Bus) -> Callable[[Handler], Handler]:
    """Wrap the handlers that work with this bus.

    The work on a GET ends when its client leaves. What other methods asked for is done in any case.
    A bus that does not answer is 503; an object that is no longer kept is 410.
    """

    def around(handler: Handler) -> Handler:
        async def handle(request: HTTPConnection) -> ASGIApp | None:
            trace.enter(request.headers.get("traceparent"))
            if not bus.ready:
                raise Problem(503, f"{bus.hindrance}; try again")
            try:
                if isinstance(request, Request) and request.method in SAFE_METHODS:
                    return await while_there(request.receive, _answer(handler(request)))
                return await handler(request)
            except ObjectGone as error:
                raise Problem(410, str(error)) from error
            except BusError as error:
                log.warning("%s: %s", request.url.path, error)
                raise Problem(503, f"the bus does not answer; try again: {error}") from error

        return handle

    return around


async def _answer(answer: Awaitable[ASGIApp | None]) -> ASGIApp | None:
    return await answer
