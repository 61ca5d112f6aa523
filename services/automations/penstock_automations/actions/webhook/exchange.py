"""Sends the request of a webhook: one HTTP/1.1 exchange on a new connection, without redirects,
proxies and cookies.

For such an exchange, a pool of httpcore takes 1.3 ms of CPU time, a connection of httpcore 0.9 ms,
and this module 0.4 ms (docs/decisions/0211).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final

import httpcore
import httptools
import httpx

from penstock_automations.actions.webhook.answers import Answer, NoAnswer
from penstock_automations.guard.backend import AddressRefused, Guard, GuardedBackend

READ_BYTES: Final = 64 * 1024  # the greatest number of bytes of an answer's body that are read
MAX_HEAD_BYTES: Final = 64 * 1024
_CHUNK_BYTES: Final = 64 * 1024
_NO_VALUE: Final = frozenset("\r\n\0")


class NoExchange(Exception):
    """The receiver did not send an HTTP/1.1 answer."""


async def exchange(
    backend: httpcore.AsyncNetworkBackend,
    tls: ssl.SSLContext,
    url: httpx.URL,
    *,
    headers: Mapping[str, str],
    body: bytes,
    timeout_s: float,
) -> Answer:
    """Post a body on a new connection; return the answer with up to `READ_BYTES` of its body.

    Raises:
        NoExchange: the receiver sent no complete HTTP/1.1 answer.
        ValueError: a header has a value that HTTP does not allow.
        httpcore.NetworkError, httpcore.TimeoutException: the connection failed.
    """
    request = _head(url, headers, len(body)) + body
    secure = url.scheme == "https"
    host = url.raw_host.decode("ascii")
    port = url.port or (443 if secure else 80)
    stream = await backend.connect_tcp(host, port, timeout_s)
    try:
        if secure:
            stream = await stream.start_tls(tls, host, timeout_s)
        await stream.write(request, timeout_s)
        return await _answer(stream, timeout_s)
    finally:
        await stream.aclose()


def _head(url: httpx.URL, headers: Mapping[str, str], length: int) -> bytes:
    sent = {
        "host": url.netloc.decode("ascii"),
        "connection": "close",
        "content-length": str(length),
        **headers,
    }
    lines = [f"POST {url.raw_path.decode('ascii')} HTTP/1.1"]
    for name, value in sent.items():
        if not _NO_VALUE.isdisjoint(value):
            raise ValueError(f"the header {name} has a value that HTTP does not allow")
        lines.append(f"{name}: {value}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def _answer(stream: httpcore.AsyncNetworkStream, timeout_s: float) -> Answer:
    reading = _Reading()
    head_bytes = 0
    while not reading.is_enough:
        data = await stream.read(_CHUNK_BYTES, timeout_s)
        if not data:
            if not reading.ends_with_the_connection:
                raise NoExchange("the connection was closed before the answer was complete")
            break
        reading.feed(data)
        head_bytes += len(data)
        if not reading.has_head and head_bytes > MAX_HEAD_BYTES:
            raise NoExchange(f"the head of the answer has over {MAX_HEAD_BYTES} bytes")
    return Answer(reading.status, reading.headers, bytes(reading.body[:READ_BYTES]))


class _Reading:
    """Reads one answer and skips interim answers (1xx). httptools calls the methods `on_…`."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.has_head = False
        self.is_complete = False
        self._parser = httptools.HttpResponseParser(self)

    @property
    def is_enough(self) -> bool:
        return self.is_complete or len(self.body) >= READ_BYTES

    @property
    def ends_with_the_connection(self) -> bool:
        is_chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        return self.has_head and not is_chunked and "content-length" not in self.headers

    def feed(self, data: bytes) -> None:
        """Parse the next bytes. Raises NoExchange if these are not part of an HTTP answer."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.is_complete:  # ignore bytes after a complete answer
                raise NoExchange(str(error) or type(error).__name__) from None

    def on_header(self, name: bytes, value: bytes) -> None:
        # a header of the trailer is ignored
        if not self.has_head:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self.has_head:
            return
        self.status = self._parser.get_status_code()
        self.has_head = not _is_interim(self.status)
        if not self.has_head:
            self.headers.clear()

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.is_complete = self.has_head


def _is_interim(status: int) -> bool:
    return 100 <= status < 200


_UNUSABLE = (NoExchange, httpx.InvalidURL, ValueError)


class Sender:
    """Sends webhooks, each on a new connection that the guard has checked."""

    def __init__(self, guard: Guard, backend: httpcore.AsyncNetworkBackend | None = None) -> None:
        self._guard = guard
        self._backend = backend if backend is not None else GuardedBackend(guard)
        self._tls: ssl.SSLContext | None = None

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> Answer | NoAnswer:
        """Post a body; return the answer with up to 64 KiB of its body, or a `NoAnswer`.

        The whole exchange must end within `timeout_s` seconds.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._exchange(httpx.URL(url), headers, body, timeout_s)
        except TimeoutError:
            return NoAnswer("timeout", f"no complete answer within {timeout_s:g} s")
        except AddressRefused as error:
            return NoAnswer("refused_address", str(error))
        except httpcore.TimeoutException as error:
            return NoAnswer("timeout", str(error) or f"no answer within {timeout_s:g} s")
        except (httpcore.NetworkError, OSError) as error:
            return NoAnswer("connection", f"the connection failed: {_text(error)}")
        except _UNUSABLE as error:
            return NoAnswer("protocol", f"no HTTP/1.1 exchange is possible: {_text(error)}")

    async def _exchange(
        self, url: httpx.URL, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> Answer:
        self._guard.check_scheme(url.scheme, url.host)
        if self._tls is None:
            self._tls = httpx.create_ssl_context()
        return await exchange(
            self._backend, self._tls, url, headers=headers, body=body, timeout_s=timeout_s
        )


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
