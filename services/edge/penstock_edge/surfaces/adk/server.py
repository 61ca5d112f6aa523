"""The sessions of ADK servers themselves: asked as they are, and never wiped by a create."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import httpx
import orjson
from starlette.responses import Response

from penstock.redaction import redacted, redacted_value
from penstock.settings import AgentConfig
from penstock.web.problems import Problem
from penstock_edge.runs.start import require_reachable

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 30.0
DESCRIBED_S: Final = 3.0  # a list of many servers does not wait for one that hangs
SHOWN_CHARACTERS: Final = 2000


class AdkServers:
    """One HTTP client for all of them."""

    def __init__(self) -> None:
        self._client = httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def ask(
        self,
        method: str,
        agent: AgentConfig,
        user_id: str,
        session_id: str | None = None,
        body: Any = None,
    ) -> httpx.Response:
        """One request to a user's sessions, or to one of them.

        Raises Problem 502 when nobody answers, or not as an ADK server does; 504 after `TIMEOUT_S`.
        """
        parts = ["apps", agent.agent, "users", user_id, "sessions"]
        parts += [session_id] if session_id is not None else []
        return await self._send(method, agent, parts, body)

    async def artifact(
        self,
        agent: AgentConfig,
        user_id: str,
        session_id: str,
        below: Sequence[str],
        query: Mapping[str, str],
    ) -> httpx.Response:
        """The answer about a session's artifacts; `below`: the segments of the path after them.

        Raises Problem 502 and 504, as `ask`.
        """
        parts = ["apps", agent.agent, "users", user_id, "sessions", session_id, "artifacts"]
        return await self._send("GET", agent, [*parts, *below], query=query)

    async def described(self, agent: AgentConfig) -> list[Any]:
        """What the server says about its apps; empty for an older server, which lists names only.

        Raises Problem 502 when the server cannot be asked, 504 after `DESCRIBED_S`.
        """
        query = {"detailed": "true"}
        answer = await self._send("GET", agent, ["list-apps"], query=query, timeout_s=DESCRIBED_S)
        try:
            told = orjson.loads(answer.content)
        except orjson.JSONDecodeError:
            return []
        apps = told.get("apps") if isinstance(told, dict) else None
        return apps if isinstance(apps, list) else []

    async def _send(
        self,
        method: str,
        agent: AgentConfig,
        parts: Sequence[str],
        body: Any = None,
        query: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> httpx.Response:
        url = "/".join([agent.url, *map(_segment, parts)])
        content = None if body is None else orjson.dumps(body)
        headers = {**agent.headers, "content-type": "application/json"}
        try:
            return await self._client.request(
                method, url, headers=headers, content=content, params=query, timeout=timeout_s
            )
        except httpx.TimeoutException as error:
            raise Problem(504, f"the ADK server has not answered within {timeout_s:g} s") from error
        except httpx.HTTPError as error:
            words = redacted(repr(error), agent.hosts)
            log.warning("the server of agent %s cannot be asked: %r", agent.id, error)
            raise Problem(502, f"the ADK server cannot be asked: {words}") from error

    async def create(
        self, agent: AgentConfig, user_id: str, session_id: str, given: dict[str, Any]
    ) -> httpx.Response:
        """A session of that id; `given` is the body of a create, without the id.

        Raises Problem 409 when there is one, 422 for an id that the server has no path for. 1.16
        replaces a session that it is told to create by its body, and refuses to by its path; so
        that is how it is asked, and where the path cannot say all, the session is looked for first.
        """
        require_reachable(agent, user_id, session_id)
        if given.keys() <= {"state"}:
            state = given.get("state") or {}
            answer = await self.ask("POST", agent, user_id, session_id, state)
        else:
            await self._check_missing(agent, user_id, session_id)
            body = {**given, "sessionId": session_id}
            answer = await self.ask("POST", agent, user_id, body=body)
        if answer.status_code == httpx.codes.BAD_REQUEST:
            # how 1.16 says that it exists, and whatever else it does not like
            await self._check_missing(agent, user_id, session_id)
        return answer

    async def _check_missing(self, agent: AgentConfig, user_id: str, session_id: str) -> None:
        known = await self.ask("GET", agent, user_id, session_id)
        if known.is_success:
            raise Problem(409, f"Session already exists: {session_id}")


def relayed(answer: httpx.Response) -> Response:
    """The server's answer; one that is no JSON in the shape that ADK's errors have.

    An error is relayed without credentials and internal addresses.
    """
    hosts = (answer.request.url.host,)
    try:
        told = orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        told = None
    fits = answer.is_success or (answer.is_error and isinstance(told, dict) and "detail" in told)
    if fits and (told is not None or answer.content == b"null"):
        clean = redacted_value(told, hosts) if answer.is_error else told
        content = answer.content if clean == told else orjson.dumps(clean)
        return Response(content, answer.status_code, media_type="application/json")
    status = answer.status_code if answer.is_error else 502
    text = redacted(answer.text[:SHOWN_CHARACTERS], hosts)
    raise Problem(status, text or f"the ADK server answered {status}")


def _segment(text: str) -> str:
    """A foreign id as one segment of a path: `..` must not lead out of it."""
    return quote(text, safe="") if text.strip(".") else text.replace(".", "%2E")
