"""The adapter to AG-UI servers. A server has one URL, which takes a RunAgentInput and streams a
run.

For the server, each leg is a separate run in the thread of the session. AG-UI has no cancel
request, so the connector closes the connection to cancel the run. A broken stream can be continued
only if the server is another Penstock, which names the run in the response's headers. The form of
the answers to a pause depends on the pause (`penstock.dialects.agui.decode.pauses`).

The conversation is stored with ids that are unique in the thread, as AG-UI clients know them
(`penstock.dialects.agui.ids`). The server gets the conversation with the server's own ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

import httpx
import orjson

from penstock.bus.records.approvals import ContinueCommand, Decided
from penstock.bus.records.legs import PauseRecord
from penstock.bus.records.runs import StartCommand
from penstock.bus.subjects import session_key
from penstock.dialects.agui.decode.chunks import Chunks
from penstock.dialects.agui.decode.pauses import answer_text
from penstock.dialects.agui.decode.transcript import (
    Transcript,
    merged,
    tool_message,
    without_unanswered_calls,
)
from penstock.dialects.agui.ids import Restated, call_name, ids_of_run, own_messages, scope_of
from penstock.dialects.agui.shared_state import State
from penstock.dialects.json import loads
from penstock.settings import AguiAgent
from penstock.sse import Frame
from penstock_connector.upstreams.base import (
    Call,
    ReattachState,
    Upstream,
    segment,
    stopped_for_budget,
)
from penstock_connector.upstreams.conversations import Thread, Threads
from penstock_connector.upstreams.forks import Entry, kept_entries, not_forkable

_HEADERS = {"content-type": "application/json", "accept": "text/event-stream"}
_FINAL_EVENTS = ("RUN_FINISHED", "RUN_ERROR")
_SURFACE = "/agui/"  # the path under which another Penstock accepts runs


@dataclass(frozen=True, slots=True)
class _Own:
    """The leg that a call opens: run, session, the server's id of the run, and the request."""

    run_id: str
    session: str
    upstream_id: str | None
    body: dict[str, Any]
    leg: int


@dataclass(slots=True)
class _Received:
    """The conversation and the state that were read from a leg's stream so far."""

    chunks: Chunks = field(default_factory=Chunks)
    transcript: Transcript = field(default_factory=Transcript)
    state: State = field(default_factory=State)


class AguiUpstream(Upstream[AguiAgent]):
    """Sends a RunAgentInput; `threads` stores the conversation, because most servers do not."""

    pauses_thread = True
    stores_requests = True

    def __init__(self, client: httpx.AsyncClient, threads: Threads) -> None:
        super().__init__(client)
        self._threads = threads

    def refuses_starts_while_paused(self, agent: AguiAgent) -> bool:
        return agent.starts_while_paused == "refuse"

    def facts_of_open(self, agent: AguiAgent, command: StartCommand) -> dict[str, Any]:
        return {"client_tools": client_tools(agent, command)}

    async def start(self, agent: AguiAgent, command: StartCommand) -> Call:
        session = session_key(command.user_id, agent.id, command.session_id)
        if command.body is not None:
            content = command.body.encode()
            body = orjson.loads(content)
            if body.get("threadId") != command.session_id:
                body["threadId"] = command.session_id
                content = orjson.dumps(body)
        else:
            body = _run_input(agent, command, await self._conversation(session, command))
            content = orjson.dumps(body)
        await self._threads.store_request(command.run_id, body)
        own = _Own(command.run_id, session, body.get("runId"), body, 1)
        return _call(agent, content, own)

    async def _conversation(self, session: str, command: StartCommand) -> Thread:
        """Return the messages and the state with which a run begins: those of its session, or for a
        fork those of the first run up to the fork's point. Raises NotAccepted."""
        taken, first = command.taken_over, command.forked_from
        if taken is None or first is None:
            return await self._threads.thread(session)
        kept = await self._threads.request(first.run_id)
        if not kept:
            raise not_forkable(f"the conversation of the run {first.run_id} is no longer kept")
        earlier, scope = list[dict[str, Any]](), scope_of(first.run_id)
        own = list[dict[str, Any]]()
        for message in _messages(kept):
            (own if own or _is_of_run(message, scope) else earlier).append(message)
        count = kept_entries(map(_entry, own), taken)
        messages = without_unanswered_calls([*earlier, *own[:count]])
        state = kept.get("state") if taken.state is None else taken.state
        return Thread(messages=messages, state=state)

    async def resume(self, agent: AguiAgent, command: ContinueCommand, pause: PauseRecord) -> Call:
        """Return the run's stored request, with the messages of earlier legs and the new
        answers."""
        kept, resume = await self._threads.request(command.run_id), pause.resume
        run_id = kept.get("runId") or command.run_id
        body = {
            **_empty(agent),
            **kept,
            "threadId": resume.get("thread_id") or kept.get("threadId") or command.session_id,
            "runId": f"{run_id}-{command.leg}",
            "messages": _messages(kept),
        }
        body.pop("resume", None)  # the field belongs to the previous leg
        if (message := stopped_for_budget(pause)) is not None:
            said = {"id": f"{run_id}-{command.leg}-user", "role": "user", "content": message}
            body["messages"] = [*without_unanswered_calls(body["messages"]), said]
        decided = {item.item_id: item for item in command.items}
        for item_id, how in resume.get("items", {}).items():
            if item_id in decided:
                _ANSWERS[how["style"]](body, how, decided[item_id])
        session = session_key(command.user_id, agent.id, command.session_id)
        own = _Own(command.run_id, session, run_id, body, command.leg)
        return _call(agent, orjson.dumps(body), own)

    def answered(self, headers: Mapping[str, str], seen: ReattachState) -> None:
        """Store the run's id from the response's headers, which only another Penstock sends."""
        seen.run_id = headers.get("penstock-run-id") or seen.run_id
        seen.has_final_events = seen.run_id is not None

    def watch(self, frame: Frame, seen: ReattachState) -> None:
        """Store the frame's id, and add the frame to the conversation and the state."""
        seen.last_id = frame.id or seen.last_id
        try:
            event = loads(frame.data)
        except ValueError:
            return
        if not isinstance(event, dict):
            return
        seen.has_final_event = seen.has_final_event or event.get("type") in _FINAL_EVENTS
        if not isinstance(seen.notes, _Received):
            seen.notes = _Received()
        for each in seen.notes.chunks.expand(event):
            seen.notes.transcript.feed(each)
            seen.notes.state.feed(each)

    def survives_disconnect(self, seen: ReattachState) -> bool:
        """Return whether the server is another Penstock, whose runs continue without their
        clients."""
        return seen.run_id is not None

    async def reattach(self, agent: AguiAgent, call: Call, seen: ReattachState) -> Call | None:
        """Return the GET for the events of another Penstock's run after the last frame with an id.

        If no frame had an id, the request for a first leg asks for all events of the run. A later
        leg is then not continued, because it is unknown where its events begin.
        """
        at = urlsplit(agent.url)
        own = call.own
        goes_on = isinstance(own, _Own) and own.leg > 1
        if seen.run_id is None or _SURFACE not in at.path or (goes_on and not seen.last_id):
            return None
        path = f"{at.path.partition(_SURFACE)[0]}/v1/runs/{segment(seen.run_id)}/events"
        query = urlencode({"dialect": "agui", "names": "off"})
        headers = {"accept": "text/event-stream"}
        if seen.last_id:
            headers["last-event-id"] = seen.last_id
        return Call(
            urlunsplit((at.scheme, at.netloc, path, query, "")),
            headers,
            b"",
            call.run_id,
            call.session_id,
            own,
            method="GET",
        )

    async def closed(self, agent: AguiAgent, call: Call, seen: ReattachState) -> None:
        """Store the leg's messages for the session and, if the run waits, for the run.

        Tool calls without a result are left out of the session's messages. The run that waits for
        such a result adds its call later.
        """
        own, received = call.own, seen.notes
        if not isinstance(own, _Own) or not isinstance(received, _Received):
            return
        before = _messages(own.body)
        messages = merged(before, _named(own, before, received.transcript))
        goes_on = {**own.body, "runId": own.upstream_id, "messages": messages}
        if received.state.value is not None:
            goes_on["state"] = received.state.value
        await self._threads.store_request(own.run_id, goes_on)
        said = without_unanswered_calls(messages)
        await self._threads.add(own.session, own.run_id, said, goes_on.get("state"))


def client_tools(agent: AguiAgent, command: StartCommand) -> list[str]:
    """Return the names of the tools that the client runs, of the configuration and the request."""
    try:
        body = orjson.loads(command.body) if command.body is not None else command.input
    except orjson.JSONDecodeError:
        body = None
    names = {tool.get("name") for tool in _tools(agent, body)}
    return sorted(name for name in names if isinstance(name, str))


def _is_of_run(message: Mapping[str, Any], scope: str) -> bool:
    ids = (message.get("id"), *(call.get("id") for call in _objects(message.get("toolCalls"))))
    return any(isinstance(each, str) and each.startswith(scope) for each in ids)


def _entry(message: Mapping[str, Any]) -> Entry:
    calls = frozenset(str(call.get("id")) for call in _objects(message.get("toolCalls")))
    if message.get("role") == "tool":
        return Entry(answers=frozenset([str(message.get("toolCallId"))]))
    return Entry(calls, says=message.get("role") == "assistant" and bool(message.get("content")))


def _run_input(agent: AguiAgent, command: StartCommand, thread: Thread) -> dict[str, Any]:
    given = command.input or {}
    # A client that sends messages sends the complete conversation, so the stored conversation is
    # not needed.
    messages = _messages(given) or list(thread.messages)
    if command.message and not (_messages(given) and _ends_with(messages, command.message)):
        id_ = f"{command.run_id}-user"
        messages.append({"id": id_, "role": "user", "content": command.message})
    known = {} if thread.state is None else {"state": thread.state}
    return {
        **_empty(agent),
        **known,
        **given,
        "threadId": command.session_id,
        "runId": command.run_id,
        "messages": messages,
        "tools": _tools(agent, given),
    }


def _empty(agent: AguiAgent) -> dict[str, Any]:
    """Return empty values of the fields that servers before 1.0 require."""
    declared = {"protocolVersion": agent.protocol_version} if agent.protocol_version else {}
    return {**declared, "state": {}, "tools": agent.tools, "context": [], "forwardedProps": {}}


def _tools(agent: AguiAgent, body: Any) -> list[dict[str, Any]]:
    """Return the tools of the configuration and the request, which wins for the same name."""
    given = _objects(body.get("tools")) if isinstance(body, dict) else []
    named = {tool.get("name") for tool in given}
    return [*(tool for tool in agent.tools if tool.get("name") not in named), *given]


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    return _objects(body.get("messages"))


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _ends_with(messages: list[dict[str, Any]], text: str) -> bool:
    last = messages[-1]
    return last.get("role") == "user" and last.get("content") == text


def _named(own: _Own, before: list[dict[str, Any]], transcript: Transcript) -> list[dict[str, Any]]:
    """Return a leg's messages with the ids that clients know, because servers may repeat ids."""
    begun = transcript.begun | ids_of_run(own.run_id, before)
    return Restated(scope_of(own.run_id), begun, transcript.messages, before).messages


def _call(agent: AguiAgent, content: bytes, own: _Own) -> Call:
    """Return the request; its messages have the server's own ids."""
    run_id, thread_id = own.body.get("runId"), own.body.get("threadId", "")
    messages = own.body.get("messages")
    if isinstance(messages, list) and (theirs := own_messages(messages)) != messages:
        content = orjson.dumps({**own.body, "messages": theirs})
    return Call(agent.url, _HEADERS, content, run_id, thread_id, own)


# The forms of an answer to a pause


def _by_entry(body: dict[str, Any], how: Mapping[str, Any], item: Decided) -> None:
    entry: dict[str, Any] = {"interruptId": how["interrupt"]["id"], "status": "resolved"}
    if how["kind"] == "confirmation":
        entry["payload"] = _confirmation(how["interrupt"], item)
    elif item.decision == "approve":
        entry["payload"] = item.value
    else:
        entry["status"] = "cancelled"
    body.setdefault("resume", []).append(entry)


def _confirmation(interrupt: Mapping[str, Any], item: Decided) -> dict[str, Any]:
    """Return `approved` and the other fields of the interrupt's schema; without one, `reason`."""
    schema = interrupt.get("responseSchema") or {}
    room = schema.get("properties", {"reason": {}})
    payload: dict[str, Any] = {"approved": item.decision == "approve"}
    if item.decision == "approve" and "editedArgs" in room and item.args is not None:
        payload["editedArgs"] = item.args
    if item.note is not None and "reason" in room:
        payload["reason"] = item.note
    return payload


def _by_message(body: dict[str, Any], how: Mapping[str, Any], item: Decided) -> None:
    text = answer_text(how["kind"], item.model_dump())
    call_id = call_name(body["messages"], how["tool_call_id"])
    body["messages"].append(tool_message(call_id, text))


def _by_command(body: dict[str, Any], how: Mapping[str, Any], item: Decided) -> None:
    props = body.get("forwardedProps") or {}
    body["forwardedProps"] = {**props, "command": {"resume": item.value}}


_ANSWERS: Mapping[str, Callable[[dict[str, Any], Mapping[str, Any], Decided], None]] = {
    "resume": _by_entry,
    "tool": _by_message,
    "command": _by_command,
}
