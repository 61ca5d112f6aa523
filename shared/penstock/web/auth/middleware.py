"""Authentication as pure ASGI, and CORS around it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.web.auth.auth import Auth
from penstock.web.auth.config import AuthConfig
from penstock.web.auth.errors import Refused
from penstock.web.auth.identity import IDENTITY, OVER, STREAMS
from penstock.web.auth.limits import StreamPlace
from penstock.web.auth.shapes import ERROR_SHAPES, Shape, shape_of
from penstock.web.problems import Problem

_REQUEST_HEADERS: Final = (
    "accept",
    "authorization",
    "content-type",
    "idempotency-key",
    "last-event-id",
    "x-csrf-token",
)
_RESPONSE_HEADERS: Final = ("location", "penstock-run-id", "retry-after", "www-authenticate")


class AuthMiddleware:
    """Puts the Identity, and what waits for its end, into scope["state"].

    Or refuses, in the words of the path's surface.
    `receive` is handed on as it is: a stream may take the connection that stands behind it.
    """

    def __init__(
        self, app: ASGIApp, auth: Auth, shapes: Mapping[str, Shape] = ERROR_SHAPES
    ) -> None:
        self._app = app
        self._auth = auth
        self._shapes = shapes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            identity = await self._auth.admit(scope)
            self._auth.requests.take(identity)
            give_back = self._auth.connections.take(identity)
        except Problem as problem:
            await self._refuse(problem, scope, receive, send)
            return
        stream = StreamPlace(self._auth.streams, identity)
        scope["state"] = {
            **scope.get("state", {}),
            IDENTITY: identity,
            OVER: partial(self._auth.over, identity),
            STREAMS: stream,
        }
        try:
            await self._app(scope, receive, send)
        finally:
            stream.give_back()
            give_back()

    async def _refuse(self, problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()  # websocket.connect
            if "websocket.http.response" not in scope.get("extensions", {}):
                # before it is accepted: the handshake is answered with 403
                await send({"type": "websocket.close", "code": 1008, "reason": ""})
                return
        response = shape_of(scope["path"], self._shapes)(problem)
        if isinstance(problem, Refused):
            response.headers.update(problem.headers)
        await response(scope, receive, send)


def cors(config: AuthConfig) -> list[Middleware]:
    """The answers to pages of other origins, where any may call."""
    if not config.cors_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=config.cors_origins,
            allow_methods=("GET", "POST", "PUT", "PATCH", "DELETE"),
            allow_headers=_REQUEST_HEADERS,
            allow_credentials=True,
            expose_headers=_RESPONSE_HEADERS,
        )
    ]
