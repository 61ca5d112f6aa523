"""Sends the request of a webhook on a new connection, without redirects, proxies and cookies."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

import httpcore
import httpx

from penstock_automations.actions.webhook.answers import Answer, NoAnswer
from penstock_automations.actions.webhook.exchange import NoExchange, exchange
from penstock_automations.guard.backend import AddressRefused, Guard, GuardedBackend

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
        return await exchange(self._backend, self._tls, url, headers, body, timeout_s)


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
