"""Google ADK's API server, 1.16 to 2.x.

There is no cancel, no run id and no way back to a cut stream: closing the connection is the cancel.
"""

from __future__ import annotations

from typing import Any

import httpx
import orjson

from penstock.bus.records import ContinueCommand, Decided, PauseRecord, StartCommand
from penstock.settings import AgentConfig
from penstock_connector.upstreams.base import Attachment, Call, Refused, segment

# the client's Origin stays behind: from 1.28 on the server refuses what it does not know
_HEADERS = {"content-type": "application/json", "accept": "text/event-stream"}


class AdkUpstream:
    """POST /run_sse, in a session that exists."""

    def __init__(self) -> None:
        self._names_version: dict[str, bool] = {}  # by base URL: 1.16 has no /version

    async def start(
        self, client: httpx.AsyncClient, agent: AgentConfig, command: StartCommand
    ) -> Call:
        """The client's body verbatim, or one of ours around the message."""
        await self._ensure_session(client, agent, command.user_id, command.session_id)
        if command.body is not None:
            content = command.body.encode()
        else:
            content = orjson.dumps(
                {
                    **(command.input or {}),
                    **_session(agent, command),
                    "newMessage": {"role": "user", "parts": [{"text": command.message}]},
                    "streaming": True,
                }
            )
        return Call(f"{agent.url}/run_sse", _HEADERS, content)

    async def resume(
        self,
        client: httpx.AsyncClient,
        agent: AgentConfig,
        command: ContinueCommand,
        pause: PauseRecord,
    ) -> Call:
        """All answers in one message, to the requests as they were stored."""
        decided = {item.item_id: item for item in command.items}
        parts = [
            {
                "functionResponse": {
                    "id": request["id"],
                    "name": request["name"],
                    "response": _response(request["name"], decided[request["id"]]),
                }
            }
            for request in pause.resume.get("requests", [])
            if request["id"] in decided
        ]
        body: dict[str, Any] = {
            **_session(agent, command),
            "newMessage": {"role": "user", "parts": parts},
            "streaming": pause.fold.get("facts", {}).get("streaming", True),
        }
        invocation_id = pause.resume.get("invocation_id")
        # 1.16 refuses the run when its app is not resumable
        if invocation_id and (agent.resumable or await self._has_version(client, agent)):
            body["invocationId"] = invocation_id
        return Call(f"{agent.url}/run_sse", _HEADERS, orjson.dumps(body))

    async def cancel(self, client: httpx.AsyncClient, agent: AgentConfig, call: Call) -> bool:
        """Nothing to ask: closing the connection cancels the run at once."""
        return False

    def watch(self, data: bytes, seen: Attachment) -> None:
        """Nothing helps to come back."""

    def reattach(self, agent: AgentConfig, call: Call, seen: Attachment) -> Call | None:
        """A cut stream is lost."""
        return None

    async def closed(self, agent: AgentConfig, call: Call, seen: Attachment) -> None:
        """The server keeps the session."""

    async def _ensure_session(
        self, client: httpx.AsyncClient, agent: AgentConfig, user_id: str, session_id: str
    ) -> None:
        """Read it first, and create it only when it is missing: 1.16 replaces one that exists."""
        url = (
            f"{agent.url}/apps/{segment(agent.agent)}/users/{segment(user_id)}"
            f"/sessions/{segment(session_id)}"
        )
        read = await client.get(url, headers=agent.headers)
        if read.is_success:
            return
        if read.status_code != httpx.codes.NOT_FOUND:
            raise Refused(read.status_code, read.text)
        created = await client.post(url, headers=agent.headers, json={})
        # 409 (1.16: 400): somebody else was first
        if created.status_code >= 400 and created.status_code not in (400, 409):
            raise Refused(created.status_code, created.text)

    async def _has_version(self, client: httpx.AsyncClient, agent: AgentConfig) -> bool:
        if agent.url not in self._names_version:
            answer = await client.get(f"{agent.url}/version", headers=agent.headers)
            if answer.is_server_error:
                raise Refused(answer.status_code, answer.text)
            self._names_version[agent.url] = answer.status_code != httpx.codes.NOT_FOUND
        return self._names_version[agent.url]


def _session(agent: AgentConfig, command: StartCommand | ContinueCommand) -> dict[str, Any]:
    return {
        "appName": agent.agent,
        "userId": command.user_id,
        "sessionId": command.session_id,
    }


def _response(name: str, item: Decided) -> dict[str, Any]:
    if name == "adk_request_confirmation":
        # any further key is refused by the server, and the run with it
        answer: dict[str, Any] = {"confirmed": item.decision == "approve"}
        if item.value is not None:
            answer["payload"] = item.value
        return answer
    if item.decision == "reject":
        return {"error": item.note or "Rejected: it was not done."}
    return item.value if isinstance(item.value, dict) else {"result": item.value}
