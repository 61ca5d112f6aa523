"""HTTP endpoints: methods in a table, and every refusal in the surface's own shape."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.bus import Bus, BusError, ObjectGone
from penstock.web.auth.csrf import SAFE_METHODS as SAFE
from penstock.web.auth.errors import Refused
from penstock.web.leaving import while_there
from penstock.web.operation import Handler as EndpointHandler
from penstock.web.problems import Problem, problem_response
from penstock_edge.runs import trace

log = logging.getLogger(__name__)

RETRY_AFTER_S = (1, 5)

Handler = Callable[[Request], Awaitable[ASGIApp]]
Shape = Callable[[Problem], Response]


class Endpoint:
    """One path: its handlers by method, and how its errors look."""

    def __init__(self, bus: Bus, handlers: Mapping[str, Handler], shape: Shape) -> None:
        self._bus = bus
        self.methods = tuple(handlers)
        self._handlers = handlers
        self._shape = shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        request = Request(scope, receive)
        trace.enter(request.headers.get("traceparent"))
        response: ASGIApp
        try:
            if request.method == "GET":  # what others ask for is done, whoever waits for it
                answer = await while_there(receive, self._answer(request))
                if answer is None:
                    return
                response = answer
            else:
                response = await self._answer(request)
        except Problem as problem:
            response = refusal(problem, self._shape)
        except ObjectGone as error:
            response = refusal(Problem(410, str(error)), self._shape)
        except BusError as error:
            log.warning("%s %s: %s", request.method, request.url.path, error)
            away = Problem(503, f"the bus does not answer; try again: {error}")
            response = refusal(away, self._shape)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> ASGIApp:
        handler = self._handlers.get(request.method)
        if handler is None:
            response = self._shape(Problem(405, f"{request.method} is not served here"))
            response.headers["allow"] = ", ".join(self.methods)
            return response
        if not self._bus.ready:
            raise Problem(503, f"{self._bus.hindrance}; try again")
        return await handler(request)


def on_bus(bus: Bus) -> Callable[[EndpointHandler], EndpointHandler]:
    """What is around each handler of the edge: the trace context, and a bus that does not answer.

    The work on a GET ends when its client leaves. What other methods asked for is done in any case.
    """

    def around(handler: EndpointHandler) -> EndpointHandler:
        async def handle(request: HTTPConnection) -> ASGIApp | None:
            trace.enter(request.headers.get("traceparent"))
            if not bus.ready:
                raise Problem(503, f"{bus.hindrance}; try again")
            try:
                if isinstance(request, Request) and request.method in SAFE:
                    return await while_there(request.receive, _answered(handler(request)))
                return await handler(request)
            except ObjectGone as error:
                raise Problem(410, str(error)) from error
            except BusError as error:
                log.warning("%s: %s", request.url.path, error)
                raise Problem(503, f"the bus does not answer; try again: {error}") from error

        return handle

    return around


async def _answered(answer: Awaitable[ASGIApp | None]) -> ASGIApp | None:
    return await answer


def refusal(problem: Problem, shape: Shape = problem_response) -> Response:
    """The problem in that shape; one that passes says when to try again, not all at once."""
    response = shape(problem)
    if isinstance(problem, Refused):
        response.headers.update(problem.headers)
    elif problem.status == 503:
        response.headers["retry-after"] = str(random.randint(*RETRY_AFTER_S))
    return response


def route(
    bus: Bus, path: str, handlers: Mapping[str, Handler], shape: Shape = problem_response
) -> Route:
    """The route of an endpoint; without a shape of its own, errors are problem details."""
    return Route(path, Endpoint(bus, handlers, shape))
