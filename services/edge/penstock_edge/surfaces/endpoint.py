"""Wraps the edge's handlers: continues the client's trace, and turns errors of the bus into
responses."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp

from penstock.bus import Bus, BusError, ObjectGone
from penstock.bus.state.bucket_index import StillReading
from penstock.log_fields import run_of
from penstock.tracing import requests
from penstock.web.auth.csrf import SAFE_METHODS
from penstock.web.leaving import while_connected
from penstock.web.operation import Handler
from penstock.web.problems import Problem

log = logging.getLogger(__name__)


def on_bus(bus: Bus) -> Callable[[Handler], Handler]:
    """Return a function that wraps handlers which use this bus.

    If the client of a GET closes the connection, the request's handler is cancelled. A handler of
    another method always runs to its end. If the bus does not answer, the response is 503. If a
    payload in the object store has expired, the response is 410.
    """

    def around(handler: Handler) -> Handler:
        async def handle(request: HTTPConnection) -> ASGIApp | None:
            requests.enter(requests.header_of(request.scope["headers"]))
            if not bus.is_ready:
                raise Problem(503, f"{bus.unavailable_reason}; try again")
            try:
                if isinstance(request, Request) and request.method in SAFE_METHODS:
                    return await while_connected(request.receive, _answer(handler(request)))
                return await handler(request)
            except ObjectGone as error:
                raise Problem(410, str(error)) from error
            except StillReading as error:
                raise Problem(503, str(error)) from error
            except BusError as error:
                path = request.url.path
                log.warning("%s: the bus does not answer: %s", path, error, extra=run_of(path))
                raise Problem(503, f"the bus does not answer; try again: {error}") from error

        return handle

    return around


async def _answer(answer: Awaitable[ASGIApp | None]) -> ASGIApp | None:
    return await answer
