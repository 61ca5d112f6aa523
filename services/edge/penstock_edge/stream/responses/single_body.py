"""Responses with one body, which is sent when the view has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.web.answers import until_closed
from penstock.web.auth import identity_of
from penstock.web.problems import Problem, problem_response
from penstock_edge.stream.client import Client


class Body(Protocol):
    """Makes a response of the bytes that a client takes, or of a Problem of either method."""

    def add(self, taken: bytes) -> None: ...

    def response(self) -> Response: ...


class Json:
    """A body of JSON, which is sent without any change."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def add(self, taken: bytes) -> None:
        self._pieces.append(taken)

    def response(self) -> Response:
        return Response(b"".join(self._pieces), media_type="application/json")


class SingleBody:
    """One body, when the view has ended. `shape` writes a Problem as the surface's clients
    expect."""

    def __init__(
        self,
        client: Client,
        body: Body | None = None,
        shape: Callable[[Problem], Response] = problem_response,
    ) -> None:
        self._client = client
        self._body = body or Json()
        self._shape = shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = self._client
        client.read_for(identity_of(scope))
        leaving = asyncio.create_task(self._watch(receive))
        try:
            response = await self._complete()
            if not leaving.done():
                response.headers["penstock-run-id"] = client.hub.view.run_id
                await response(scope, receive, send)
        finally:
            leaving.cancel()
            client.leave()

    async def _complete(self) -> Response:
        try:
            while (taken := await self._client.take()) is not None:
                self._body.add(taken)
            return self._body.response()
        except Problem as problem:
            return self._shape(problem)

    async def _watch(self, receive: Receive) -> None:
        await until_closed(receive)
        self._client.leave()
