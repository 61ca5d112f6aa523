"""The adapter to Google ADK's API server, 1.16 to 2.x.

ADK has no cancel request and no run id; closing the connection cancels the run. After a broken
connection, a run can be continued by its `invocationId`, if no tool can run twice (see `reattach`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import orjson

from penstock.bus.records.approvals import ContinueCommand, Decided
from penstock.bus.records.legs import PauseRecord
from penstock.bus.records.runs import StartCommand, TakenOver
from penstock.dialects.adk.vocabulary import IDEMPOTENCY_KEY
from penstock.settings import AdkAgent
from penstock.sse import Frame
from penstock_connector.upstreams.base import (
    Call,
    ReattachState,
    Upstream,
    UpstreamRefused,
    leg_key,
    segment,
    stopped_for_budget,
)
from penstock_connector.upstreams.forks import Entry, kept_entries, not_forkable

# The headers of each request. The client's Origin header is not forwarded, because ADK servers
# refuse unknown origins since 1.28.
_HEADERS = {"content-type": "application/json", "accept": "text/event-stream"}

_RESERVED = "adk_"  # with which the names of ADK's own calls begin
_ABORTED = "INVOCATION_ABORTED"  # the `errorCode` of the event that records an aborted invocation
# the first major version whose servers record that they have aborted an invocation
_SEALS_SINCE = 2
SEAL_TRIES = 20  # the most reads of the session in search of the server's record
SEAL_S = 0.25  # seconds between two such reads


@dataclass(frozen=True, slots=True)
class _First:
    """What a continuation of a first leg needs: the session, and whether tokens are streamed."""

    user_id: str
    session_id: str
    streaming: bool


class AdkUpstream(Upstream[AdkAgent]):
    """Sends POST /run_sse for a session, and creates the session before if it does not exist."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        super().__init__(client)
        # The major version of each ADK server, by the server's base URL.
        self._versions: dict[str, int] = {}

    def facts_of_open(self, agent: AdkAgent, command: StartCommand) -> dict[str, Any]:
        """Return whether the client wants tokens. This choice applies to all legs of the run."""
        if command.body is None:
            return {}
        return {"streaming": bool(orjson.loads(command.body).get("streaming", False))}

    async def start(self, agent: AdkAgent, command: StartCommand) -> Call:
        first, taken = command.forked_from, command.taken_over
        if first is None or taken is None:
            await self._ensure_session(agent, command.user_id, command.session_id)
        else:
            await self._fork_session(agent, command, first.run_id, taken)
        if command.body is not None:
            body, content = _in_session(command.body, _session(agent, command))
        else:
            body = {
                **(command.input or {}),
                **_session(agent, command),
                "newMessage": {"role": "user", "parts": [{"text": command.message}]},
                "streaming": True,
                **_metadata(leg_key(command.run_id, 1), command.input),
            }
            content = orjson.dumps(body)
        streaming = bool(body.get("streaming", False))
        own = _First(command.user_id, command.session_id, streaming)
        return Call(f"{agent.url}/run_sse", _HEADERS, content, own=own)

    async def resume(self, agent: AdkAgent, command: ContinueCommand, pause: PauseRecord) -> Call:
        """Return the request; its message answers all stored function calls, by ids and names."""
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
            **_metadata(leg_key(command.run_id, command.leg)),
        }
        if (message := stopped_for_budget(pause)) is not None:
            given: dict[str, Any] = pause.resume.get("input") or {}
            body["newMessage"]["parts"] = [{"text": message}]
            body = {**given, **body, **_metadata(leg_key(command.run_id, command.leg), given)}
        invocation_id = pause.resume.get("invocation_id")
        # ADK 1.16 refuses an `invocationId` if its app is not resumable. A client that names the
        # invocation in its decision knows that its app is resumable.
        if invocation_id and (
            agent.resumable or command.invocation_id == invocation_id or await self._version(agent)
        ):
            body["invocationId"] = invocation_id
        return Call(f"{agent.url}/run_sse", _HEADERS, orjson.dumps(body))

    def watch(self, frame: Frame, seen: ReattachState) -> None:
        """Store the invocation's id, which every event has."""
        if seen.run_id is not None:
            return
        try:
            event = orjson.loads(frame.data)
        except orjson.JSONDecodeError:
            return
        invocation_id = event.get("invocationId") if isinstance(event, dict) else None
        if isinstance(invocation_id, str):
            seen.run_id = invocation_id

    async def reattach(self, agent: AdkAgent, call: Call, seen: ReattachState) -> Call | None:
        """Return a POST /run_sse with only the `invocationId`; None if this would not be safe.

        A resumable app continues an invocation that was aborted. The request is made only if the
        last event of the session is the server's record that it aborted this invocation. With this
        record, a tool call that was running has an error as its result, so no tool runs again.
        Servers of 1.x, and servers that were killed, write no such record, and would run the tool
        again. A leg that carries a decision is not continued, because this was never tested.
        """
        own = call.own
        if not (agent.resumable and seen.run_id and isinstance(own, _First)):
            return None
        if await self._version(agent) < _SEALS_SINCE:
            return None
        for _ in range(SEAL_TRIES):
            if await self._is_sealed(agent, own, seen.run_id):
                return Call(
                    f"{agent.url}/run_sse",
                    _HEADERS,
                    orjson.dumps(
                        {
                            "appName": agent.agent,
                            "userId": own.user_id,
                            "sessionId": own.session_id,
                            "invocationId": seen.run_id,
                            "streaming": own.streaming,
                        }
                    ),
                    own=own,
                    produces_again=True,
                )
            await asyncio.sleep(SEAL_S)
        return None

    async def _ensure_session(self, agent: AdkAgent, user_id: str, session_id: str) -> None:
        """Read the session, and create it only if it is missing: ADK 1.16 would replace an existing
        one."""
        url = _session_url(agent, user_id, session_id)
        read = await self._client.get(url, headers=agent.headers)
        if read.is_success:
            return
        if read.status_code != httpx.codes.NOT_FOUND:
            raise UpstreamRefused(read.status_code, read.text)
        created = await self._client.post(url, headers=agent.headers, json={})
        # The status 409 (in 1.16: 400) means that another request has created the session
        # meanwhile.
        if created.status_code >= 400 and created.status_code not in (400, 409):
            raise UpstreamRefused(created.status_code, created.text)

    async def _fork_session(
        self, agent: AdkAgent, command: StartCommand, first_run: str, taken: TakenOver
    ) -> None:
        """Make a session with the events of the first run's session up to the fork's point.

        ADK refuses a session whose initial events have actions, or calls of ADK itself. So these
        are left out, and the session begins with the state that the actions have made. Raises
        NotAccepted.
        """
        first_session = _session_url(agent, taken.user_id, taken.session_id)
        read = await self._client.get(first_session, headers=agent.headers)
        if read.status_code == httpx.codes.NOT_FOUND:
            raise not_forkable(f"the agent server has no session {taken.session_id} any more")
        if not read.is_success:
            raise UpstreamRefused(read.status_code, read.text)
        session = read.json()
        kept = kept_events(session.get("events") or [], first_run, taken)
        body = {
            "sessionId": command.session_id,
            "state": state_after(kept),
            "events": [restored(each) for each in kept if not _of_adk_itself(each)],
        }
        url = _sessions_url(agent, command.user_id)
        created = await self._client.post(url, headers=agent.headers, json=body)
        # The status 409 means that an earlier attempt at this start has made the session.
        if created.is_error and created.status_code != httpx.codes.CONFLICT:
            raise UpstreamRefused(created.status_code, created.text)

    async def _is_sealed(self, agent: AdkAgent, own: _First, invocation_id: str) -> bool:
        url = _session_url(agent, own.user_id, own.session_id)
        read = await self._client.get(url, headers=agent.headers)
        events = read.json().get("events") if read.is_success else None
        if not events:
            return False
        last = events[-1]
        return (last.get("invocationId"), last.get("errorCode")) == (invocation_id, _ABORTED)

    async def _version(self, agent: AdkAgent) -> int:
        """Return the server's major version; 0 for 1.16, which has no route /version."""
        if agent.url not in self._versions:
            answer = await self._client.get(f"{agent.url}/version", headers=agent.headers)
            if answer.is_server_error:
                raise UpstreamRefused(answer.status_code, answer.text)
            self._versions[agent.url] = _major(answer)
        return self._versions[agent.url]


def _major(answer: httpx.Response) -> int:
    if answer.status_code == httpx.codes.NOT_FOUND:
        return 0
    try:
        return int(answer.json()["version"].partition(".")[0])
    except (ValueError, LookupError, TypeError, AttributeError):
        return 1  # the server has the route /version, which 1.16 does not have


def kept_events(
    events: Sequence[dict[str, Any]], first_run: str, taken: TakenOver
) -> Sequence[dict[str, Any]]:
    """Return the session's events that a fork of the run `first_run` takes over. Pure. Raises
    NotAccepted."""
    own = [number for number, event in enumerate(events) if _is_of_run(event, first_run)]
    if not own:
        raise not_forkable(
            "the agent server does not say which events of the session belong to the run; ADK 2 "
            "and later do so for runs that do not begin with an ADK client's own body"
        )
    of_run = events[own[0] : own[-1] + 1]
    return events[: own[0] + kept_entries(map(_entry, of_run), taken)]


def state_after(events: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state that the events have made, without the parts that a session shares with
    others, and those that only one invocation has. Pure."""
    state: dict[str, Any] = {}
    for event in events:
        state |= (event.get("actions") or {}).get("stateDelta") or {}
    return {
        name: value
        for name, value in state.items()
        if value is not None and not name.startswith(("app:", "user:", "temp:"))
    }


def restored(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event in the form in which ADK accepts it as an initial one. Pure."""
    left_out = ("actions", "longRunningToolIds", "customMetadata")
    return {name: value for name, value in event.items() if name not in left_out}


def _is_of_run(event: Mapping[str, Any], run_id: str) -> bool:
    key = (event.get("customMetadata") or {}).get(IDEMPOTENCY_KEY)
    return isinstance(key, str) and key.startswith(f"{run_id}-")


def _parts(event: Mapping[str, Any], kind: str) -> list[Any]:
    parts = (event.get("content") or {}).get("parts") or ()
    return [part[kind] for part in parts if isinstance(part, dict) and part.get(kind)]


def _says(event: Mapping[str, Any]) -> bool:
    parts = (event.get("content") or {}).get("parts") or ()
    return any(part.get("text") and not part.get("thought") for part in parts)


def _of_adk_itself(event: Mapping[str, Any]) -> bool:
    named = (*_parts(event, "functionCall"), *_parts(event, "functionResponse"))
    return any(str(each.get("name")).startswith(_RESERVED) for each in named)


def _entry(event: Mapping[str, Any]) -> Entry:
    if _of_adk_itself(event):
        return Entry()
    calls, answers = _parts(event, "functionCall"), _parts(event, "functionResponse")
    return Entry(
        frozenset(str(each.get("id")) for each in calls),
        frozenset(str(each.get("id")) for each in answers),
        says=event.get("author") != "user" and _says(event),
    )


def _sessions_url(agent: AdkAgent, user_id: str) -> str:
    return f"{agent.url}/apps/{segment(agent.agent)}/users/{segment(user_id)}/sessions"


def _session_url(agent: AdkAgent, user_id: str, session_id: str) -> str:
    return f"{_sessions_url(agent, user_id)}/{segment(session_id)}"


def _metadata(key: str, given: Mapping[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """Return the field in which tools read the leg's key; servers before 2.x ignore it."""
    own = (given or {}).get("customMetadata")
    return {"customMetadata": {**(own if isinstance(own, dict) else {}), IDEMPOTENCY_KEY: key}}


def _session(agent: AdkAgent, command: StartCommand | ContinueCommand) -> dict[str, Any]:
    return {
        "appName": agent.agent,
        "userId": command.user_id,
        "sessionId": command.session_id,
    }


_SNAKE: Mapping[str, str] = {
    "app_name": "appName",
    "user_id": "userId",
    "session_id": "sessionId",
}


def _in_session(text: str, session: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Return the client's body and its bytes; the ids in `session` replace the client's own ids."""
    body: dict[str, Any] = orjson.loads(text)
    named = {_SNAKE.get(name, name): value for name, value in body.items()}
    if {name: named.get(name) for name in session} == session:
        return body, text.encode()
    named |= session
    return named, orjson.dumps(named)


def _response(name: str, item: Decided) -> dict[str, Any]:
    if name == "adk_request_confirmation":
        # The server refuses an answer with any further key, and the run would then fail.
        answer: dict[str, Any] = {"confirmed": item.decision == "approve"}
        if item.value is not None:
            answer["payload"] = item.value
        return answer
    if item.decision == "reject":
        return {"error": item.note or "Rejected: it was not done."}
    return item.value if isinstance(item.value, dict) else {"result": item.value}
