"""Decodes tool calls so that each call is announced once and has one result.

If a call waits for a decision, Agno sends no event for this call before the pause. If the call is
then rejected, Agno sends no event for the call after the pause either. Agno reports a failed call
twice.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

import orjson

from penstock.dialects.agno.decode.agents import Agents, Run
from penstock.dialects.agno.decode.calls import Call, Calls, call_id, tool_args, tool_name
from penstock.dialects.agno.decode.frames import AgnoFrame, MemberCall, Tool, ToolMetrics
from penstock.dialects.agno.decode.messages import Messages
from penstock.dialects.agno.decode.pauses import Question, filled_in
from penstock.dialects.agno.vocabulary import is_answered_by_decision
from penstock.dialects.approvals import difference, refusal
from penstock.dialects.base import MAX_OPEN, Draft, Json, JsonObject, tool_result
from penstock.dialects.json import loads, number, obj, objects, string, text
from penstock.dialects.snapshots import DICT, PART, TUPLES, Snapshots, Table

# Converts tool results of Agno into JSON values.
#
# Agno 2.3 and 3.1 stream `str(value)` of a tool's result. So an object arrives as the text of a
# Python literal.

# The length of the longest literal that is parsed, in characters. Parsing takes about 1 µs and 100
# bytes for each character. A longer literal stays text.
MAX_LITERAL_CHARS: Final = 128 * 1024

_LITERAL_WORDS: Final = frozenset({"True", "False", "None"})
_LITERAL_STARTS: Final = ("{", "[", "(")


def tool_value(result: Json) -> Json:
    """Parse JSON or a Python literal. A text that begins with a quote is no literal, because Agno
    sends strings without quotes."""
    if not isinstance(result, str):
        return result
    try:
        return loads(result.encode())
    except ValueError:  # the text is not JSON, or has a lone surrogate, which UTF-8 cannot encode
        pass
    literal = result.strip()
    if len(literal) > MAX_LITERAL_CHARS or not (
        literal.startswith(_LITERAL_STARTS) or literal in _LITERAL_WORDS
    ):
        return result
    try:
        value = ast.literal_eval(literal)
        # This turns tuples into arrays and keys into strings. For sets, bytes and integers of more
        # than 64 bits, orjson raises an error, and the function returns the text.
        return orjson.loads(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return result


# The error text for a failed call for which Agno sends no text.
_FAILED = "the tool failed"


class Tools(Snapshots):
    """Decodes the calls of the outer run and of all its inner runs."""

    STORED: ClassVar[Table] = {
        "calls": ("_calls", PART),
        "tasks": ("_tasks", TUPLES),
        "waiting": ("_waiting", DICT),
    }

    def __init__(self, agents: Agents, messages: Messages) -> None:
        self._agents = agents
        self._messages = messages
        self._calls = Calls()
        # tuples of the team's key, the member's id and the task
        self._tasks: list[tuple[str, str | None, str]] = []
        self._waiting: dict[str, str] = {}  # maps an item's id to the call's id

    def started(self, run: Run, body: AgnoFrame) -> list[Draft]:
        # The call may have been announced at a pause.
        tool: Tool = obj(body.get("tool"))
        drafts = self._messages.interrupt(run)
        call = self._calls.find(run.key, tool, pending=True)
        if call is not None:
            call.pending = False
            data: JsonObject = {"tool_call_id": call.id, "status": "running"}
            if differs := self._compared(run, call, tool):
                drafts += differs
                data |= {"tool": call.tool, "args": call.args}
            return [*drafts, self._agents.draft(run, "llm.tool_progress", data)]
        call = self._calls.add(run.key, tool, pending=False)
        self._remember_task(run, call)
        return [*drafts, self._asked(run, call, tool)]

    def completed(self, run: Run, body: AgnoFrame) -> list[Draft]:
        """For a failed call, ToolCallError reports the failure again."""
        tool: Tool = obj(body.get("tool"))
        failed = tool.get("tool_call_error") is True
        return self._ended(run, tool, (text(tool.get("result")) or _FAILED) if failed else None)

    def failed(self, run: Run, body: AgnoFrame) -> list[Draft]:
        tool: Tool = obj(body.get("tool"))
        return self._ended(
            run, tool, string(body.get("error")) or text(tool.get("result")) or _FAILED
        )

    def pending(self, run: Run, question: Question, drafts: list[Draft]) -> Call:
        tool: Tool = question.tool or {}
        call = self._calls.find(run.key, tool)
        if call is None:
            call = self._calls.add(run.key, tool, pending=True)
            drafts.append(self._asked(run, call, tool))
        call.pending, call.kind, call.decision = True, question.kind, None
        if question.kind == "input":
            call.fields = filled_in(tool)
        return call

    def waits(self, item_id: str, call: Call) -> None:
        self._waiting[item_id] = call.id

    def decided(self, items: Mapping[str, JsonObject]) -> list[Draft]:
        """Return the results that Agno never reports (see `AgnoDecoder.decided`)."""
        drafts: list[Draft] = []
        calls = {call.id: call for call in self._calls.open}
        for item_id, decision in items.items():
            call = calls.get(self._waiting.get(item_id, ""))
            if call is None:
                continue  # a gate of a workflow, or a call that does not wait
            call.decision = string(decision.get("decision"))
            call.value = decision.get("value")
            if (edited := decision.get("args")) is not None:
                # later compared with the arguments with which the call runs
                call.args = obj(edited)
            if call.decision == "reject":
                drafts.append(self._result_draft(call, None, *refusal(decision)))
            elif call.value is not None and is_answered_by_decision(call.kind, call.tool):
                drafts.append(self._answered(call))
        self._waiting = {}
        return drafts

    def end_waiting(self, body: AgnoFrame) -> list[Draft]:
        """End the calls that still wait when the run completes; Agno sends no events for them.

        Agno 2.3 continues a team while one of its members pauses, and Agno 2.3 and 3.1 skip a call
        that a continue request does not name in the expected form. If a member does not stream, the
        last frame of the run has the results of its calls.
        """
        drafts: list[Draft] = []
        last_tools: dict[str, Tool] = {call_id(tool): tool for tool in _inner_tools(body)}
        for call in [call for call in self._calls.open if call.pending]:
            tool: Tool = last_tools.get(call.upstream_id, {})
            if tool.get("result") is not None:
                run, failed = self._agents.by_key(call.run), tool.get("tool_call_error") is True
                drafts += self._ended(run, tool, text(tool["result"]) if failed else None)
            elif call.decision is None:
                drafts.append(self._result_draft(call, None, "expired", "the run ended undecided"))
            elif call.kind == "input" and call.value is not None:
                drafts.append(self._answered(call))
            else:
                error = "approved, but the upstream never ran it"
                drafts.append(self._result_draft(call, None, "error", error))
        return drafts

    def task(self, team: Run, member_id: str) -> str | None:
        """Return the task that the team gave to this member, once, or to all members."""
        for task in self._tasks:
            key, wanted, description = task
            if key == team.key and wanted in (member_id, None):
                if wanted is not None:
                    self._tasks.remove(task)
                return description
        return None

    def _ended(self, run: Run, tool: Tool, error: str | None) -> list[Draft]:
        call = self._calls.find(run.key, tool, pending=False)
        call = call or self._calls.find(run.key, tool, pending=True)
        drafts: list[Draft] = []
        if call is None:
            if error is not None and self._calls.is_second_report(run.key, tool):
                return []
            # The stream did not contain the start of this call, and a result needs a call.
            call = self._calls.add(run.key, tool, pending=False)
            drafts.append(self._asked(run, call, tool))
        drafts += self._compared(run, call, tool)
        self._calls.close(call, failed=error is not None)
        outcome = "ok" if error is None else "error"
        data = tool_result(call.tool, call.id, tool_value(tool.get("result")), outcome, error)
        metrics: ToolMetrics = obj(tool.get("metrics"))
        duration_s = number(metrics.get("duration"))
        if duration_s is not None:
            data["duration_s"] = duration_s
        return [*drafts, self._agents.draft(run, "llm.tool_result", data)]

    def _compared(self, run: Run, call: Call, tool: Tool) -> list[Draft]:
        """Warn if an approved call runs with another tool or other arguments. The call keeps those
        with which it runs, so that the same difference causes no second warning."""
        if call.decision != "approve":
            return []
        approved = call.tool, call.approved_args()
        ran = (
            tool_name(tool) if "tool_name" in tool else call.tool,
            tool_args(tool) if "tool_args" in tool else approved[1],
        )
        warning = difference(call.id, approved, ran)
        call.tool, call.args = ran
        call.value = call.fields = None  # these values are now part of the arguments
        return [self._agents.draft(run, "system.warning", warning)] if warning else []

    def _asked(self, run: Run, call: Call, tool: Tool) -> Draft:
        data: JsonObject = {"tool": call.tool, "args": call.args, "tool_call_id": call.id}
        if call.pending:
            data["pending"] = True
        raw = tool.get("tool_args")
        if raw is not None and not isinstance(raw, dict):
            data["args_text"] = text(raw)
        return self._agents.draft(run, "llm.tool_call", data)

    def _answered(self, call: Call) -> Draft:
        return self._result_draft(call, tool_value(call.value), "ok", None)

    def _result_draft(self, call: Call, result: Json, outcome: str, error: str | None) -> Draft:
        self._calls.close(call)
        data = tool_result(call.tool, call.id, result, outcome, error)
        return self._agents.draft(self._agents.by_key(call.run), "llm.tool_result", data)

    def _remember_task(self, run: Run, call: Call) -> None:
        # The member's frames do not contain it.
        args: MemberCall = obj(call.args)
        task = string(args.get("task"))
        if run.kind == "team" and task is not None:
            self._tasks.append((run.key, string(args.get("member_id")), task))
            # The oldest tasks are dropped, because a member that never begins would leave its task
            # in memory.
            del self._tasks[:-MAX_OPEN]


def _inner_tools(body: AgnoFrame) -> Iterator[Tool]:
    for runs in (body.get("member_responses"), body.get("step_executor_runs")):
        run: AgnoFrame
        for run in objects(runs):
            yield from objects(run.get("tools"))
