"""Sends GETs to one agent server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import httpx
import orjson

from penstock_connector.checks.finding import one_line

# The most bytes that are read of a response. A large AgentOS describes itself in some 100 KiB.
MAX_BYTES: Final = 4 * 1024 * 1024

# the most bytes of a response that are kept as the text of its `Answer`
MAX_TEXT_BYTES: Final = 2000


class NotReached(Exception):
    """No HTTP response came; the exception's text names the address."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response; `json` is None if the body is not JSON, or is `null`."""

    url: str
    status: int
    headers: Mapping[str, str]
    json: Any
    text: str

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_refused(self) -> bool:
        return self.status in {401, 403, 407}

    def __str__(self) -> str:
        text = one_line(self.text)
        return f"{self.url} answered {self.status}{f': {text}' if text else ''}"


class Probe:
    """Sends requests to the server of one agent, with the agent's own headers."""

    def __init__(
        self, client: httpx.AsyncClient, url: str, headers: Mapping[str, str], timeout_s: float
    ) -> None:
        self._client = client
        self._url = url
        self._headers = headers
        self._timeout_s = timeout_s
        self._known: dict[str, Answer] = {}

    @property
    def url(self) -> str:
        return _without_user(self._url)

    @property
    def origin(self) -> str:
        return _origin(self.url)

    @property
    def bases(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.url.rstrip("/"), self.origin)))

    async def get(self, url: str) -> Answer:
        """Send a GET and return the response; a repeated call returns the first response.

        `url` must begin with `self.url` or `self.origin`. With any other URL, the agent's headers,
        which may contain credentials, would be sent to another server.
        """
        if url not in self._known:
            self._known[url] = await self._get(url)
        return self._known[url]

    async def _get(self, url: str) -> Answer:
        user = urlsplit(self._url).netloc.rpartition("@")
        parts = urlsplit(url)
        called = urlunsplit(parts._replace(netloc="".join(user[:2]) + parts.netloc))
        headers = {"accept": "application/json", **self._headers}
        body = b""
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._client.stream("GET", called, headers=headers) as response,
            ):
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_BYTES:
                        break
        except TimeoutError as error:
            raise NotReached(f"{url} did not answer within {self._timeout_s:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NotReached(
                f"cannot reach {url} ({one_line(str(error) or type(error).__name__)}): "
                "is the server running there, and is `url` its address as seen from here?"
            ) from error
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError:
            document = None
        text = body[:MAX_TEXT_BYTES].decode("utf-8", "replace")
        return Answer(url, response.status_code, response.headers, document, text)


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _without_user(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
