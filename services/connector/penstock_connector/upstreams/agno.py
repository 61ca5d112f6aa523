"""The adapter to Agno AgentOS 2.3 and 3.x: agents, teams and workflows.

Agents and teams run with `background=true`. In 3.x, such a run survives a broken connection and can
be resumed. Agno 2.3 ignores the field `background`. Penstock's run id is sent as `run_id`. Agno
2.3.18 and later use this id for the run.
"""

from __future__ import annotations

import copy
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import httpx
import orjson

from penstock.bus.records.approvals import ContinueCommand, Decided
from penstock.bus.records.legs import PauseRecord
from penstock.bus.records.runs import StartCommand, TakenOver
from penstock.settings import AgnoAgent
from penstock.sse import Frame
from penstock_connector.upstreams.base import (
    Call,
    CancelAnswer,
    ReattachState,
    Upstream,
    UpstreamRefused,
    leg_key,
    segment,
    stopped_for_budget,
)
from penstock_connector.upstreams.forks import Entry, kept_entries, not_forkable

log = logging.getLogger(__name__)

_HEADERS = {
    "content-type": "application/x-www-form-urlencoded",
    "accept": "text/event-stream",
}
_EVENT_INDEX = b'"event_index"'
# the events that only describe a resumption; these events have no number
_OF_RESUME = ("replay", "catch_up", "subscribed")
# The note about a stream whose events have no numbers, because the server is 2.3, or the run is in
# the foreground. Such a stream cannot be resumed.
_UNNUMBERED = "unnumbered"
_GOES_ON = "continue"  # the value of `Call.own` for all legs but the first


class AgnoUpstream(Upstream[AgnoAgent]):
    """Sends forms to /agents, /teams and /workflows."""

    async def start(self, agent: AgnoAgent, command: StartCommand) -> Call:
        if command.forked_from is not None and command.taken_over is not None:
            return await self._fork(agent, command, command.forked_from.run_id, command.taken_over)
        fields: dict[str, Any] = {
            **(command.input or {}),
            "message": command.message,
            "stream": "true",
            **_background(agent),
            "session_id": command.session_id,
            "user_id": command.user_id,
            "run_id": command.run_id,
            **_metadata(agent, leg_key(command.run_id, 1), command.input),
        }
        return _call(f"{_base(agent)}/runs", fields, command.run_id, command.session_id)

    async def _fork(
        self, agent: AgnoAgent, command: StartCommand, first_run: str, taken: TakenOver
    ) -> Call:
        """Return POST …/runs/{run_id}/continue with `fork`, which begins another run in the session
        (3.1 and later). An earlier server would go on with the first run itself, so the server must
        have the route of checkpoints, which came with forks. Raises NotAccepted.

        The server gives the new run its id. So the request is made in the foreground, where closing
        the connection cancels the run.
        """
        url = f"{_base(agent)}/runs/{segment(first_run)}"
        query = {"session_id": command.session_id}
        known = await self._client.get(f"{url}/checkpoints", params=query, headers=agent.headers)
        if known.status_code == httpx.codes.NOT_FOUND:
            raise not_forkable(
                f"the agent server has no run {first_run} that can be forked (Agno 3.1 and later)"
            )
        stored = await self._client.get(
            f"{agent.url}/sessions/{segment(command.session_id)}/runs/{segment(first_run)}",
            params={"type": "agent", "user_id": command.user_id},
            headers=agent.headers,
        )
        for answer in (known, stored):
            if answer.is_error:
                raise UpstreamRefused(answer.status_code, answer.text)
        fields: dict[str, Any] = {
            "stream": "true",
            "fork": "true",
            "continue_from": str(messages_kept(stored.json().get("messages") or [], taken)),
            "session_id": command.session_id,
            "user_id": command.user_id,
            **_metadata(agent, leg_key(command.run_id, 1)),
        }
        if command.message:
            fields["input"] = command.message
        return replace(
            _call(f"{url}/continue", fields, "", command.session_id), run_id=None, own=_GOES_ON
        )

    async def resume(self, agent: AgnoAgent, command: ContinueCommand, pause: PauseRecord) -> Call:
        """Return POST …/runs/{run_id}/continue, with the decisions in the pause's stored
        objects."""
        if (message := stopped_for_budget(pause)) is not None:
            # Agno refuses to continue a cancelled run, so this is a new run of the session.
            run_id = str(uuid.uuid5(uuid.UUID(command.run_id), f"leg {command.leg}"))
            given: dict[str, Any] = pause.resume.get("input") or {}
            again: dict[str, Any] = {
                **given,
                "message": message,
                "stream": "true",
                **_background(agent),
                "session_id": command.session_id,
                "user_id": command.user_id,
                "run_id": run_id,
                **_metadata(agent, leg_key(command.run_id, command.leg), given),
            }
            return _call(f"{_base(agent)}/runs", again, run_id, command.session_id)
        resume = pause.resume
        run_id = resume.get("run_id") or command.run_id
        session_id = resume.get("session_id") or command.session_id
        fields: dict[str, Any] = {
            "stream": "true",
            **_background(agent),
            "session_id": session_id,
            "user_id": command.user_id,
            **_metadata(agent, leg_key(command.run_id, command.leg)),
            **_answers(resume, {item.item_id: item for item in command.items}),
        }
        url = f"{_base(agent)}/runs/{segment(run_id)}/continue"
        return replace(_call(url, fields, run_id, session_id), own=_GOES_ON)

    async def cancel(self, agent: AgnoAgent, call: Call) -> CancelAnswer:
        """Send POST …/runs/{run_id}/cancel; the stream then ends with RunCancelled."""
        if call.run_id is None:
            return CancelAnswer.BY_CLOSING
        url = f"{_base(agent)}/runs/{segment(call.run_id)}/cancel"
        response = await self._client.post(url, headers=agent.headers)
        if response.is_success:
            return CancelAnswer.ACCEPTED
        log.warning("run %s: the upstream refused to cancel: %s", call.run_id, response.status_code)
        return CancelAnswer.REFUSED

    def watch(self, frame: Frame, seen: ReattachState) -> None:
        """Store the event's number, and find out whether the server can still continue the stream.

        Agno 3.x numbers the events of a background run without gaps. So a gap shows that the server
        has forgotten events.
        """
        if frame.event == "error":  # the answer to /resume if the server does not know the run
            seen.refusal = "the agent server does not know the run any more"
            return
        if _EVENT_INDEX not in frame.data:
            if frame.event not in _OF_RESUME:
                seen.notes = _UNNUMBERED
            return
        try:
            event = orjson.loads(frame.data)
        except orjson.JSONDecodeError:
            return
        # Only the event's own field is read, because the arguments of a tool may have a field with
        # the same name.
        index = event.get("event_index") if isinstance(event, dict) else None
        if not isinstance(index, int):
            return
        if seen.last_event_index is not None and index > seen.last_event_index + 1:
            missing = f"{seen.last_event_index + 1} to {index - 1}"
            seen.refusal = f"the agent server has forgotten the events {missing}"
        seen.last_event_index = index

    def survives_disconnect(self, seen: ReattachState) -> bool:
        """Return whether the server numbers the events, as 3.x does for runs in the background."""
        return seen.last_event_index is not None

    async def reattach(self, agent: AgnoAgent, call: Call, seen: ReattachState) -> Call | None:
        """Return POST …/runs/{run_id}/resume (3.x), after the last complete event.

        If no event has arrived, the request for a first leg asks for the whole run. A later leg is
        not continued then: the number of its first event is unknown, because a restarted server
        begins to count again.
        """
        if call.run_id is None or (call.own == _GOES_ON and seen.last_event_index is None):
            return None
        fields: dict[str, Any] = {"session_id": call.session_id}
        if seen.last_event_index is not None:
            fields["last_event_index"] = seen.last_event_index
        elif seen.notes == _UNNUMBERED or agent.kind == "workflow":
            return None
        return _call(
            f"{_base(agent)}/runs/{segment(call.run_id)}/resume",
            fields,
            call.run_id,
            call.session_id,
        )


def messages_kept(messages: Sequence[dict[str, Any]], taken: TakenOver) -> int:
    """Return how many messages of the first run a fork keeps. Pure."""
    own = next((n for n, each in enumerate(messages) if not _is_given(each)), len(messages))
    return own + kept_entries(map(_entry, messages[own:]), taken)


def _is_given(message: Mapping[str, Any]) -> bool:
    """Whether the message came before the run: instructions, history, or what the user says."""
    return bool(message.get("from_history")) or message.get("role") in ("system", "user")


def _entry(message: Mapping[str, Any]) -> Entry:
    if message.get("role") == "tool":
        return Entry(answers=frozenset([str(message.get("tool_call_id"))]))
    calls = frozenset(str(call.get("id")) for call in message.get("tool_calls") or ())
    return Entry(calls, says=message.get("role") == "assistant" and bool(message.get("content")))


def _base(agent: AgnoAgent) -> str:
    return f"{agent.url}/{agent.kind}s/{segment(agent.agent)}"


def _background(agent: AgnoAgent) -> dict[str, str]:
    # If a background workflow pauses, Agno 3.1.10 ends the stream without an event about the pause.
    # So workflows run in the foreground.
    return {} if agent.kind == "workflow" else {"background": "true"}


def _metadata(
    agent: AgnoAgent, key: str, given: Mapping[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """Return the field in which tools of agents and teams read the leg's key."""
    if agent.kind == "workflow":
        return {}
    own = (given or {}).get("metadata")
    return {"metadata": {**(own if isinstance(own, dict) else {}), "idempotency_key": key}}


def _call(url: str, fields: Mapping[str, Any], run_id: str, session_id: str) -> Call:
    form = {
        name: value if isinstance(value, str) else orjson.dumps(value).decode()
        for name, value in fields.items()
    }
    return Call(url, _HEADERS, urlencode(form).encode(), run_id, session_id)


def _answers(resume: Mapping[str, Any], decided: Mapping[str, Decided]) -> dict[str, Any]:
    """Return the form field with the decisions; its name depends on the kind of run.

    `resume["items"]` maps the id of each item to the path of the item's own object. Only this
    object is changed, because two members of a team may use the same tool call id.
    """
    section = _SECTIONS.get(resume.get("kind", ""), "tools")
    answered = {section: copy.deepcopy(resume.get(section, []))}
    for item_id, path in resume.get("items", {}).items():
        if item_id in decided and path[0] == section:
            target: Any = answered
            for step in path:
                target = target[step]
            _decide(target, decided[item_id])
    return answered


_SECTIONS = {"agent": "tools", "team": "requirements", "workflow": "step_requirements"}


def _decide(target: dict[str, Any], item: Decided) -> None:
    if "tool_execution" in target:
        _decide_requirement(target, item)
    elif "tool_name" in target:
        _decide_tool(target, item)
    else:
        _decide_step(target, item)


def _decide_tool(tool: dict[str, Any], item: Decided) -> None:
    for mark, decide in _TOOL_MARKS.items():
        if tool.get(mark):
            decide(tool, item)
            return


def _confirm(tool: dict[str, Any], item: Decided) -> None:
    tool["confirmed"] = item.decision == "approve"
    if item.decision == "approve" and item.args is not None:
        # Agno runs the call with the arguments in the continue request.
        tool["tool_args"] = item.args
    if item.note is not None:
        tool["confirmation_note"] = item.note


def _answer(tool: dict[str, Any], item: Decided) -> None:
    values = item.value if isinstance(item.value, dict) else {}
    for question in tool.get("user_input_schema") or ():
        if question.get("name") in values:
            question["value"] = values[question["name"]]
    for question in tool.get("user_feedback_schema") or ():
        if question.get("question") in values:
            question["selected_options"] = values[question["question"]]
    tool["answered"] = True


def _execute(tool: dict[str, Any], item: Decided) -> None:
    value = item.value
    if item.decision == "reject":
        value = item.note or "Rejected: the tool was not run."
    tool["result"] = value if isinstance(value, str) else orjson.dumps(value).decode()


_TOOL_MARKS: Mapping[str, Callable[[dict[str, Any], Decided], None]] = {
    # The most specific field comes first, as in Agno's own `pause_type`.
    "external_execution_required": _execute,
    "requires_user_input": _answer,
    "requires_confirmation": _confirm,
}


def _decide_requirement(requirement: dict[str, Any], item: Decided) -> None:
    tool = requirement["tool_execution"]
    _decide_tool(tool, item)
    if tool.get("confirmed") is not None:
        requirement["confirmation"] = tool["confirmed"]
        if item.note is not None:
            requirement["confirmation_note"] = item.note


def _decide_step(step: dict[str, Any], item: Decided) -> None:
    # A step that asks for choices or an input may also ask for a confirmation, after it has got the
    # choices or the input.
    if step.get("requires_route_selection") and step.get("selected_choices") is None:
        step["selected_choices"] = item.value if isinstance(item.value, list) else [item.value]
    elif step.get("requires_user_input") and step.get("user_input") is None:
        step["user_input"] = item.value
    else:
        step["confirmed"] = item.decision == "approve"
    if item.note is not None and item.decision == "reject":
        step["rejection_feedback"] = item.note
