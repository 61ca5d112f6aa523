"""A view that is given as one body, once it is over."""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.web.auth import identity_of
from penstock_edge.stream.client import Client


class WholeBody:
    """The response of one client: nothing until the view is over, then all of it as JSON."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application of this one response."""
        client = self._client
        client.read_for(identity_of(scope))
        leaving = asyncio.create_task(self._watch(receive))
        try:
            pieces = []
            while (body := await client.take()) is not None:
                pieces.append(body)
            if not leaving.done():
                headers = {"penstock-run-id": client.hub.view.run_id}
                response = Response(b"".join(pieces), 200, headers, "application/json")
                await response(scope, receive, send)
        finally:
            leaving.cancel()
            client.leave()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._client.leave()
