"""Sends the request of a webhook on a new connection, without redirects, proxies and cookies."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final

import httpx

from penstock.http.transport import connect, encoded_request
from penstock_automations.actions.webhook.answers import Answer, NoAnswer
from penstock_automations.guard.guard import AddressRefused, Guard

READ_BYTES: Final = 64 * 1024  # the greatest number of bytes of an answer's body that are read
_SWITCHING_PROTOCOLS: Final = 101
_UNUSABLE: Final = (
    httpx.ProtocolError,
    httpx.UnsupportedProtocol,
    httpx.InvalidURL,
    ValueError,
)


class Sender:
    """Sends webhooks, each on a new connection to an address that the guard has checked."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._tls: ssl.SSLContext | None = None

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> Answer | NoAnswer:
        """Post a body; return the answer with up to 64 KiB of its body, or a `NoAnswer`.

        The whole exchange must end within `timeout_s` seconds.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._post(httpx.URL(url), headers, body, timeout_s)
        except (TimeoutError, httpx.TimeoutException):
            return NoAnswer("timeout", f"no complete answer within {timeout_s:g} s")
        except AddressRefused as error:
            return NoAnswer("refused_address", str(error))
        except (httpx.NetworkError, OSError) as error:
            return NoAnswer("connection", f"the connection failed: {_text(error)}")
        except _UNUSABLE as error:
            return NoAnswer("protocol", f"no HTTP/1.1 exchange is possible: {_text(error)}")

    async def _post(
        self, url: httpx.URL, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> Answer:
        self._guard.check_scheme(url.scheme, url.host)
        sent = {
            "host": url.netloc.decode("ascii"),
            "content-length": str(len(body)),
            **headers,
        }
        raw = [
            (name.encode("latin-1"), value.strip(" \t").encode("latin-1"))
            for name, value in sent.items()
        ]
        request = encoded_request(b"POST", url.raw_path, raw, body)
        if self._tls is None:
            self._tls = httpx.create_ssl_context()
        exchange = await connect(url, self._tls, timeout_s, self._guard.resolve)
        try:
            await exchange.send(request, None)
            await exchange.head(None)
            if exchange.status == _SWITCHING_PROTOCOLS:
                raise httpx.RemoteProtocolError("the receiver changes the protocol")
            read = bytearray()
            while len(read) < READ_BYTES and (chunk := await exchange.read(None)):
                read += chunk
        finally:
            exchange.close()
        answered = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in exchange.headers
        }
        return Answer(exchange.status, answered, bytes(read[:READ_BYTES]))


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
