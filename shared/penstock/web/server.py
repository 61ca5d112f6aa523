"""Serve one port with uvicorn.

The process, not uvicorn, decides when the server starts and stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
import resource
import socket
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.web.auth import Auth, AuthConfig
from penstock.web.auth.credentials import headers_of
from penstock.web.auth.origins import SecurityHeaders, cors, is_loopback
from penstock.web.bodies import body_read_before_error
from penstock.web.body_memory import BodyMemory
from penstock.web.operation import Route
from penstock.web.problems import PROBLEM, Problem, exception_handlers
from penstock.web.protocol import BODY_S, HEAD_S, HttpProtocol, refusing_quietly
from penstock.web.router import Router, keeping_segments, refuse

ANY: Final = "*"
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,255}))(?::[0-9]{1,5})?")


def host_name_of(header: str) -> str | None:
    """Return the name or address of a Host header in lower case; None for an invalid header."""
    match = _HOST.fullmatch(header)
    if match is None:
        return None
    return (match[1] or match[2]).lower().removesuffix(".") or None


class HostCheck:
    """Answers only requests whose header Host has a loopback name or one of `names`.

    With `addresses`, requests whose Host is an IP address are answered, too. Such requests are
    safe, because a page with a foreign name cannot send them. If `names` contains `*`, every
    request is answered.
    """

    def __init__(
        self, app: ASGIApp, names: Collection[str] = (), *, addresses: bool = False
    ) -> None:
        self._app = app
        self._names = frozenset(host_name_of(name) or name for name in names)
        self._addresses = addresses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(scope) if scope["type"] in ("http", "websocket") else None
        if problem is None:
            await self._app(scope, receive, send)
            return
        await refuse(problem, PROBLEM, scope, receive, send)

    def _problem(self, scope: Scope) -> Problem | None:
        if ANY in self._names:
            return None
        headers = headers_of(scope, b"host")
        if len(headers) != 1:
            return Problem(400, "a request must have one Host header")
        name = host_name_of(headers[0])
        if name is None:
            return Problem(400, "the Host header is no host name or address")
        if is_loopback(name) or name in self._names or (self._addresses and _is_address(name)):
            return None
        return Problem(
            421,
            f"nobody is asked who they are here, so only requests for this machine (localhost, "
            f"127.0.0.1) are answered, and {name} is another name. If it is right, add it to "
            "PENSTOCK_AUTH_HOSTS, or ask callers who they are: PENSTOCK_AUTH_JWT_SECRET, "
            "PENSTOCK_AUTH_JWKS_URL or PENSTOCK_OIDC_ISSUER",
        )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


log = logging.getLogger(__name__)

WS_PING_S = 15.0
TICK_S = 0.05
MAX_FILES = 1_048_576
# the greatest size of a client's WebSocket message; no surface needs larger messages
WS_MAX_BYTES = 64 * 1024


class BindRefused(Exception):
    """The error for an address that must not or cannot be bound. The text says what to do."""


def check_bind(host: str, *, asks: bool, insecure: bool = False) -> None:
    """Raise BindRefused for an address that is not loopback if callers are not authenticated.
    `asks` says whether callers are authenticated. With `insecure`, the operator allows it."""
    if is_loopback(host) or asks:
        return
    if insecure:
        log.warning("%s is reachable from other machines, and callers are not authenticated", host)
        return
    raise BindRefused(
        f"{host} is reachable from other machines, and callers are not authenticated. Set "
        "PENSTOCK_AUTH_JWT_SECRET, PENSTOCK_AUTH_JWKS_URL or PENSTOCK_OIDC_ISSUER (and "
        "ALLOW_UNAUTHENTICATED_SSE not), or bind 127.0.0.1, or set PENSTOCK_INSECURE_BIND=yes if a "
        "proxy in front authenticates"
    )


def raise_file_limit() -> int:
    """Raise this process's limit of open files as far as the system permits. Return the new
    limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(soft, most)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        self._stopped.set()

    async def main_loop(self) -> None:
        """Renew the header `date` once a second until `stop` is called. uvicorn's own loop looks
        ten times a second whether it must end, which was a quarter of the wake-ups of an idle
        process."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._stopped.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers for uvicorn, because the process itself handles signals."""
        yield


def application(
    routes: Sequence[Route], auth: Auth, body_memory: BodyMemory | None = None
) -> ASGIApp:
    """Return the ASGI application that serves the routes, with CORS and with answers to unexpected
    errors.

    The CORS middleware handles a request before the caller is authenticated. Otherwise a preflight
    would be refused, because it has no credentials. A page could then not read why a request was
    refused.
    """
    app = Starlette(exception_handlers=exception_handlers, middleware=cors(auth.config))
    router: Any = Router(routes, auth, body_memory)
    app.router = router  # Starlette's own router does not know operations
    return app


class Server:
    """Serves one port.

    If `port` is 0, the system chooses a port; after `start`, `port` is the chosen port.

    Without an `auth`, every caller is `anonymous`. If a client does not answer a ping before the
    next ping is due, its WebSocket is closed (1011). `head_s` and `body_s` are the time limits of
    `HttpProtocol`. If the port is taken, the error text names `setting`, which is the name of the
    port's setting.

    If callers are not authenticated, the server answers only requests for a loopback name or for a
    host name in the configuration of `auth`. With `addresses`, the server also answers requests for
    an IP address. The module `hosts` says why. `body_memory` bounds the bodies of callers who are
    not authenticated.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        host: str,
        port: int,
        insecure: bool = False,
        auth: Auth | None = None,
        ws_ping_s: float = WS_PING_S,
        head_s: float = HEAD_S,
        body_s: float = BODY_S,
        setting: str = "--port (PENSTOCK_PORT)",
        addresses: bool = False,
        body_memory: BodyMemory | None = None,
    ) -> None:
        auth = auth or Auth(AuthConfig())
        check_bind(host, asks=auth.requires_credentials, insecure=insecure)
        self._host = host
        self._setting = setting
        self.port = port
        app = application(routes, auth, body_memory)
        guarded = (
            app
            if auth.requires_credentials
            else HostCheck(app, auth.config.hosts, addresses=addresses)
        )
        self._server = _Server(
            uvicorn.Config(
                # SecurityHeaders wraps the whole app, so that answers to internal errors get the
                # headers, too.
                self._closing_connections(
                    body_read_before_error(
                        refusing_quietly(SecurityHeaders(keeping_segments(guarded)))
                    )
                ),
                log_config=None,
                access_log=False,
                server_header=False,
                # The address of the peer shows whether a caller is local. If uvicorn took the
                # address from proxy headers, a caller could forge the address.
                proxy_headers=False,
                lifespan="off",
                ws_ping_interval=ws_ping_s,
                ws_ping_timeout=ws_ping_s,
                ws_max_size=WS_MAX_BYTES,
                # WebSockets are not compressed, because the buffers for compression would take more
                # memory than all other data of a connection.
                ws_per_message_deflate=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=2,
                http=type("Protocol", (HttpProtocol,), {"head_s": head_s, "body_s": body_s}),
            )
        )
        self._task: asyncio.Task[None] | None = None
        self._draining = False
        self._listener: socket.socket | None = None

    def _closing_connections(self, app: ASGIApp) -> ASGIApp:
        async def closing_connections(scope: Scope, receive: Receive, send: Send) -> None:
            async def send_with_close(message: Message) -> None:
                if self._draining and message["type"] == "http.response.start":
                    headers = [each for each in message["headers"] if each[0] != b"connection"]
                    message["headers"] = [*headers, (b"connection", b"close")]
                await send(message)

            # Only requests during the drain get `send_with_close`. A request from before the drain
            # gets `send` itself. Such a request may be an open stream, and each message of the
            # stream would pass through `send_with_close` without need.
            await app(scope, receive, send_with_close if self._draining else send)

        return closing_connections

    async def start(self) -> None:
        """Bind the address, and begin to serve. Raises BindRefused."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        # asyncio turns Nagle's algorithm off only if the socket was created with the protocol TCP.
        # With Nagle's algorithm, the body of each answer would wait for 40 ms, until the client has
        # acknowledged the head.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self._host, self.port))
        except OSError as error:
            listener.close()
            raise BindRefused(
                f"cannot listen on {self._host}:{self.port}: {error.strerror}. "
                f"Is another Penstock running? Choose another port with {self._setting}"
            ) from error
        self.port = listener.getsockname()[1]
        self._listener = listener
        self._task = asyncio.create_task(self._server.serve([listener]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
            await asyncio.sleep(0.005)

    def close_port(self) -> None:
        """Refuse new connections from now on, but answer the requests that have arrived.

        New connections are refused and not answered with 503. An EventSource tries again after a
        refused connection, but never after a 503. Idle connections are closed, too, because a
        client would send its next request over an idle connection.
        """
        for server in self._server.servers:
            server.close()
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._server.server_state.connections):
            # WebSockets are left alone, because the edge drains them itself
            if isinstance(connection, HttpProtocol):
                connection.shutdown()

    async def drain(self, grace_s: float) -> None:
        """Close each connection after its answer. Wait until no connection is open, but at most
        `grace_s` seconds."""
        self._draining = True
        over = asyncio.get_running_loop().time() + grace_s
        while self._is_answering() and asyncio.get_running_loop().time() < over:
            await asyncio.sleep(TICK_S)

    def _is_answering(self) -> bool:
        """Return whether a request has no complete answer yet. Not only tasks are counted, because
        a stream may have no task."""
        state = self._server.server_state
        return bool(state.tasks) or any(
            isinstance(each, HttpProtocol) and each.stream is not None for each in state.connections
        )

    async def stop(self) -> None:
        """Close the port, and cancel the requests that are still open after two seconds."""
        if self._task is not None:
            self._server.stop()
            await self._task
