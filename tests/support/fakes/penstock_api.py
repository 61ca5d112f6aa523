"""A stand-in for Penstock's HTTP API that misbehaves on request, to test the terminal client."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from penstock import sse
from support.drive.waiting import wait_for

RUN_ID = "01980000-0000-7000-8000-000000000001"
APPROVAL_ID = "ap-1"


def event(sequence: int, name: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return an envelope."""
    category, action = name.split(".")
    return {
        "run_id": RUN_ID,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "sequence": sequence,
        "source": None,
        "event": {"category": category, "action": action},
        "data": data,
    }


def events(*named: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return envelopes with sequence numbers from 1 on."""
    return [event(number, name, data) for number, (name, data) in enumerate(named, 1)]


@dataclass
class Trouble:
    """The failures of the API, and how often each happens."""

    busy: int = 0  # requests that get a 503 without being processed
    cuts: list[int] = field(default_factory=list)  # frames per connection before it is dropped
    refuse_decision: tuple[int, str] | None = None
    refuse_start: tuple[int, str] | None = None


class PenstockApi:
    """One run with these events. A stream waits after `lifecycle.paused` for the decision."""

    def __init__(
        self, run_events: list[dict[str, Any]], cert: str | None = None, key: str | None = None
    ) -> None:
        self.events = run_events
        self.trouble = Trouble()
        self.approval: dict[str, Any] = {
            "approval_id": APPROVAL_ID,
            "run_id": RUN_ID,
            "agent": "assistant",
            "session_id": "s",
            "status": "pending",
            "digest": "d1",
            "items": [
                {
                    "item_id": "i1",
                    "kind": "confirmation",
                    "tool": "delete_file",
                    "args": {"path": "a"},
                }
            ],
        }
        self.record: dict[str, Any] = {
            "run_id": RUN_ID,
            "agent": "assistant",
            "session_id": "s",
            "status": "running",
            "created_at": "2026-01-01T00:00:00.000Z",
            "message": "hi",
        }
        self.fork: dict[str, Any] = {}  # what a fork of the run would take over
        self.agents: list[dict[str, Any]] = []
        self.workflows: list[str] = []
        self.more_runs: list[dict[str, Any]] = []  # older than `record`, the newest first
        self.most = 1000  # entries per page
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.queries: list[QueryParams] = []  # of lists of runs
        self.cursors: list[str | None] = []
        self.authorizations: set[str | None] = set()
        self._decided = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        app = Starlette(
            routes=[
                self._route("POST", "/v1/runs", self._start),
                self._route("GET", "/v1/runs", self._runs),
                self._route("GET", "/v1/runs/{id}", self._run),
                self._route("POST", "/v1/runs/{id}/cancel", self._cancel),
                self._route("GET", "/v1/runs/{id}/events", self._events),
                self._route("GET", "/v1/runs/{id}/fork", self._fork),
                self._route("POST", "/v1/runs/{id}/fork", self._start),
                self._route("GET", "/v1/agents", self._agents),
                self._route("GET", "/v1/workflows", self._workflows),
                self._route("GET", "/v1/workflows/{name}", self._workflow),
                self._route("GET", "/v1/approvals", self._approvals),
                self._route("GET", "/v1/approvals/{id}", self._approval),
                self._route("POST", "/v1/approvals/{id}/decision", self._decide),
            ]
        )
        config = uvicorn.Config(
            app, log_config=None, lifespan="off", ssl_certfile=cert, ssl_keyfile=key
        )
        self._server = uvicorn.Server(config)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"{'https' if cert else 'http'}://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))

    def start(self) -> None:
        """Start to listen."""
        self._thread.start()
        wait_for(lambda: self._server.started, 30, "the stand-in")

    def stop(self) -> None:
        """Break open connections, and stop."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(10)
        self._socket.close()

    def decide_elsewhere(self) -> None:
        """Approve as another client would."""
        self.approval["status"] = "decided"
        if self._loop is None:  # no request has come yet
            self._decided.set()
        else:
            self._loop.call_soon_threadsafe(self._decided.set)

    def sent(self, path: str) -> list[dict[str, Any]]:
        """Return the bodies of the requests to this path."""
        return [body for at, body in self.requests if at == path]

    def _route(
        self, method: str, path: str, answer: Callable[[Request], Awaitable[Response]]
    ) -> Route:
        async def endpoint(request: Request) -> Response:
            self._loop = asyncio.get_running_loop()
            body = await request.body()
            self.authorizations.add(request.headers.get("authorization"))
            self.requests.append((request.url.path, json.loads(body) if body else {}))
            if self.trouble.busy:
                self.trouble.busy -= 1
                return Response("busy", 503)
            if request.path_params.get("id") == "nope":
                return problem(404, "there is no such thing")
            return await answer(request)

        return Route(path, endpoint, methods=[method])

    async def _start(self, request: Request) -> Response:
        if self.trouble.refuse_start:
            return problem(*self.trouble.refuse_start)
        return JSONResponse(self.record, 202)

    async def _runs(self, request: Request) -> Response:
        query = request.query_params
        self.queries.append(query)
        limit, before = int(query["limit"]), query.get("before")
        parent = query.get("parent_run_id")
        rest = [
            run
            for run in (self.record, *self.more_runs)
            if (not before or run["run_id"] < before)
            and (not parent or run.get("parent_run_id") == parent)
        ]
        page = rest[: min(limit, self.most)]
        following = page[-1]["run_id"] if len(page) < len(rest) else None
        return JSONResponse({"runs": page, "next": following})

    async def _run(self, request: Request) -> Response:
        return JSONResponse(self.record)

    async def _fork(self, request: Request) -> Response:
        return JSONResponse(self.fork)

    async def _cancel(self, request: Request) -> Response:
        if self.record["status"] == "completed":
            return problem(409, "the run is completed")
        return JSONResponse(self.record | {"status": "cancelled"})

    async def _agents(self, request: Request) -> Response:
        return JSONResponse({"agents": self.agents})

    async def _workflows(self, request: Request) -> Response:
        return JSONResponse({"workflows": [{"name": each} for each in self.workflows]})

    async def _workflow(self, request: Request) -> Response:
        name = request.path_params["name"]
        return JSONResponse({}) if name in self.workflows else problem(404, "no such workflow")

    async def _approvals(self, request: Request) -> Response:
        return JSONResponse({"approvals": [self.approval], "next": None})

    async def _approval(self, request: Request) -> Response:
        return JSONResponse(self.approval)

    async def _decide(self, request: Request) -> Response:
        if self.trouble.refuse_decision:
            self._decided.set()
            return problem(*self.trouble.refuse_decision)
        self.approval["votes"] = [*self.approval.get("votes", []), {"by": "me"}]
        if len(self.approval["votes"]) >= self.approval.get("need", 1):
            self.approval["status"] = "decided"
        self._decided.set()
        return JSONResponse(self.approval)

    async def _events(self, request: Request) -> Response:
        if "text/event-stream" not in request.headers.get("accept", ""):
            return JSONResponse({"events": self.events, "next": None})
        cursor = request.headers.get("last-event-id")
        self.cursors.append(cursor)
        after = int(cursor.split("-")[0]) if cursor else 0
        rest = [each for each in self.events if each["sequence"] > after]
        if not rest:
            return Response(status_code=204)
        frames = self.trouble.cuts.pop(0) if self.trouble.cuts else None
        return StreamingResponse(self._frames(rest, frames), media_type="text/event-stream")

    async def _frames(self, rest: list[dict[str, Any]], until: int | None) -> AsyncIterator[bytes]:
        for number, each in enumerate(rest):
            if number == until:
                raise ConnectionResetError("cut on purpose")
            name = f"{each['event']['category']}.{each['event']['action']}"
            yield sse.encode(json.dumps(each).encode(), event=name, id=f"{each['sequence']}-0")
            if name == "lifecycle.paused":
                await self._decided.wait()


def problem(status: int, detail: str) -> Response:
    """Return an error body in the form of RFC 9457."""
    return JSONResponse(
        {"title": "No", "status": status, "detail": detail},
        status,
        media_type="application/problem+json",
    )
