"""A server whose every route returns the caller's identity, for the tests of authentication."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import httpx
import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.websockets import WebSocket

from penstock.settings import AuthSettings
from penstock.web.auth import Auth, AuthConfig, ServiceTokens, StreamTokens, identity_of
from penstock.web.credential_routes import auth_routes
from penstock.web.operation import Route, operations_of
from penstock.web.problems import DETAIL, PROBLEM, ErrorShape
from penstock.web.server import Server
from penstock_edge.surfaces.executions import TriggerAndCancel
from support.fakes.routes import routes, websocket

# With this header, a request of the test counts as one from another machine.
REMOTE = {"x-forwarded-for": "203.0.113.9"}

# One path for each shape of error bodies.
SURFACES: dict[str, ErrorShape] = {
    "/v1/runs": PROBLEM,
    "/executions": operations_of(TriggerAndCancel)[0].errors,
    "/agents": DETAIL,
}


class StoreAway(Exception):
    """The store of tokens cannot be reached."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A value of the store."""

    value: bytes
    revision: int


class MemoryStore:
    """A store of tokens in memory. With `away`, every access raises `StoreAway`."""

    def __init__(self) -> None:
        self.forget_all()

    def forget_all(self) -> None:
        """Remove all tokens and reset all counters."""
        self.values: dict[str, bytes] = {}
        self.revisions: dict[str, int] = {}
        self.writes = 0
        self.away = False
        self.asked = 0

    async def get(self, key: str) -> Kept | None:
        self._reach()
        return Kept(self.values[key], self.revisions[key]) if key in self.values else None

    async def create(self, key: str, value: bytes, ttl_s: float | None = None) -> int | None:
        self._reach()
        return self._write(key, value)

    async def update(
        self, key: str, value: bytes, revision: int, ttl_s: float | None = None
    ) -> int | None:
        self._reach()
        if key not in self.values or self.revisions[key] != revision:
            return None
        return self._write(key, value)

    def _write(self, key: str, value: bytes) -> int:
        self.writes += 1
        self.values[key], self.revisions[key] = value, self.writes
        return self.writes

    async def delete(self, key: str) -> bool:
        self._reach()
        return self.values.pop(key, None) is not None

    async def page(
        self, user_id: str | None, after: tuple[float, str], now: float, limit: int
    ) -> list[Kept]:
        self._reach()
        found = []
        for key, value in self.values.items():
            if "." in key:
                continue  # no stream token
            record = orjson.loads(value)
            place = (record["created_at"], record["id"])
            if (
                user_id in (None, record["user_id"])
                and place > after
                and record["expires_at"] > now
            ):
                found.append((place, Kept(value, self.revisions[key])))
        return [kept for _, kept in sorted(found, key=lambda each: each[0])[:limit]]

    async def entries(self, pattern: str = ">") -> list[Kept]:
        self._reach()
        keys = [key for key in self.values if fnmatchcase(key, pattern)]
        return [Kept(self.values[key], self.revisions[key]) for key in keys]

    def _reach(self) -> None:
        self.asked += 1
        if self.away:
            raise StoreAway


class Guarded:
    """The server, and a client that keeps no cookies."""

    def __init__(self, **settings: Any) -> None:
        self.store = MemoryStore()
        self.tokens = StreamTokens(self.store, StoreAway)
        config = AuthConfig(**AuthSettings(**settings).model_dump())
        self.services = ServiceTokens(self.store, StoreAway)
        self.auth = Auth(config, self.tokens, self.services, look_again_s=0.05)
        self.held = asyncio.Event()  # when set, streams that are held open end
        self.server = Server(self._routes(), "127.0.0.1", 0, auth=self.auth)
        self.http: httpx.AsyncClient

    def _routes(self) -> list[Route]:
        surfaces = [
            route
            for path, errors in SURFACES.items()
            for route in routes(path, _who, ["GET", "POST"], errors=errors)
        ]
        return [
            *surfaces,
            *auth_routes(self.auth),
            *routes("/v1/runs/{run_id}/events", self._events, streams=True),
            *routes("/v1/broken", _broken),
            websocket("/v1/sessions/{session_id}/events/ws", _ws),
        ]

    async def _events(self, request: Request) -> Response:
        identity = identity_of(request)

        async def body() -> AsyncIterator[bytes]:
            yield b"data: begun\n\n"
            over = asyncio.create_task(self.auth.wait_until_credential_ends(identity))
            held = asyncio.create_task(self.held.wait())
            try:
                done, _ = await asyncio.wait({over, held}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                over.cancel()
                held.cancel()
            yield b"data: over\n\n" if over in done else b"data: held\n\n"

        return StreamingResponse(body(), media_type="text/event-stream")

    @property
    def ws_url(self) -> str:
        return f"ws://127.0.0.1:{self.server.port}/v1/sessions/s1/events/ws"

    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        await self.server.start()
        stack.push_async_callback(self.stop)
        base_url = f"http://127.0.0.1:{self.server.port}"
        self.http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=base_url, timeout=30)
        )

    def forget_all(self) -> None:
        """Remove all tokens, open streams and cookies, as in a new server."""
        self.held.set()
        self.held = asyncio.Event()
        self.store.forget_all()
        self.http.cookies.clear()

    async def stop(self) -> None:
        self.held.set()
        await self.server.stop()
        await self.auth.close()

    async def get(self, path: str = "/v1/runs", **headers: str) -> httpx.Response:
        return await self.http.get(path, headers=headers)

    async def as_bearer(self, token: str, path: str = "/v1/runs") -> httpx.Response:
        return await self.http.get(path, headers=bearer(token))


def bearer(token: str) -> dict[str, str]:
    """Return the header with a bearer token."""
    return {"authorization": f"Bearer {token}"}


async def _who(request: Request) -> Response:
    identity = identity_of(request)
    return JSONResponse(
        {"user_id": identity.user_id, "scopes": sorted(identity.scopes), "kind": identity.kind}
    )


async def _broken(request: Request) -> Response:
    raise RuntimeError("broken on purpose")


async def _ws(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_json({"user_id": identity_of(socket).user_id})
    await socket.close()
