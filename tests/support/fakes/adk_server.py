"""A server with ADK's session endpoints, as ADK 1.16 and 2.13 answer them."""

from __future__ import annotations

import uuid
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock.web.server import Server
from support.fakes.routes import routes

PATH = "/apps/{app}/users/{user}/sessions"


class AdkSessionsServer:
    """Keep sessions in memory. With `old`, creating an existing session empties it, as in 1.16."""

    def __init__(self, old: bool) -> None:
        self.old = old
        self.sessions: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.broken = False
        self._server = Server(
            [
                *routes(PATH, self._many, ["GET", "POST"]),
                *routes(f"{PATH}/{{id}}", self._one, ["GET", "POST", "DELETE"]),
            ],
            "127.0.0.1",
            0,
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    async def _many(self, request: Request) -> Response:
        if self.broken:
            return Response("Internal Server Error", 500, media_type="text/plain")
        app, user = request.path_params["app"], request.path_params["user"]
        if request.method == "GET":
            found = [each for key, each in self.sessions.items() if key[:2] == (app, user)]
            return JSONResponse([{**each, "events": []} for each in found])
        body = await request.json() if await request.body() else {}
        id = body.get("sessionId") or str(uuid.uuid4())
        if (app, user, id) in self.sessions and not self.old:
            return _refused(409, f"Session already exists: {id}")
        return self._created(app, user, id, body.get("state"), body.get("events"))

    async def _one(self, request: Request) -> Response:
        app, user, id = (request.path_params[name] for name in ("app", "user", "id"))
        match request.method:
            case "GET":
                known = self.sessions.get((app, user, id))
                return JSONResponse(known) if known else _refused(404, "Session not found")
            case "DELETE":
                self.sessions.pop((app, user, id), None)
                return JSONResponse(None)
        if (app, user, id) in self.sessions:
            return _refused(400 if self.old else 409, f"Session already exists: {id}")
        return self._created(app, user, id, await request.json())

    def _created(
        self, app: str, user: str, id: str, state: Any = None, events: Any = None
    ) -> Response:
        session = {
            "id": id,
            "appName": app,
            "userId": user,
            "state": state or {},
            "events": events or [],
            "lastUpdateTime": 1.5,
        }
        self.sessions[app, user, id] = session
        return JSONResponse(session)


def _refused(status: int, detail: str) -> Response:
    return JSONResponse({"detail": detail}, status)
