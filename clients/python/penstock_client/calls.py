"""What is the same in both clients: connections' options, and what an answer means. No I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Generator
from importlib.metadata import version
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
# A token, or a function that returns the present one. The function is called for each request.
Token = str | Callable[[], str] | None


class Bearer(httpx.Auth):
    """Authenticates by a token. A token that has expired meanwhile is asked for once more."""

    def __init__(self, token: Token) -> None:
        self._token = token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response]:
        token = self._token
        current = token() if callable(token) else token
        if not current:
            yield request
            return
        request.headers["authorization"] = f"Bearer {current}"
        response = yield request
        if response.status_code == UNAUTHORIZED and callable(token) and (new := token()) != current:
            request.headers["authorization"] = f"Bearer {new}"
            yield request


def options(url: str, token: Token, user_agent: str) -> dict[str, Any]:
    """Return the arguments of an httpx client. Raises Unreachable."""
    try:
        return {
            "base_url": httpx.URL(url),
            "timeout": retries.REQUEST_TIMEOUT_S,
            "headers": {"user-agent": user_agent},
            "auth": Bearer(token),
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
        return patience.pause_s(f"it answered {response.status_code}", retry_after_s(response))
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
