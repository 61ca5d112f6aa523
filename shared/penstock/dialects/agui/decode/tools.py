"""Decodes tool calls so that each call is announced once and has one result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import ClassVar

from penstock.dialects.agui.decode.agents import Agents, SubagentId, subagent_of
from penstock.dialects.agui.decode.frames import AguiFrame, TextPart, with_metadata
from penstock.dialects.agui.decode.messages import Messages
from penstock.dialects.approvals import difference, refusal
from penstock.dialects.base import Draft, Ids, Json, JsonObject, append_text, short, tool_result
from penstock.dialects.json import loads, objects, parsed, string, text, without_none
from penstock.dialects.snapshots import DICT, PART, SET, Snapshots, Table, by, of


@dataclass(slots=True)
class Call:
    """A call that has no result yet."""

    id: str
    upstream_id: str
    tool: str
    leg: int
    owner: SubagentId = None  # the name in stored states
    message_id: str | None = None
    metadata: JsonObject | None = None
    parts: list[str] = field(default_factory=list)
    args: JsonObject = field(default_factory=dict)
    asked: bool = False  # Whether llm.tool_call was emitted.
    # Whether the agent sent text after the call, and so does not wait for the result.
    passed: bool = False
    kind: str | None = None  # The kind of the pause item that asks about the call.
    refusal: str | None = None  # The note of the rejection; None if the call is not rejected.

    @property
    def body(self) -> AguiFrame:
        return {"subagentRunId": self.owner}


class Tools(Snapshots):
    """Decodes the calls of a run, over all its legs."""

    STORED: ClassVar[Table] = {
        "ids": ("_ids", PART),
        "open": ("_open", by(itemgetter("upstream_id"), of(Call))),
        "answered": ("_answered", SET),
        "editable": ("_editable", SET),
        "approved": ("_approved", DICT),
        "expired": ("_expired", SET),
    }

    def __init__(self, agents: Agents, messages: Messages, client_tools: frozenset[str]) -> None:
        self._agents = agents
        self._messages = messages
        self._client_tools = client_tools
        self._leg = 0
        self._ids = Ids()
        self._open: dict[str, Call] = {}  # Maps an upstream id to the open call.
        self._answered: set[str] = set()  # The upstream ids of calls that have a result.
        self._fresh: list[Call] = []  # The calls that were announced after the agent's last text.
        # The upstream ids of calls whose arguments a person may edit in the answer.
        self._editable: set[str] = set()
        # Maps an upstream id to the approved arguments; to None if the arguments are unknown.
        self._approved: dict[str, JsonObject | None] = {}
        # The upstream ids of calls that were refused because their approval has expired.
        self._expired: set[str] = set()
        # Maps the upstream id of a repeated call to the name and the pieces of the arguments.
        self._repeated: dict[str, tuple[str, list[str]]] = {}

    def open(self, leg: int) -> None:
        self._leg = leg
        self._repeated = {}

    def find(self, upstream_id: Json) -> Call | None:
        return self._open.get(upstream_id) if isinstance(upstream_id, str) else None

    def is_clients(self, call: Call) -> bool:
        return call.tool in self._client_tools

    # Events.

    def started(self, body: AguiFrame) -> list[Draft] | None:
        # The call may be one of an earlier leg that runs now.
        upstream_id = string(body.get("toolCallId"))
        if upstream_id is None:
            return None
        known = self._open.get(upstream_id)
        if known is not None and known.leg < self._leg:
            known.leg = self._leg
            if upstream_id in self._approved:
                named = short(string(body.get("toolCallName")) or known.tool)
                self._repeated[upstream_id] = (named, [])
            data = {"tool_call_id": known.id, "status": "running"}
            return [self._agents.draft(body, "llm.tool_progress", data)]
        if known is not None and not known.asked:
            return None  # the call has begun and has not ended
        self._add(upstream_id, body)
        return []

    def arguments(self, body: AguiFrame) -> list[Draft] | None:
        call, delta = self.find(body.get("toolCallId")), body.get("delta")
        if call is None or not isinstance(delta, str):
            return None
        if call.upstream_id in self._repeated:
            append_text(self._repeated[call.upstream_id][1], delta)
            return []
        if call.asked or not delta:
            return []
        append_text(call.parts, delta)
        data = {"tool_call_id": call.id, "tool": call.tool, "delta": delta}
        return [self._agents.draft(body, "llm.tool_args", with_metadata(data, body))]

    def ended(self, body: AguiFrame) -> list[Draft] | None:
        call = self.find(body.get("toolCallId"))
        return None if call is None else [*self._announce(call), *self._compared(call, body)]

    def result(self, body: AguiFrame) -> list[Draft] | None:
        """Return None for a second result of a call."""
        upstream_id, content = string(body.get("toolCallId")), body.get("content")
        if upstream_id is None:
            return None
        call = self._open.get(upstream_id)
        if call is None:
            if upstream_id in self._answered:
                return None
            # The stream did not contain the start of this call, and a result needs a call.
            call = self._add(upstream_id, body)
        drafts = [*self._announce(call), *self._compared(call, body)]
        outcome, error = "ok", string(body.get("error"))
        if call.refusal is not None:
            outcome, error = self._refused_as(call), call.refusal or text(content)
        elif error is not None:
            outcome = "error"
        data = tool_result(call.tool, call.id, _result(content), outcome, error)
        data |= without_none({"message_id": string(body.get("messageId"))})
        if parts := objects(content):
            data["content"] = parts
        self._close(call)
        return [*drafts, self._agents.draft(body, "llm.tool_result", with_metadata(data, body))]

    def text_received(self) -> None:
        # An agent that sends text does not wait for the calls before the text.
        for call in self._fresh:
            call.passed = True
        self._fresh.clear()

    # Pauses.

    def waiting(self, ids: Iterable[str]) -> list[Call]:
        """Return the calls that the client must answer: those of `ids`, or else the announced open
        calls of this leg after which the agent sent no text. Calls of earlier legs are decided,
        even if the agent server never sends their results."""
        named = [self.find(each) or self._add(each, {}) for each in ids]
        return named or [
            call
            for call in self._open.values()
            if call.asked and not call.passed and call.leg == self._leg
        ]

    def waits(self, call: Call, kind: str, *, editable: bool = False) -> list[Draft]:
        """Announce a call of the pause, if need be. `editable`: the answer may change the
        arguments."""
        drafts = self._announce(call)
        call.kind = kind
        if editable:
            self._editable.add(call.upstream_id)
        return drafts

    def approve(self, call: Call, value: Json) -> None:
        """Note the approved arguments. An answer that may change them contains them, if it is not
        empty; in the form of Agno's interface, only the changes to the call's own, in `values`. If
        only the agent server knows how the answer changes the arguments, None is kept."""
        given = value if isinstance(value, dict) else {}
        args: JsonObject | None = call.args
        if call.upstream_id in self._editable:
            args = given or call.args
        elif isinstance(given.get("values"), dict):  # the form of Agno's interface
            args = {**call.args, **given["values"]}
        elif call.kind != "confirmation":
            args = None
        self._approved[call.upstream_id] = args

    def refuse(self, call: Call, note: str | None, *, expired: bool = False) -> None:
        # A later result counts as `rejected`, or as `expired`.
        call.refusal = note or ""
        if expired:
            self._expired.add(call.upstream_id)

    def answer(self, call: Call, decision: Mapping[str, Json]) -> Draft:
        # The upstream sends no event for a call that the client ran.
        if decision.get("decision") == "reject":
            return self._result_draft(call, None, *refusal(decision))
        return self._result_draft(call, decision.get("value"), "ok", None)

    def end_rejected(self) -> list[Draft]:
        """Return results for which the upstream sent none."""
        refused = [call for call in self._open.values() if call.refusal is not None]
        return [
            self._result_draft(call, None, self._refused_as(call), call.refusal or "rejected")
            for call in refused
        ]

    def _refused_as(self, call: Call) -> str:
        return "expired" if call.upstream_id in self._expired else "rejected"

    def close(self) -> list[Draft]:
        """Announce the calls that are not announced when the run completes or pauses."""
        return [draft for call in list(self._open.values()) for draft in self._announce(call)]

    def restore(self, state: JsonObject) -> None:
        super().restore(state)
        self._fresh = [call for call in self._open.values() if call.asked and not call.passed]

    def _compared(self, call: Call, body: AguiFrame) -> list[Draft]:
        """Return a warning and the new arguments if a repeated call differs from the approved one.
        The call keeps those with which it runs, so that the same difference causes no second
        warning."""
        repeated = self._repeated.pop(call.upstream_id, None)
        if repeated is None:
            return []
        tool, args_text = repeated[0], "".join(repeated[1])
        approved = self._approved[call.upstream_id]
        repeated_args = _arguments(args_text)
        ran = repeated_args if repeated_args is not None else {"": args_text}
        if not args_text or approved is None or (repeated_args is None and not approved):
            # The server has repeated no arguments, or the approved arguments are unknown. So only
            # the names of the tools are compared.
            ran = approved or {}
        differs = difference(call.id, (call.tool, approved or {}), (tool, ran))
        if differs is None:
            return []
        call.tool, call.args, self._approved[call.upstream_id] = tool, ran, ran
        data = {"tool_call_id": call.id, "status": "running", "tool": tool, "args": ran}
        return [
            self._agents.draft(body, "system.warning", differs),
            self._agents.draft(body, "llm.tool_progress", data),
        ]

    def _add(self, upstream_id: str, body: AguiFrame) -> Call:
        parent = string(body.get("parentMessageId"))
        call = Call(
            id=self._ids.unique(upstream_id),
            upstream_id=upstream_id,
            tool=short(string(body.get("toolCallName")) or "unknown"),
            leg=self._leg,
            owner=subagent_of(body),
            message_id=self._messages.message_id(parent) if parent else None,
            metadata=with_metadata({}, body) or None,
        )
        self._open[upstream_id] = call
        return call

    def _announce(self, call: Call) -> list[Draft]:
        if call.asked:
            return []
        call.asked = True
        self._fresh.append(call)
        args_text = "".join(call.parts)
        args = _arguments(args_text)
        call.parts, call.args = [], args or {}
        data = {
            "tool": call.tool,
            "args": call.args,
            "tool_call_id": call.id,
            "message_id": call.message_id,
            "args_text": args_text if args is None else None,
            "execution": "client" if self.is_clients(call) else None,
        }
        return [
            self._agents.draft(
                call.body, "llm.tool_call", without_none(data) | (call.metadata or {})
            )
        ]

    def _result_draft(self, call: Call, result: Json, outcome: str, error: str | None) -> Draft:
        self._close(call)
        data = tool_result(call.tool, call.id, result, outcome, error)
        return self._agents.draft(call.body, "llm.tool_result", data)

    def _close(self, call: Call) -> None:
        del self._open[call.upstream_id]
        self._editable.discard(call.upstream_id)
        self._approved.pop(call.upstream_id, None)
        self._expired.discard(call.upstream_id)
        self._repeated.pop(call.upstream_id, None)
        self._answered.add(call.upstream_id)


def _arguments(args_text: str) -> JsonObject | None:
    """Return {} for an empty text, None if it is no object."""
    if not args_text.strip():
        return {}
    try:
        value = loads(args_text.encode())
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _result(content: Json) -> Json:
    if isinstance(content, str):
        return parsed(content)
    if isinstance(content, list):
        parts: list[TextPart] = objects(content)
        return "".join(text(part.get("text")) for part in parts)
    return content
