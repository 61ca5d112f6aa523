"""Tool calls as drafts: streamed, asked for once, answered once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

from penstock.dialects.agui.decode.agents import Agents, Owner, owner_of
from penstock.dialects.agui.decode.messages import Messages
from penstock.dialects.agui.decode.metadata import with_metadata
from penstock.dialects.approved_calls import same_args, warning
from penstock.dialects.base import Draft, Ids, Json, JsonObject, short
from penstock.dialects.json import loads, objects, parsed, present, string, text
from penstock.dialects.text_buffer import append_text


@dataclass(slots=True)
class Call:
    """A call that has no result yet."""

    id: str
    upstream_id: str
    tool: str
    leg: int
    owner: Owner = None
    message_id: str | None = None
    metadata: JsonObject | None = None
    parts: list[str] = field(default_factory=list)
    args: JsonObject = field(default_factory=dict)
    asked: bool = False  # llm.tool_call was said
    passed: bool = False  # the agent has spoken since: it needs no answer to go on
    kind: str | None = None  # of the pause item that it waits for
    refusal: str | None = None  # what was said with the rejection

    @property
    def body(self) -> JsonObject:
        """Its owner, as an event names it."""
        return {"subagentRunId": self.owner}


class Tools:
    """The calls of a run, over all its legs."""

    def __init__(self, agents: Agents, messages: Messages, client_tools: frozenset[str]) -> None:
        self._agents = agents
        self._messages = messages
        self._client_tools = client_tools
        self._leg = 0
        self._ids = Ids()
        self._open: dict[str, Call] = {}  # by the upstream's id
        self._answered: set[str] = set()  # upstream ids
        self._fresh: list[Call] = []  # asked for since the agent spoke last
        self._editable: set[str] = set()  # upstream ids of calls whose answer may edit arguments
        self._approved: dict[str, JsonObject | None] = {}  # arguments by upstream id, where known
        self._again: dict[str, tuple[str, list[str]]] = {}  # name and arguments, told once more

    def open(self, leg: int) -> None:
        """A leg begins."""
        self._leg = leg
        self._again = {}

    def find(self, upstream_id: Json) -> Call | None:
        """The open call of that id."""
        return self._open.get(upstream_id) if isinstance(upstream_id, str) else None

    def is_clients(self, call: Call) -> bool:
        """Whether the client runs this tool."""
        return call.tool in self._client_tools

    # events

    def started(self, body: JsonObject) -> list[Draft] | None:
        """TOOL_CALL_START: a new call, or one that waited in an earlier leg and runs now."""
        upstream_id = string(body.get("toolCallId"))
        if upstream_id is None:
            return None
        known = self._open.get(upstream_id)
        if known is not None and known.leg < self._leg:
            known.leg = self._leg
            if upstream_id in self._approved:
                named = short(string(body.get("toolCallName")) or known.tool)
                self._again[upstream_id] = (named, [])
            data = {"tool_call_id": known.id, "status": "running"}
            return [self._agents.draft(body, "llm.tool_progress", data)]
        if known is not None and not known.asked:
            return None  # it is under way
        self._add(upstream_id, body)
        return []

    def arguments(self, body: JsonObject) -> list[Draft] | None:
        """TOOL_CALL_ARGS; of a call that is told again they must be what was approved."""
        call, delta = self.find(body.get("toolCallId")), body.get("delta")
        if call is None or not isinstance(delta, str):
            return None
        if call.upstream_id in self._again:
            append_text(self._again[call.upstream_id][1], delta)
            return []
        if call.asked or not delta:
            return []
        append_text(call.parts, delta)
        data = {"tool_call_id": call.id, "tool": call.tool, "delta": delta}
        return [self._agents.draft(body, "llm.tool_args", with_metadata(data, body))]

    def ended(self, body: JsonObject) -> list[Draft] | None:
        """TOOL_CALL_END: the model has asked."""
        call = self.find(body.get("toolCallId"))
        return None if call is None else [*self._ask(call), *self._compared(call, body)]

    def result(self, body: JsonObject) -> list[Draft] | None:
        """TOOL_CALL_RESULT; of a call that has one already it is the upstream's own event."""
        upstream_id, content = string(body.get("toolCallId")), body.get("content")
        if upstream_id is None:
            return None
        call = self._open.get(upstream_id)
        if call is None:
            if upstream_id in self._answered:
                return None
            # its start was not seen (a stream read from the middle), and a result needs a call
            call = self._add(upstream_id, body)
        drafts = [*self._ask(call), *self._compared(call, body)]
        outcome, error = "ok", string(body.get("error"))
        if call.refusal is not None:
            outcome, error = "rejected", call.refusal or text(content)
        elif error is not None:
            outcome = "error"
        data = {
            "tool": call.tool,
            "result": _result(content),
            "tool_call_id": call.id,
            "outcome": outcome,
        }
        data |= present({"error": error, "message_id": string(body.get("messageId"))})
        if parts := objects(content):
            data["content"] = parts
        self._close(call)
        return [*drafts, self._agents.draft(body, "llm.tool_result", with_metadata(data, body))]

    def spoken(self) -> None:
        """The agent speaks: it has, or needs, no answer to what it asked before."""
        for call in self._fresh:
            call.passed = True
        self._fresh.clear()

    # pauses

    def waiting(self, ids: Iterable[str]) -> list[Call]:
        """The calls that the client must answer: those named, else those of this leg left open.

        One of an earlier leg was decided about; the upstream may never tell its result.
        """
        named = [self.find(each) or self._add(each, {}) for each in ids]
        return named or [
            call
            for call in self._open.values()
            if call.asked and not call.passed and call.leg == self._leg
        ]

    def waits(self, call: Call, kind: str, *, editable: bool = False) -> list[Draft]:
        """It is an item of the pause; `editable`: an answer may have other arguments."""
        drafts = self._ask(call)
        call.kind = kind
        if editable:
            self._editable.add(call.upstream_id)
        return drafts

    def approve(self, call: Call, value: Json) -> None:
        """It may run, with these arguments: those that were shown, or what the answer made of them.

        What an answer to a question does to the arguments, the server alone knows.
        """
        given = value if isinstance(value, dict) else {}
        args: JsonObject | None = call.args
        if call.upstream_id in self._editable:
            args = given or call.args
        elif isinstance(given.get("values"), dict):  # Agno's interface fills them in
            args = {**call.args, **given["values"]}
        elif call.kind != "confirmation":
            args = None
        self._approved[call.upstream_id] = args

    def refuse(self, call: Call, note: str | None) -> None:
        """It was rejected: what the upstream says of it is no result of a run."""
        call.refusal = note or ""

    def answer(self, call: Call, decision: Mapping[str, Json]) -> Draft:
        """The client's result, which the upstream takes without a word."""
        value, outcome, error = decision.get("value"), "ok", None
        if decision.get("decision") == "reject":
            value, outcome, error = None, "rejected", string(decision.get("note")) or "rejected"
        return self._settled(call, value, outcome, error)

    def settle(self) -> list[Draft]:
        """The run completed: refused calls of which the upstream has said nothing."""
        refused = [call for call in self._open.values() if call.refusal is not None]
        return [
            self._settled(call, None, "rejected", call.refusal or "rejected") for call in refused
        ]

    def close(self) -> list[Draft]:
        """Asks for what was under way when the run ended well, or paused."""
        return [draft for call in list(self._open.values()) for draft in self._ask(call)]

    def dump(self) -> JsonObject:
        """As JSON."""
        return {
            "ids": dict(self._ids.used),
            "open": [asdict(call) for call in self._open.values()],
            "answered": sorted(self._answered),
            "editable": sorted(self._editable),
            "approved": dict(self._approved),
        }

    def load(self, state: JsonObject) -> None:
        """The opposite of `dump`."""
        self._ids.used = dict(state["ids"])
        self._open = {call["upstream_id"]: Call(**call) for call in state["open"]}
        self._fresh = [call for call in self._open.values() if call.asked and not call.passed]
        self._answered = set(state["answered"])
        # older releases did not keep these
        self._editable = set(state.get("editable", ()))
        self._approved = dict(state.get("approved", {}))

    def _compared(self, call: Call, body: JsonObject) -> list[Draft]:
        """A warning where an approved call is told again as another; it is that one from now on."""
        again = self._again.pop(call.upstream_id, None)
        if again is None:
            return []
        tool, said = again[0], "".join(again[1])
        approved = self._approved[call.upstream_id]
        told = _arguments(said)
        ran = told if told is not None else {"": said}
        if not said or approved is None or (told is None and not approved):
            ran = approved or {}  # it does not say, or there is nothing to compare with
        if tool == call.tool and same_args(approved or {}, ran):
            return []
        differs = warning(call.id, (call.tool, approved or {}), (tool, ran))
        call.tool, call.args, self._approved[call.upstream_id] = tool, ran, ran
        data = {"tool_call_id": call.id, "status": "running", "tool": tool, "args": ran}
        return [
            self._agents.draft(body, "system.warning", differs),
            self._agents.draft(body, "llm.tool_progress", data),
        ]

    def _add(self, upstream_id: str, body: JsonObject) -> Call:
        parent = string(body.get("parentMessageId"))
        call = Call(
            id=self._ids.unique(upstream_id),
            upstream_id=upstream_id,
            tool=short(string(body.get("toolCallName")) or "unknown"),
            leg=self._leg,
            owner=owner_of(body),
            message_id=self._messages.message_id(parent) if parent else None,
            metadata=with_metadata({}, body) or None,
        )
        self._open[upstream_id] = call
        return call

    def _ask(self, call: Call) -> list[Draft]:
        if call.asked:
            return []
        call.asked = True
        self._fresh.append(call)
        said = "".join(call.parts)
        args = _arguments(said)
        call.parts, call.args = [], args or {}
        data = {
            "tool": call.tool,
            "args": call.args,
            "tool_call_id": call.id,
            "message_id": call.message_id,
            "args_text": said if args is None else None,
            "execution": "client" if self.is_clients(call) else None,
        }
        return [
            self._agents.draft(call.body, "llm.tool_call", present(data) | (call.metadata or {}))
        ]

    def _settled(self, call: Call, result: Json, outcome: str, error: str | None) -> Draft:
        self._close(call)
        data = {"tool": call.tool, "result": result, "tool_call_id": call.id, "outcome": outcome}
        if error is not None:
            data["error"] = error
        return self._agents.draft(call.body, "llm.tool_result", data)

    def _close(self, call: Call) -> None:
        del self._open[call.upstream_id]
        self._editable.discard(call.upstream_id)
        self._approved.pop(call.upstream_id, None)
        self._again.pop(call.upstream_id, None)
        self._answered.add(call.upstream_id)


def _arguments(said: str) -> JsonObject | None:
    """The arguments; None for what is no object."""
    if not said.strip():
        return {}
    try:
        value = loads(said.encode())
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _result(content: Json) -> Json:
    if isinstance(content, str):
        return parsed(content)
    if isinstance(content, list):
        return "".join(text(part.get("text")) for part in objects(content))
    return content
