"""What is the same in both clients: connections' options, and what an answer means. No I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Final

import httpx

from penstock_client import retries
from penstock_client.errors import Unreachable, foreign, refusal, retry_after_s
from penstock_client.following import NO_CONTENT
from penstock_client.requests import Request
from penstock_client.retries import Retries

DEFAULT_URL: Final = "http://127.0.0.1:8000"
USER_AGENT: Final = f"penstock-client/{version('penstock-client')}"
UNAUTHORIZED: Final = 401
HAS_HTTP2: Final = find_spec("h2") is not None  # with the extra `http2`
# A token, or a function that returns the present one. The function is called for each request.
Token = str | Callable[[], str] | None
AsyncToken = str | Callable[[], str | Awaitable[str]] | None


class Bearer(httpx.Auth):
    """Authenticates by a token. A token that has expired meanwhile is asked for once more."""

    def __init__(self, token: AsyncToken) -> None:
        self._token = token

    def sync_auth_flow(
        self, request: httpx.Request
    ) -> Generator[httpx.Request, httpx.Response, None]:
        token = self._present()
        if not isinstance(token, str | None):
            if isinstance(token, Coroutine):
                token.close()  # else Python warns that nobody awaits it
            raise TypeError("an async function as token needs AsyncClient")
        response = yield _authorized(request, token)
        if self._may_be_renewed(response):
            new = self._present()
            if new != token and isinstance(new, str):
                yield _authorized(request, new)

    async def async_auth_flow(
        self, request: httpx.Request
    ) -> AsyncGenerator[httpx.Request, httpx.Response]:
        token = await _awaited(self._present())
        response = yield _authorized(request, token)
        if self._may_be_renewed(response):
            new = await _awaited(self._present())
            if new != token:
                yield _authorized(request, new)

    def _present(self) -> str | Awaitable[str] | None:
        return self._token() if callable(self._token) else self._token

    def _may_be_renewed(self, response: httpx.Response) -> bool:
        return response.status_code == UNAUTHORIZED and callable(self._token)


async def _awaited(token: str | Awaitable[str] | None) -> str | None:
    return token if isinstance(token, str | None) else await token


def _authorized(request: httpx.Request, token: str | None) -> httpx.Request:
    if token:
        request.headers["authorization"] = f"Bearer {token}"
    return request


def options(url: str, token: AsyncToken, user_agent: str) -> dict[str, Any]:
    """Return the arguments of an httpx client. Raises Unreachable."""
    try:
        return {
            "base_url": httpx.URL(url),
            "timeout": retries.REQUEST_TIMEOUT_S,
            "headers": {"user-agent": user_agent},
            "auth": Bearer(token),
            "http2": HAS_HTTP2,
            # a proxy cannot reach this machine's loopback address
            "trust_env": not _is_loopback(url),
            # with its own `trust_env`, so that SSL_CERT_FILE counts for loopback, too
            "verify": httpx.create_ssl_context() if url.startswith("https:") else True,
        }
    except OSError as error:
        text = f"the file of certificates in SSL_CERT_FILE cannot be read: {error}"
        raise Unreachable(text, "certificate") from error
    except (httpx.InvalidURL, ValueError) as error:
        raise Unreachable(f"{url} is no URL: {error}", "url") from error


def arguments(request: Request) -> dict[str, Any]:
    """Return the arguments of `httpx.Client.request` for a request."""
    # Without this header, the service would send a run's events as a stream, which ends only when
    # the run ends.
    headers = {"Accept": "application/json"}
    if request.document is not None:
        headers["Content-Type"] = "application/yaml"
    return {
        "method": request.method,
        "url": request.path,
        "params": {
            name: value if isinstance(value, list) else str(value)
            for name, value in request.query.items()
            if value is not None
        },
        "json": request.body,
        "content": request.document,
        "headers": headers,
    }


def after_failure(
    url: str, request: Request, error: httpx.TransportError, patience: Retries
) -> float:
    """Return the pause in seconds before a request is sent again. Raises Unreachable."""
    was_sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    if was_sent and not request.may_repeat:
        text = f"{url} did not answer ({error}); it is not known what it has done"
        raise Unreachable(text, "silent") from error
    return patience.after(error)


def after_answer(
    url: str, request: Request, response: httpx.Response, patience: Retries
) -> dict[str, Any] | float:
    """Return the JSON object of an answer, or the pause in seconds before a further request.

    Raises ApiError, Unreachable.
    """
    if response.status_code in retries.TRY_AGAIN and request.may_repeat:
        least_s = retry_after_s(response.headers)
        return patience.pause_s(f"it answered {response.status_code}", least_s)
    if not response.is_success:
        raise refusal(response)
    if response.status_code == NO_CONTENT:
        return {}
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise foreign(url)
    return answer


def _is_loopback(url: str) -> bool:
    host = httpx.URL(url).host
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
