"""Find the operation of each request and authenticate the caller, before any handler runs.

The operation is found first. The operation declares whether the caller must authenticate, which
scopes the caller needs, and how a refusal is written. A handler runs only after these checks, so no
handler can forget a check.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from urllib.parse import unquote

from starlette.datastructures import URL
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from penstock import telemetry
from penstock.tracing import requests, spans
from penstock.validation import did_you_mean
from penstock.web.auth.auth import Auth
from penstock.web.auth.csrf import SAFE_METHODS
from penstock.web.auth.identity import IDENTITY, OVER, STREAMS
from penstock.web.auth.limits import RequestCount
from penstock.web.body_memory import BODY_MEMORY, BodyMemory
from penstock.web.operation import Operation, Route, without_parameter_names
from penstock.web.problems import PROBLEM, ErrorShape, Problem

# The control character with which each mark begins. A client cannot send a mark, because no HTTP
# parser accepts this character unencoded, and the encoded character (`%1A`) is itself replaced with
# a different mark.
_MARK: Final = "\x1a"
_ENCODED: Final = re.compile(rb"%2[Ff]|%1[Aa]")
_MARKED: Final = re.compile(f"{_MARK}(.)")
_MARKS: Final = {b"%2f": b"%1As", b"%1a": b"%1Am"}
_MEANT: Final = {"s": "/", "m": _MARK}


def decoded(value: str) -> str:
    return _MARKED.sub(lambda match: _MEANT[match[1]], value) if _MARK in value else value


def keeping_segments(app: ASGIApp) -> ASGIApp:
    """Keep an encoded slash (`%2F`) of an id within its segment of the path.

    uvicorn decodes a path before the router matches it. So `/sessions/a%2Fb/events` would have one
    segment too many, and the answer would be 404. A mark replaces each encoded slash before the
    route is looked up, and becomes a slash again in the parameters (`decoded`).
    """

    async def marking(scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path") or b""
        if b"%" in raw and _ENCODED.search(raw):
            marked = _ENCODED.sub(lambda match: _MARKS[match[0].lower()], raw)
            scope["path"] = unquote(marked.decode("ascii"))
        await app(scope, receive, send)

    return marking


_CLOSE_POLICY: Final = 1008
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_NO_ROUTE: Final = "none"  # the metric's label for requests that no route serves


@dataclass(slots=True)
class _Path:
    pattern: re.Pattern[str]
    errors: ErrorShape
    routes: dict[str, Route] = field(default_factory=dict)  # maps a method to its route
    websocket: Route | None = None

    def add(self, route: Route) -> None:
        """Add a route. Raises ValueError if the path has one for the method already."""
        operation = route.operation
        if operation.websocket:
            taken, self.websocket = self.websocket, route
        else:
            taken = self.routes.get(operation.method)
            self.routes[operation.method] = route
        if taken is not None:
            raise ValueError(f"two routes serve {operation.method} {operation.path}")

    def route(self, scope: Scope) -> Route | None:
        """Return the request's route; None if there is none. A HEAD gets the route of the GET,
        unless the GET is a stream."""
        if scope["type"] == "websocket":
            return self.websocket
        if scope["method"] != "HEAD":
            return self.routes.get(scope["method"])
        get = self.routes.get("GET")
        return get if get is not None and not get.operation.can_stream else None

    @property
    def methods(self) -> list[str]:
        get = self.routes.get("GET")
        head = {"HEAD"} if get is not None and not get.operation.can_stream else set()
        return [method for method in _METHODS if method in self.routes.keys() | head]


class Table:
    """Finds routes by their paths. A path without parameters is found in one look-up."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._fixed: dict[str, _Path] = {}
        # maps a number of slashes to the paths with so many slashes
        self._patterns: dict[int, list[_Path]] = {}
        # the paths whose last parameter stands for any number of segments
        self._tails: list[_Path] = []
        known: dict[tuple[str, bool], _Path] = {}
        for route in routes:
            path, is_tail = route.operation.path, route.operation.path.endswith(":path}")
            key = without_parameter_names(path), is_tail
            if key not in known:
                # a parameter may contain any character, even line breaks
                pattern = re.compile(compile_path(path)[0].pattern, re.DOTALL)
                known[key] = _Path(pattern, route.operation.errors)
                if without_parameter_names(path) == path:
                    self._fixed[path] = known[key]
                elif is_tail:
                    self._tails.append(known[key])
                else:
                    self._patterns.setdefault(path.count("/"), []).append(known[key])
            known[key].add(route)

    def find(self, path: str) -> tuple[_Path, dict[str, str]] | None:
        """Return the path's routes and the values of its parameters; None without a route."""
        fixed = self._fixed.get(path)
        if fixed is not None:
            return fixed, {}
        for candidate in (*self._patterns.get(path.count("/"), ()), *self._tails):
            match = candidate.pattern.fullmatch(path)
            if match is not None:
                values = {name: decoded(text) for name, text in match.groupdict().items()}
                return candidate, values
        return None

    def nothing_at(self, path: str) -> str:
        return f"there is nothing at {path[:128]}{did_you_mean(path, self._fixed)}"


class Router:
    """Finds the operation of each request, authenticates the caller, and runs the handler.

    The handler gets the original `receive`, not a wrapper, because a stream takes over the
    connection to which `receive` belongs.
    """

    def __init__(
        self, routes: Iterable[Route], auth: Auth, body_memory: BodyMemory | None = None
    ) -> None:
        self._table = Table(routes)
        self._auth = auth
        self._body_memory = body_memory or BodyMemory()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._table.find(scope["path"])
        path, values = found if found is not None else (None, {})
        route = path.route(scope) if path is not None else None
        operation = route.operation if route is not None else None
        errors = path.errors if path is not None else PROBLEM
        auth = self._auth
        began = time.monotonic()
        try:
            identity = await auth.admit(
                scope,
                public=operation is not None and operation.public,
                stream_token=operation is not None and operation.accepts_stream_token,
            )
            auth.requests.take(identity)
            give_back = auth.connections.take(identity)
        except Problem as problem:
            _count(operation, problem.status)
            await refuse(problem, errors, scope, receive, send)
            return
        place = RequestCount(auth.streams, identity, give_back)
        scope["state"] = {
            **scope.get("state", {}),
            IDENTITY: identity,
            OVER: partial(auth.wait_until_credential_ends, identity),
            STREAMS: place,
        }
        if identity.kind == "anonymous":
            scope["state"][BODY_MEMORY] = self._body_memory
        try:
            if route is None or operation is None:
                await self._not_served(path, scope, receive, send)
                return
            scope["path_params"] = {**values, **operation.constants}
            try:
                if spans.is_on() and operation.method not in SAFE_METHODS:
                    requests.begin(requests.header_of(scope["headers"]))
                operation.check(identity)
                operation.check_query(scope["query_string"].decode("latin-1"))
                response = await route.handler(_request(operation, scope, receive, send))
            except Problem as problem:
                _count(operation, problem.status)
                await refuse(problem, errors, scope, receive, send)
                return
            except Exception:
                _count(operation, 500)
                raise
            code = 101 if operation.websocket else int(getattr(response, "status_code", 200))
            _count(operation, code)
            if response is not None:
                await response(scope, receive, send)
            if not (operation.can_stream or operation.websocket):
                telemetry.HTTP_SECONDS.labels(operation.path).observe(time.monotonic() - began)
        finally:
            place.give_back()

    async def _not_served(
        self, path: _Path | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer 404 or 405, or redirect to the path with a slash added or removed at its end."""
        is_http = scope["type"] == "http"
        if path is not None and (path.routes or not is_http):
            method = scope["method"] if is_http else "WebSocket"
            allowed = {"allow": ", ".join(path.methods)}
            problem = Problem(405, f"{method} is not served here", allowed)
            _count(None, 405)
            await refuse(problem, path.errors, scope, receive, send)
        elif is_http and self._table.find(other := _other_slash(scope["path"])) is not None:
            url = URL(scope={**scope, "path": other})
            _count(None, 307)
            await RedirectResponse(str(url))(scope, receive, send)
        else:
            _count(None, 404)
            problem = Problem(404, self._table.nothing_at(scope["path"]))
            await refuse(problem, PROBLEM, scope, receive, send)


def _count(operation: Operation | None, code: int) -> None:
    """Count a request when its status is known. The labels come from the operation.

    The path and the method of the request are no labels, because clients could create any number of
    labels with them.
    """
    method, route = (
        (operation.method, operation.path) if operation else (telemetry.OTHER, _NO_ROUTE)
    )
    telemetry.HTTP_REQUESTS.labels(method, route, code).inc()
    if spans.is_on():
        requests.end(method, route, code)


async def refuse(
    problem: Problem, errors: ErrorShape, scope: Scope, receive: Receive, send: Send
) -> None:
    if scope["type"] == "websocket":
        await receive()  # websocket.connect
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": _CLOSE_POLICY, "reason": ""})
            return
    await errors.response(problem)(scope, receive, send)


def _request(
    operation: Operation, scope: Scope, receive: Receive, send: Send
) -> Request | WebSocket:
    return (WebSocket if operation.websocket else Request)(scope, receive, send)


def _other_slash(path: str) -> str:
    return path[:-1] if path.endswith("/") and path != "/" else f"{path}/"
