"""Sends requests about apps, sessions and artifacts to ADK servers.

Creating a session never replaces an existing session.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import httpx
import orjson
from starlette.responses import Response

from penstock.http.tls import tls_context
from penstock.redaction import redacted, redacted_value
from penstock.runs.start import require_reachable
from penstock.settings import AdkAgent
from penstock.web.problems import Problem

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 30.0
# The timeout in seconds of a request for a server's descriptions of its apps. The timeout is short,
# because the list of all apps waits for each server's answer.
DESCRIBED_S: Final = 3.0
SHOWN_CHARACTERS: Final = 2000
# The size of the largest answer that is relayed, in bytes. The edge keeps the whole answer in
# memory to check it. Artifacts may have any size, so without a limit a few requests could take all
# memory of the edge.
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """The whole answer of an ADK server; `host` is the server's host name."""

    status: int
    content: bytes
    host: str

    @property
    def is_success(self) -> bool:
        return httpx.codes.is_success(self.status)

    @property
    def is_error(self) -> bool:
        return httpx.codes.is_error(self.status)


class AdkServers:
    """Sends requests to ADK servers. Every method that sends one raises Problem 502 if the server
    cannot be reached, or if its answer is larger than `MAX_ANSWER_BYTES`, and 504 if it has not
    answered in time."""

    def __init__(self) -> None:
        self._client = httpx.AsyncClient(
            verify=tls_context(), timeout=TIMEOUT_S, follow_redirects=False
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def ask(
        self,
        method: str,
        agent: AdkAgent,
        user_id: str,
        session_id: str | None = None,
        body: Any = None,
    ) -> ServerAnswer:
        parts = ["apps", agent.agent, "users", user_id, "sessions"]
        parts += [session_id] if session_id is not None else []
        return await self._send(method, agent, parts, body)

    async def artifact(
        self,
        agent: AdkAgent,
        user_id: str,
        session_id: str,
        below: Sequence[str],
        query: Mapping[str, str],
    ) -> ServerAnswer:
        """`below` has the segments of the path after `artifacts`."""
        parts = ["apps", agent.agent, "users", user_id, "sessions", session_id, "artifacts"]
        return await self._send("GET", agent, [*parts, *below], query=query)

    async def described(self, agent: AdkAgent) -> list[Any]:
        """Return nothing for an older server, which has only names."""
        query = {"detailed": "true"}
        answer = await self._send("GET", agent, ["list-apps"], query=query, timeout_s=DESCRIBED_S)
        try:
            body = orjson.loads(answer.content)
        except orjson.JSONDecodeError:
            return []
        apps = body.get("apps") if isinstance(body, dict) else None
        return apps if isinstance(apps, list) else []

    async def _send(
        self,
        method: str,
        agent: AdkAgent,
        parts: Sequence[str],
        body: Any = None,
        query: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> ServerAnswer:
        url = "/".join([agent.url, *map(_segment, parts)])
        content = None if body is None else orjson.dumps(body)
        headers = {**agent.headers, "content-type": "application/json"}
        try:
            async with self._client.stream(
                method, url, headers=headers, content=content, params=query, timeout=timeout_s
            ) as answer:
                body = await _complete_body(answer)
                return ServerAnswer(answer.status_code, body, answer.request.url.host)
        except httpx.TimeoutException as error:
            raise Problem(504, f"the ADK server has not answered within {timeout_s:g} s") from error
        except httpx.HTTPError as error:
            cause = redacted(repr(error), agent.hosts)
            log.warning("the server of agent %s cannot be reached: %r", agent.id, error)
            raise Problem(502, f"the ADK server cannot be reached: {cause}") from error

    async def create(
        self, agent: AdkAgent, user_id: str, session_id: str, given: dict[str, Any]
    ) -> ServerAnswer:
        """`given` is the body without the id. ADK 1.16 refuses to replace an existing session only
        if the id is in the path, and then accepts no field besides a state. So for other fields,
        this method first checks that the session does not exist (409), and then sends the id in the
        body."""
        require_reachable(agent, user_id, session_id)
        if given.keys() <= {"state"}:
            state = given.get("state") or {}
            answer = await self.ask("POST", agent, user_id, session_id, state)
        else:
            await self._check_missing(agent, user_id, session_id)
            body = {**given, "sessionId": session_id}
            answer = await self.ask("POST", agent, user_id, body=body)
        if answer.status == httpx.codes.BAD_REQUEST:
            # ADK 1.16 answers 400 if the session exists, but also for other errors. So this check
            # finds out whether the session exists.
            await self._check_missing(agent, user_id, session_id)
        return answer

    async def _check_missing(self, agent: AdkAgent, user_id: str, session_id: str) -> None:
        known = await self.ask("GET", agent, user_id, session_id)
        if known.is_success:
            raise Problem(409, f"Session already exists: {session_id}")


def relayed(answer: ServerAnswer) -> Response:
    """Return the server's answer without credentials and internal addresses. One that is no JSON,
    or has not the shape of ADK's errors, becomes a Problem with the server's status and text, and
    one that is neither 2xx nor an error becomes 502."""
    hosts = (answer.host,)
    try:
        body = orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        body = None
    fits = answer.is_success or (answer.is_error and isinstance(body, dict) and "detail" in body)
    if fits and (body is not None or answer.content == b"null"):
        clean = redacted_value(body, hosts) if answer.is_error else body
        content = answer.content if clean == body else orjson.dumps(clean)
        return Response(content, answer.status, media_type="application/json")
    status = answer.status if answer.is_error else 502
    text = redacted(answer.content.decode(errors="replace")[:SHOWN_CHARACTERS], hosts)
    raise Problem(status, text or f"the ADK server answered {status}")


async def _complete_body(answer: httpx.Response) -> bytes:
    body = bytearray()
    async for piece in answer.aiter_bytes():
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            size = f"{MAX_ANSWER_BYTES // 1024 // 1024} MiB"
            raise Problem(
                502,
                f"the ADK server's answer is larger than {size}, which is the most that is "
                "relayed; ask the ADK server itself for it",
            )
    return bytes(body)


def _segment(text: str) -> str:
    """Quote a client's id so that `..` cannot lead to another path."""
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E")
