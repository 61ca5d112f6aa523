"""Routes for servers that only a test runs, with the smallest possible declarations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, get_args

from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from penstock.web.operation import SSE, TEXT, Answer, Method, Operation, Route, in_path
from penstock.web.problems import PROBLEM, ErrorShape

_STREAM: Final = Answer("A stream", {SSE: TEXT})


def routes(
    path: str,
    handler: Callable[..., Any],
    methods: Iterable[str] = ("GET",),
    *,
    errors: ErrorShape = PROBLEM,
    streams: bool = False,
    public: bool = False,
) -> list[Route]:
    """Return a route for each method, for authenticated callers or, with `public`, for all."""
    known: tuple[Method, ...] = get_args(Method)
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return [
        Route(
            Operation(
                method=method,
                path=path,
                summary="For a test",
                tag="test",
                answers={200: _STREAM if streams else Answer("Fine")},
                scopes=(),
                public=public,
                errors=errors,
                parameters=tuple(in_path(name, "For a test") for name in names),
            ),
            handler,
        )
        for method in known
        if method in methods
    ]


def websocket(path: str, talk: Callable[[WebSocket], Awaitable[None]]) -> Route:
    """Return the route of a WebSocket for authenticated callers."""

    async def handler(_: WebSocket) -> ASGIApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await talk(WebSocket(scope, receive, send))

        return app

    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    operation = Operation(
        method="GET",
        path=path,
        summary="For a test",
        tag="test",
        answers={101: Answer("The WebSocket")},
        scopes=(),
        websocket=True,
        parameters=tuple(in_path(name, "For a test") for name in names),
    )
    return Route(operation, handler)
