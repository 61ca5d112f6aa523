"""Has httpx transports that open a connection for each request, and the client that uses them.

httpx's pool looks at all its connections at each request and at the end of each response. So one
start cost 7 ms of CPU with few open legs, and 20 ms with 4,000. Here no cost grows with the number
of connections.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import ssl
from collections.abc import AsyncIterator, Iterable
from typing import Final
from urllib.request import getproxies

import httpx

from penstock.http.dialing import Resolve, dial, resolve
from penstock.http.exchange import Exchange
from penstock.http.tls import tls_context

WRITE_TIMEOUT_S: Final = 60.0  # the most seconds that a server may take to read a request
EXCHANGE: Final = "penstock_exchange"  # the key of the `Exchange` in a response's extensions
# the most seconds that a server may take to answer the end of a TLS connection
_SHUTDOWN_S: Final = 5.0
_PORTS: Final = {"http": 80, "https": 443}
# what a request may contain
_TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TARGET: Final = re.compile(rb"[\x21-\x7e]+")
_VALUE: Final = re.compile(rb"(?:[^\x00-\x20\x7f](?:[^\x00-\x08\x0a-\x1f\x7f]*[^\x00-\x20\x7f])?)?")


def new_client(connect_timeout_s: float) -> httpx.AsyncClient:
    """Return the client of a process; it uses the proxies and certificates of the environment."""
    context = tls_context()
    return httpx.AsyncClient(
        timeout=httpx.Timeout(None, connect=connect_timeout_s, write=WRITE_TIMEOUT_S),
        transport=DirectTransport(context),
        mounts={
            pattern: ProxyTransport(context, proxy) if proxy is not None else None
            for pattern, proxy in environment_proxies().items()
        },
        follow_redirects=False,
    )


class DirectTransport(httpx.AsyncBaseTransport):
    """Connects to the server of each request, without a proxy."""

    def __init__(self, context: ssl.SSLContext, resolve: Resolve = resolve) -> None:
        self._context = context
        self._resolve = resolve

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request; return the response when its head has been received.

        Raises:
            httpx.ConnectError, httpx.ConnectTimeout, httpx.LocalProtocolError,
                httpx.UnsupportedProtocol: nothing was sent.
            httpx.HTTPError: the server may have got the request.
        """
        timeouts = request.extensions.get("timeout", {})
        content = request_bytes(request, b"".join([part async for part in _parts(request)]))
        connect_s = timeouts.get("connect")
        exchange = await connect(request.url, self._context, connect_s, self._resolve)
        try:
            await exchange.send(content, timeouts.get("write"))
            await exchange.head(timeouts.get("read"))
        except BaseException:
            exchange.close()
            raise
        return httpx.Response(
            exchange.status,
            headers=exchange.headers,
            stream=_Body(exchange, timeouts.get("read")),
            extensions={
                "http_version": b"HTTP/1.1",
                "reason_phrase": exchange.reason,
                EXCHANGE: exchange,
            },
        )


async def connect(
    url: httpx.URL, context: ssl.SSLContext, timeout_s: float | None, resolve: Resolve = resolve
) -> Exchange:
    """Open a connection to the server of the URL; the caller closes the exchange.

    Raises:
        httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol: nothing was sent.
    """
    if url.scheme not in _PORTS or not url.host:
        raise httpx.UnsupportedProtocol(f"the URL {url} is neither http:// nor https://")
    host = url.raw_host.decode("ascii")
    is_tls = url.scheme == "https"
    try:
        async with asyncio.timeout(timeout_s):
            socket = await dial(host, url.port or _PORTS[url.scheme], resolve)
            try:
                _, exchange = await asyncio.get_running_loop().create_connection(
                    Exchange,
                    sock=socket,
                    ssl=context if is_tls else None,
                    server_hostname=host if is_tls else None,
                    ssl_shutdown_timeout=_SHUTDOWN_S if is_tls else None,
                )
            except BaseException:
                socket.close()
                raise
    except TimeoutError as error:
        raise httpx.ConnectTimeout(f"no connection in {timeout_s:g} s") from error
    except OSError as error:  # ssl.SSLError is an OSError
        raise httpx.ConnectError(str(error)) from error
    return exchange


class ProxyTransport(httpx.AsyncBaseTransport):
    """Sends each request through a proxy; each request gets a new transport of httpx."""

    def __init__(self, context: ssl.SSLContext, proxy: str) -> None:
        self._context = context
        self._proxy = httpx.Proxy(proxy)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        transport = httpx.AsyncHTTPTransport(verify=self._context, proxy=self._proxy)
        try:
            response = await transport.handle_async_request(request)
        except BaseException:
            await transport.aclose()
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Proxied(response.stream, transport)
        return response


class _Body(httpx.AsyncByteStream):
    """The body of an exchange, in the form in which httpx reads bodies."""

    def __init__(self, exchange: Exchange, read_timeout_s: float | None) -> None:
        self._exchange = exchange
        self._read_timeout_s = read_timeout_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await self._exchange.read(self._read_timeout_s):
            yield chunk

    async def aclose(self) -> None:
        self._exchange.close()


class _Proxied(httpx.AsyncByteStream):
    """A body that closes its transport when the body is closed."""

    def __init__(self, stream: httpx.AsyncByteStream, transport: httpx.AsyncHTTPTransport) -> None:
        self._stream = stream
        self._transport = transport

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            yield chunk

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            await self._transport.aclose()


def _parts(request: httpx.Request) -> httpx.AsyncByteStream:
    assert isinstance(request.stream, httpx.AsyncByteStream)
    return request.stream


def environment_proxies() -> dict[str, str | None]:
    """Map each pattern of URLs to its proxy; None for a pattern that uses no proxy.

    httpx reads `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` only for a client that has
    its own transport. Each variable has the same meaning here.
    """
    found = getproxies()
    excepted = [host for each in found.get("no", "").split(",") if (host := each.strip())]
    if "*" in excepted:
        return {}
    proxies: dict[str, str | None] = {
        f"{scheme}://": url if "://" in url else f"http://{url}"
        for scheme in ("http", "https", "all")
        if (url := found.get(scheme))
    }
    return proxies | dict.fromkeys(map(_pattern, excepted))


def _pattern(host: str) -> str:
    if "://" in host:
        return host
    try:
        version = ipaddress.ip_address(host.partition("/")[0]).version
    except ValueError:
        return f"all://{host}" if host.lower() == "localhost" else f"all://*{host}"
    return f"all://[{host}]" if version == 6 else f"all://{host}"


def request_bytes(request: httpx.Request, content: bytes) -> bytes:
    """Return the bytes of the request with its body, as `encoded_request` does."""
    method = request.method.encode("ascii", "replace")
    return encoded_request(method, request.url.raw_path, request.headers.raw, content)


def encoded_request(
    method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]], content: bytes
) -> bytes:
    """Return the bytes of a request with its body, and with the header `Connection: close`. Raises
    httpx.LocalProtocolError if the method, the URL or a header has a line end or another control
    character. With such a character, the server could read a different request."""
    if not _TOKEN.fullmatch(method) or not _TARGET.fullmatch(target):
        raise httpx.LocalProtocolError(f"the request {method!r} {target!r} cannot be sent")
    lines = [b"%b %b HTTP/1.1\r\n" % (method, target)]
    for name, value in headers:
        if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise httpx.LocalProtocolError(f"the header {name!r} cannot be sent: its value is bad")
        if name.lower() == b"transfer-encoding":
            chunk = b"%x\r\n%b\r\n" % (len(content), content) if content else b""
            content = chunk + b"0\r\n\r\n"
        if name.lower() != b"connection":
            lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join((*lines, b"Connection: close\r\n\r\n", content))
