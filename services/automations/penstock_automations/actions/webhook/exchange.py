"""Sends the request of a webhook on a new connection, without redirects, proxies and cookies, and
decides what the receiver's answer, or a missing answer, means for the delivery."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final, Literal

import httpx

from penstock.http.tls import tls_context
from penstock.http.transport import connect, encoded_request
from penstock.runs.calls import is_expected
from penstock_automations.actions.executor import Verdict
from penstock_automations.guard import AddressRefused, Guard
from penstock_automations.rules.secrets import HIDDEN

GONE: Final = "http_410"  # the code of an answer after which the rule is paused
KEPT_BYTES: Final = 1024  # how many bytes of an answer's body are kept in records and dead letters
# Statuses, besides 5xx, of an endpoint that cannot work now. The circuit breaker counts these
# answers as failures.
_OVERLOADED: Final = frozenset({408, 429})
READ_BYTES: Final = 64 * 1024  # the greatest number of bytes of an answer's body that are read
_SWITCHING_PROTOCOLS: Final = 101
_UNUSABLE: Final = (
    httpx.ProtocolError,
    httpx.UnsupportedProtocol,
    httpx.InvalidURL,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer: the status, headers with lower-case names, and the beginning of the body."""

    status: int
    headers: dict[str, str]
    body: bytes

    def text(self, secrets: Iterable[str] = ()) -> str:
        """Return the body without `secrets`: some receivers send the request's headers back."""
        text = self.body.decode("utf-8", "replace")
        for secret in secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def shown(self, secrets: Iterable[str] = ()) -> str:
        return self.text(secrets).encode()[:KEPT_BYTES].decode("utf-8", "ignore")

    def shown_headers(self, secrets: Iterable[str] = ()) -> dict[str, str]:
        """Return the first KiB of the headers, without cookies and `secrets`."""
        secrets, found, size = list(secrets), dict[str, str](), 0
        for name, whole in self.headers.items():
            value = whole
            for secret in secrets:
                value = value.replace(secret, HIDDEN)
            size += len(name) + len(value)
            if size > KEPT_BYTES:
                break
            if name != "set-cookie":
                found[name] = value
        return found


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The reason why there is no answer, as a code and as a text for people."""

    code: Literal["timeout", "refused_address", "connection", "protocol"]
    text: str


class Sender:
    """Sends webhooks, each on a new connection to an address that the guard has checked."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def send(
        self,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        timeout_s: float,
        method: str = "POST",
    ) -> Answer | NoAnswer:
        """Send a request within `timeout_s` seconds; return the answer with up to 64 KiB of its
        body, or a `NoAnswer`."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._send(method, httpx.URL(url), headers, body, timeout_s)
        except (TimeoutError, httpx.TimeoutException):
            return NoAnswer("timeout", f"no complete answer within {timeout_s:g} s")
        except AddressRefused as error:
            return NoAnswer("refused_address", str(error))
        except (httpx.NetworkError, OSError) as error:
            return NoAnswer("connection", f"the connection failed: {_text(error)}")
        except _UNUSABLE as error:
            return NoAnswer("protocol", f"no HTTP/1.1 exchange is possible: {_text(error)}")

    async def _send(
        self, method: str, url: httpx.URL, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> Answer:
        self._guard.check_scheme(url.scheme, url.host)
        length = {} if method == "GET" else {"content-length": str(len(body))}
        sent = {"host": url.netloc.decode("ascii"), **length, **headers}
        raw = [(name.encode(), value.strip(" \t").encode()) for name, value in sent.items()]
        request = encoded_request(method.encode(), url.raw_path, raw, body)
        exchange = await connect(url, tls_context(), timeout_s, self._guard.resolve)
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


def verdict(
    result: Answer | NoAnswer,
    expect: str | None,
    unix_s: float,
    statuses: Sequence[int] | None = None,
) -> Verdict:
    """Return the verdict on an attempt. Only an answer with one of the `statuses` counts as
    delivered; without them, a 2xx answer."""
    if isinstance(result, NoAnswer):
        return Verdict("failed", result.code, result.text)
    status = result.status
    if is_expected(status, statuses):
        if expect is None or expect.encode() in result.body:
            return Verdict("delivered", status=status)
        text = f"the answer {status} does not contain the expected text"
        return Verdict("failed", "unexpected_answer", text, status)
    if status == HTTPStatus.GONE:
        return Verdict("gone", GONE, "the receiver answered 410: it wants no more", status)
    text = f"the receiver answered {status} {_phrase(status)}".rstrip()
    if statuses is not None:
        text += f", not {' or '.join(map(str, statuses))}"
    if 300 <= status < 400:
        text += "; redirects are not followed"
    after_s = retry_after_s(result.headers.get("retry-after"), unix_s)
    return Verdict("failed", f"http_{status}", text, status, after_s)


def is_up(result: Answer | NoAnswer) -> bool:
    """Return whether the result of an attempt shows that the endpoint works."""
    if isinstance(result, NoAnswer):
        return result.code == "refused_address"
    return result.status < 500 and result.status not in _OVERLOADED


def retry_after_s(value: str | None, unix_s: float) -> float | None:
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - unix_s, 0.0)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
