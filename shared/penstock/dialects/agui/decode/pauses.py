"""Reads the questions of a paused AG-UI run.

A question is an interrupt, an unanswered call, or an event of an older LangGraph server.

The member `items` of the pause's `resume` says for each item id how the answer is sent:

- `{"style": "resume", "kind": …, "interrupt": …}`: an entry of `resume[]` in the next request
- `{"style": "tool", "tool_call_id": …, "kind": …}`: a message of role `tool`
- `{"style": "command"}`: `forwardedProps.command.resume`
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from penstock.dialects.agui.decode.agents import Agents
from penstock.dialects.agui.decode.frames import GraphInterrupt, Interrupt, Outcome
from penstock.dialects.agui.decode.tools import Call, Tools
from penstock.dialects.base import Draft, Ids, Json, JsonObject, PauseItem, PauseKind
from penstock.dialects.json import obj, objects, parsed, string, text

# The reasons of those interrupts that a person answers with yes or no.
_CONFIRMATIONS = frozenset({"tool_call", "confirmation"})


@dataclass(slots=True)
class Question:
    """Holds one question, the call in question, and how the answer is sent (`answer`)."""

    item: PauseItem
    answer: JsonObject
    call: Call | None = None


class Pauses:
    """Reads the questions of the run, and takes the decisions on them."""

    def __init__(self, agents: Agents, tools: Tools) -> None:
        self._agents = agents
        self._tools = tools
        # the values of the events CUSTOM on_interrupt in this leg
        self._interrupts: list[Json] = []
        self._waiting: dict[str, str] = {}  # maps an item's id to the call's upstream id

    def open(self) -> None:
        self._interrupts = []

    def interrupted(self, value: Json) -> None:
        """Let ag-ui-langgraph's graph wait. Its JSON values come as text."""
        self._interrupts.append(value)

    def questions(self, outcome: Outcome, pending: Iterable[str]) -> list[Question]:
        """Give each question open at RUN_FINISHED a unique id. `pending` has the
        `pendingToolCallIds` of the outcome."""
        ids = Ids()
        if outcome.get("type") == "interrupt":
            interrupts = outcome.get("interrupts")
            found = list(self._of_interrupts(interrupts, ids))
            named = {question.call.id for question in found if question.call}
            left = [call for call in self._tools.waiting(()) if self._tools.is_clients(call)]
            return found + [self._of_call(c, False, ids) for c in left if c.id not in named]
        if self._interrupts:
            return [self._of_value(value, ids) for value in self._interrupts]
        named_ids = list(pending)
        calls = self._tools.waiting(named_ids)
        return [self._of_call(call, bool(named_ids), ids) for call in calls]

    def pause(self, questions: Iterable[Question]) -> list[Draft]:
        """Return the announcements of the calls that were not announced yet."""
        drafts = []
        for question in questions:
            if question.call is not None:
                drafts += self._tools.waits(
                    question.call, question.item.kind, editable=question.item.editable
                )
                question.item.args = question.call.args
                self._waiting[question.item.item_id] = question.call.upstream_id
        return drafts

    def decided(self, item_id: str, decision: JsonObject) -> list[Draft]:
        """If the client ran the call, return its result. The agent server reports all others."""
        call = self._tools.find(self._waiting.pop(item_id, None))
        if call is None:
            return []
        if call.kind == "external":
            return [self._tools.answer(call, decision)]
        if decision.get("decision") == "reject":
            expired = bool(decision.get("expired"))
            self._tools.refuse(call, string(decision.get("note")), expired=expired)
        else:
            edited = decision.get("args")
            self._tools.approve(call, decision.get("value") if edited is None else edited)
        return []

    def snapshot(self) -> JsonObject:
        return dict(self._waiting)

    def restore(self, state: JsonObject) -> None:
        self._waiting = dict(state)

    def _of_interrupts(self, interrupts: Json, ids: Ids) -> Iterator[Question]:
        interrupt: Interrupt
        for interrupt in objects(interrupts):
            interrupt_id = string(interrupt.get("id"))
            if interrupt_id is None:
                continue  # nobody could answer this malformed interrupt
            call = self._tools.find(interrupt.get("toolCallId"))
            schema = interrupt.get("responseSchema")
            schema = schema if isinstance(schema, dict) else None
            kind = _kind(interrupt, schema)
            item = PauseItem(
                item_id=ids.unique(interrupt_id),
                kind=kind,
                description=string(interrupt.get("message")) or string(interrupt.get("reason")),
                input_schema=schema if kind == "input" else None,
                editable="editedArgs" in obj(obj(schema).get("properties")),
                subrun=self._agents.subrun(string(interrupt.get("subagentRunId"))),
            )
            yield _about(item, {"style": "resume", "kind": kind, "interrupt": interrupt}, call)

    def _of_call(self, call: Call, named: bool, ids: Ids) -> Question:
        """Ask for the result of a call that RUN_FINISHED has listed as pending (`named`), or whose
        tool the client runs, and for a confirmation of any other, because such calls of Agno wait
        for one."""
        kind: PauseKind = "external" if named or self._tools.is_clients(call) else "confirmation"
        item = PauseItem(ids.unique(call.upstream_id), kind, subrun=self._agents.subrun(call.owner))
        answer = {"style": "tool", "tool_call_id": call.upstream_id, "kind": kind}
        return _about(item, answer, call)

    def _of_value(self, value: Json, ids: Ids) -> Question:
        # The value of a graph's interrupt, and its answer, may be any JSON.
        value = parsed(value) if isinstance(value, str) else value
        graph: GraphInterrupt = obj(value)
        described = string(graph.get("message")) or string(graph.get("question"))
        item = PauseItem(ids.unique("interrupt"), "input", description=described or text(value))
        return Question(item, {"style": "command"})


def answer_text(kind: str | None, decision: Mapping[str, Json]) -> str:
    """Return the text of the `tool` message for an item of style `tool`. A value is sent unchanged,
    a confirmation without one in the form of Agno's AG-UI interface."""
    rejected, note = decision.get("decision") == "reject", string(decision.get("note"))
    value = decision.get("value")
    if kind == "external":
        return text((note or "Rejected: the tool was not run.") if rejected else value)
    if rejected:
        return text({"accepted": False, "note": note} if note else {"accepted": False})
    return text({"accepted": True} if value is None else value)


def _kind(interrupt: Interrupt, schema: JsonObject | None) -> PauseKind:
    """Read the schema, or else the reason."""
    if schema is not None:
        return "confirmation" if "approved" in obj(schema.get("properties")) else "input"
    return "confirmation" if string(interrupt.get("reason")) in _CONFIRMATIONS else "input"


def _about(item: PauseItem, answer: JsonObject, call: Call | None) -> Question:
    if call is not None:
        item.tool_call_id, item.tool, item.args = call.id, call.tool, call.args
    return Question(item, answer, call)
