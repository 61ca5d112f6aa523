"""Decodes the frames of Agno 2.3 and 3.1 into canonical drafts: agents, teams and workflows.

One table maps the name of an event to its handler. The other modules handle runs (`agents`),
messages, tools, steps and pauses.

Several drafts refer to the same `source` and `subrun` objects, so a caller must not change these
objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Final, Literal

from penstock.dialects.agno.decode import steps
from penstock.dialects.agno.decode.agents import BEGIN, Agents, Run
from penstock.dialects.agno.decode.frames import AgnoFrame
from penstock.dialects.agno.decode.messages import Messages, answer_of
from penstock.dialects.agno.decode.pauses import (
    Question,
    pause_item,
    questions_of_run,
    questions_of_workflow,
)
from penstock.dialects.agno.decode.steps import Steps
from penstock.dialects.agno.decode.tools import Tools
from penstock.dialects.agno.decode.usage import usage_of_call, usage_of_run
from penstock.dialects.base import (
    MAX_ITEMS,
    AgentFacts,
    Draft,
    Ids,
    Json,
    JsonObject,
    LimitReached,
    Pause,
    PauseItem,
    short,
)
from penstock.dialects.custom_events import from_custom
from penstock.dialects.json import OBJECT, loads, obj, string, text, without_none
from penstock.dialects.snapshots import AS_IS, PART, Snapshots, Table
from penstock.dialects.usage import USAGE
from penstock.sse import Frame

# The keys that every frame may have. These keys are not part of a custom event's value.
_COMMON = frozenset(
    {
        *("created_at", "event", "event_index", "nested_depth", "tools", "session_id"),
        *("run_id", "parent_run_id", "workflow_run_id", "agent_id", "agent_name"),
        *("team_id", "team_name", "workflow_id", "workflow_name"),
        *("step_id", "step_name", "step_index", "parent_step_id"),
    }
)


def canonical_draft(name: str, body: AgnoFrame, name_key: str) -> Draft | None:
    """Return None if no canonical type fits. The value is the first that fits of `value`,
    `payload`, `data`, and the event's own keys without `_COMMON` and `name_key`."""
    values = [body[key] for key in ("value", "payload", "data") if key in body]
    values.append({k: item for k, item in body.items() if k not in _COMMON and k != name_key})
    drafts = (from_custom(name, value) for value in values)
    return next((draft for draft in drafts if draft is not None), None)


Drafts = Sequence[Draft | Pause]

_Section = Literal["tools", "requirements", "step_requirements"]
_SECTIONS: Final[tuple[_Section, ...]] = ("tools", "requirements", "step_requirements")

# Error texts for incomplete messages for which the upstream sends no text.
_CUT = "the upstream's stream was cut off"
_CANCELLED = "the run was cancelled"
_OUTER_ENDED = "the outer run ended first"


class AgnoDecoder(Snapshots):
    """Decodes one run (see `penstock.dialects.base.Decoder`). Custom events that `AgentFacts.drop`
    names are left out, but not events that decide how the run continues or ends."""

    STORED: ClassVar[Table] = {
        "over": ("_over", AS_IS),
        "runs": ("_agents", PART),
        "tools": ("_tools", PART),
        "steps": ("_steps", PART),
    }

    def __init__(self, agent: AgentFacts) -> None:
        self._agent = agent
        self._leg = 0
        self._over = False  # Whether a terminal event was emitted; if so, no more events follow.
        self._waits = False  # Whether this leg ended in a pause.
        self._resumed = False  # Whether this leg has emitted lifecycle.resumed.
        self._steps = Steps()
        self._agents = Agents(agent, self._steps)
        self._messages = Messages(self._agents)
        self._tools = Tools(self._agents, self._messages)

    def open(self, leg: int) -> Drafts:
        self._leg = leg
        self._over = False  # the agent server said that it was stopped, and the run goes on
        self._waits = self._resumed = False
        self._agents.open()
        self._messages.open(leg)
        return []

    def decided(self, items: Mapping[str, JsonObject]) -> Sequence[Draft]:
        """Return the results of those calls that Agno never reports.

        A rejected call never runs. For an external call, a question with options or
        `get_user_input`, the answer is the call's result, which Agno gives to the model. Agno runs
        all other calls that waited for input, and reports their results.
        """
        return self._tools.decided(items)

    def feed(self, frame: Frame) -> Drafts:
        """Return none for a frame after a terminal event or a pause."""
        if self._over or self._waits:
            return []
        name = frame.event or "message"
        try:
            body = loads(frame.data)
        except ValueError:
            return [self._custom(self._agents.outer, name, frame.data.decode("utf-8", "replace"))]
        if not isinstance(body, OBJECT):
            return [self._custom(self._agents.outer, name, body)]
        if name == "message":  # Agno gives this name to an event without a name
            name = string(body.get("event")) or name
        try:
            return self._handled(name, body)
        except LimitReached as error:
            return self._fail(str(error), code="limit")

    def _handled(self, name: str, body: AgnoFrame) -> Drafts:
        run = self._agents.of(name, body)
        handle = _HANDLERS.get(name)
        if handle is None:
            return self._unknown(run, name, body)
        if run.is_inner and not run.dispatched and name not in BEGIN:
            # The stream did not contain the start of this inner run, and every inner run needs a
            # `dispatch.worker`.
            return [self._dispatched(run, body), *handle(self, run, body)]
        return handle(self, run, body)

    def end(self) -> Drafts:
        if self._over or self._waits:
            return []
        return self._lost("the upstream's stream ended without a final event")

    def abort(self) -> Drafts:
        return [] if self._over or self._waits else self._close_all("failed", _CUT)

    # Starts.

    def _started(self, run: Run, body: AgnoFrame) -> Drafts:
        drafts: list[Draft] = []
        if run.finished:  # the run starts again under the same id
            drafts += self._messages.close(run)
            run = self._agents.restarted(run, body)
        run.leg = self._leg
        run.model = string(body.get("model"))
        run.model_provider = string(body.get("model_provider"))
        if run.is_inner and not run.dispatched:
            drafts.append(self._dispatched(run, body))
        else:
            value = {
                "upstream_run_id": run.id,
                "kind": run.kind,
                "model": run.model,
                "model_provider": run.model_provider,
                "session_id": self._agents.session_id,
            }
            drafts.append(self._custom(run, "RunStarted", without_none(value)))
        if run.kind == "workflow":
            data = {"workflow": self._agents.source(run)["agent_name"], "run_id": run.id}
            drafts.append(self._agents.draft(run, "workflow.started", data))
        return drafts

    def _dispatched(self, run: Run, body: AgnoFrame) -> Draft:
        # The source is the containing run, which hands over the work.
        run.dispatched = True
        around = self._agents.around(body)
        task = self._tools.task(around, self._agents.source(run)["agent_id"])
        data = {
            "worker_name": run.name,
            "task": task or string(body.get("step_name")) or "",
            "subrun_id": run.key,
        }
        if around.is_inner:
            data["parent_subrun_id"] = around.key
        draft = self._agents.draft(around, "dispatch.worker", data)
        draft.step_id = run.step_id
        return draft

    def _continued(self, _run: Run, body: AgnoFrame) -> Drafts:
        """Members, steps and the outer run each send one: emit one for a leg."""
        if self._leg == 1:
            return self._unknown(_run, str(body.get("event")), body)
        return self._resume()

    def _resume(self) -> list[Draft]:
        if self._leg == 1 or self._resumed:
            return []
        self._resumed = True
        outer = self._agents.outer
        data = {"upstream_run_id": outer.id} if outer.id else {}
        return [self._agents.draft(outer, "lifecycle.resumed", data)]

    def _workflow_agent_started(self, run: Run, body: AgnoFrame) -> Drafts:
        """Agno sends no RunStarted for the workflow's own agent."""
        agent = self._agents.workflow_agent()
        if agent.dispatched:
            return self._unknown(run, "WorkflowAgentStarted", body)
        agent.dispatched = True
        data = {"worker_name": agent.name, "task": "", "subrun_id": agent.key}
        return [self._agents.draft(run, "dispatch.worker", data)]

    def _workflow_agent_completed(self, _run: Run, body: AgnoFrame) -> Drafts:
        agent = self._agents.workflow_agent()
        return self._finish(agent, "completed", result=body.get("content"))

    # Pauses.

    def _paused(self, run: Run, body: AgnoFrame) -> Drafts:
        """Pause the run if the outer run pauses. If an inner run pauses, the outer run may still
        continue. So only the calls that wait are announced."""
        questions = questions_of_run(body, team=run.kind == "team")
        if not run.is_inner:
            return self._pause(questions, body)
        drafts = self._messages.close(run)
        for question in questions:
            self._tools.pending(self._owner(question, run), question, drafts)
        return drafts

    def _workflow_paused(self, run: Run, body: AgnoFrame) -> Drafts:
        if body.get("status") not in (None, "PAUSED"):
            return self._unknown(run, "WorkflowRunOutput", body)
        return [] if run.is_inner else self._pause(questions_of_workflow(body), body)

    def _pause(self, questions: list[Question], body: AgnoFrame) -> Drafts:
        outer = self._agents.outer
        drafts = [draft for run in self._agents.inner() for draft in self._messages.close(run)]
        drafts += self._messages.close(outer)
        items: dict[str, PauseItem] = {}
        paths: JsonObject = {}
        listed: set[str] = set()
        LimitReached.check(len(questions), MAX_ITEMS, "open questions")
        ids = Ids()
        for question in questions:
            run = self._owner(question, outer)
            call = self._tools.pending(run, question, drafts) if question.tool else None
            if call is not None and call.id in listed:
                # the frame of an agent lists the same call under `tools` and `requirements`
                continue
            # Calls of two members may have the same upstream id. So item ids are made unique.
            item_id = ids.unique(call.upstream_id if call else question.step_id or "step")
            if call is not None:
                listed.add(call.id)
                self._tools.waits(item_id, call)
            items[item_id] = pause_item(item_id, question, call, run)
            paths[item_id] = question.path
        if not items:  # nobody could answer a pause without items
            return [*drafts, *self._fail("the upstream paused and named nothing to decide")]
        self._waits = True
        lists = {str(key): found for key in _SECTIONS if isinstance(found := body.get(key), list)}
        resume = {
            "run_id": outer.id,
            "session_id": self._agents.session_id,
            "kind": outer.kind,
            "items": paths,
            **lists,
        }
        return [*drafts, Pause(list(items.values()), resume, self._agents.source(outer))]

    def _owner(self, question: Question, paused: Run) -> Run:
        return self._agents.known(question.run_id) or paused

    # Model calls.

    def _model_called(self, run: Run, body: AgnoFrame) -> Drafts:
        run.n_calls += 1
        return [self._agents.draft(run, USAGE, usage_of_call(body))]

    def _usage(self, run: Run, body: AgnoFrame) -> list[Draft]:
        found = usage_of_run(run, obj(body.get("metrics")), is_continued=self._leg > run.leg)
        return [self._agents.draft(run, USAGE, data) for data in found]

    # Ends.

    def _completed(self, run: Run, body: AgnoFrame) -> Drafts:
        if run.finished:
            return []
        drafts = self._messages.missing_answer(run, body) + self._messages.close(run)
        drafts += self._usage(run, body)
        answer = answer_of(run, body)
        if run.is_inner:
            workflow = self._workflow_completed(run, body, answer)
            return [*drafts, *workflow, *self._finish(run, "completed", result=body.get("content"))]
        drafts += self._tools.end_waiting(body)
        drafts += self._close_all("cancelled", _OUTER_ENDED)
        if state := body.get("session_state"):
            drafts.append(self._agents.draft(run, "state.snapshot", {"snapshot": state}))
        drafts += self._workflow_completed(run, body, answer)
        return [*drafts, self._end(run, "lifecycle.completed", answer)]

    def _workflow_completed(self, run: Run, body: AgnoFrame, answer: JsonObject) -> list[Draft]:
        if run.kind != "workflow":
            return []
        failures = self._steps.failures(run.id, body.get("step_results"))
        result = {key: answer[key] for key in ("summary", "value") if key in answer}
        data = {"run_id": run.id, "result": result}
        return [
            *self._step_drafts(run, failures),
            self._agents.draft(run, "workflow.completed", data),
        ]

    def _failed(self, run: Run, body: AgnoFrame) -> Drafts:
        message = text(body.get("error")) or text(body.get("content"))
        message = message or "the upstream reported an error without a message"
        if run.is_inner:
            return self._finish(run, "failed", error=message)
        detail = without_none({key: body.get(key) for key in ("error_id", "additional_data")})
        return self._fail(message, string(body.get("error_type")), detail or None)

    def _fail(
        self,
        message: str,
        error_type: str | None = None,
        detail: JsonObject | None = None,
        code: str = "upstream_error",
    ) -> list[Draft]:
        drafts = self._close_all("failed", message)
        outer = self._agents.outer
        if outer.kind == "workflow":
            data = {"run_id": outer.id, "error": {"code": code, "message": message}}
            drafts.append(self._agents.draft(outer, "workflow.failed", data))
        failure = {"error": message, "code": code, "error_type": error_type, "detail": detail}
        return [*drafts, self._end(outer, "lifecycle.failed", without_none(failure))]

    def _cancelled(self, run: Run, _body: AgnoFrame) -> Drafts:
        """Agno 3.1 sends RunCancelled and then RunCompleted."""
        if run.is_inner:
            return self._finish(run, "cancelled", cut=_CANCELLED)
        data = {"reason": "user_stop", "confirmed": True}
        closed = self._close_all("cancelled", _CANCELLED)
        return [*closed, self._end(run, "lifecycle.cancelled", data)]

    def _resume_failed(self, _run: Run, body: AgnoFrame) -> Drafts:
        """For an unknown run, /resume answers 200 and this event only."""
        return self._lost(text(body.get("error")) or "the upstream does not know the run")

    def _lost(self, message: str) -> Drafts:
        data = {"error": message, "code": "upstream_lost"}
        closed = self._close_all("failed", message)
        return [*closed, self._end(self._agents.outer, "lifecycle.failed", data)]

    def _end(self, run: Run, event_type: str, data: JsonObject) -> Draft:
        self._over = True
        return self._agents.draft(run, event_type, data)

    def _finish(
        self,
        run: Run,
        status: str,
        *,
        result: Json = None,
        error: str | None = None,
        cut: str | None = None,
    ) -> list[Draft]:
        """`error` or else `cut` says why the run's open message is incomplete."""
        drafts = self._messages.close(run, error or cut)
        if run.dispatched and not run.finished:
            end = {"subrun_id": run.key, "status": status, "result": result, "error": error}
            drafts.append(self._agents.draft(run, "dispatch.finished", without_none(end)))
        run.finished = True
        run.thoughts.clear()  # only later frames of this run could repeat these thoughts
        return drafts

    def _close_all(self, status: str, reason: str) -> list[Draft]:
        """Begin with the inner runs."""
        inner = self._agents.inner()
        drafts = [draft for run in inner for draft in self._finish(run, status, cut=reason)]
        return drafts + self._messages.close(self._agents.outer, reason)

    # Steps and other events.

    def _step(self, name: str, run: Run, body: AgnoFrame) -> Drafts:
        """Handle an event of a step. The event also shows that the run has resumed, because after a
        rejected gate Agno sends no other event before the next step."""
        run_id = string(body.get("run_id")) or short(run.id)
        return [*self._resume(), *self._step_drafts(run, self._steps.feed(name, run_id, body))]

    def _step_drafts(self, run: Run, step_events: Iterable[steps.StepEvent]) -> Iterator[Draft]:
        source = self._agents.source(run)
        return (
            Draft(kind, data, source, run.subrun, step_id) for kind, data, step_id in step_events
        )

    def _custom_event(self, run: Run, body: AgnoFrame) -> Drafts:
        for key, value in (("name", body.get("name")), ("type", body.get("type"))):
            name = string(value)
            if name and (draft := canonical_draft(name, body, key)):
                return [self._agents.draft(run, draft.type, draft.data)]
        return self._unknown(run, "CustomEvent", body)

    def _unknown(self, run: Run, name: str, body: AgnoFrame) -> Drafts:
        # The class of a custom event may have the name of a canonical type, and the event becomes
        # one of this type if the fields fit. Any other becomes a `custom.event`.
        if name in self._agent.drop:
            return []
        if draft := canonical_draft(name, body, "event"):
            return [self._agents.draft(run, draft.type, draft.data)]
        return [self._custom(run, name, body)]

    def _custom(self, run: Run, name: str, value: Json) -> Draft:
        data = {"protocol": "agno", "name": f"agno.{name}", "value": value}
        return self._agents.draft(run, "custom.event", data)


# The names of events that the decoder ignores, because other events have the same content.
# StepCompleted has the content of StepOutput, and WorkflowPaused contains the pauses of single
# steps.
_REPEATED = (
    "StepOutput",
    "StepPaused",
    "StepExecutorPaused",
    "StepOutputReview",
    "ConditionPaused",
    "RouterPaused",
)

# The names of /resume's frames about the connection itself. The connector handles these frames.
_CONTROL = ("replay", "catch_up", "subscribed", "heartbeat", "stream_expired")


Handler = Callable[[AgnoDecoder, Run, AgnoFrame], Drafts]


def _by_messages(handle: Callable[[Messages, Run, AgnoFrame], Drafts]) -> Handler:
    return lambda decoder, run, body: handle(decoder._messages, run, body)


def _by_tools(handle: Callable[[Tools, Run, AgnoFrame], Drafts]) -> Handler:
    return lambda decoder, run, body: handle(decoder._tools, run, body)


def _by_steps(name: str) -> Handler:
    return lambda decoder, run, body: decoder._step(name, run, body)


def _nothing(_decoder: AgnoDecoder, _run: Run, _body: AgnoFrame) -> Drafts:
    return []


_OF_RUNS: Final[Mapping[str, Handler]] = {
    "RunStarted": AgnoDecoder._started,
    "RunContinued": AgnoDecoder._continued,
    "RunContent": _by_messages(Messages.content),
    "RunContentCompleted": _by_messages(Messages.completed),
    "RunPaused": AgnoDecoder._paused,
    "RunCompleted": AgnoDecoder._completed,
    "RunError": AgnoDecoder._failed,
    "RunCancelled": AgnoDecoder._cancelled,
    "ToolCallStarted": _by_tools(Tools.started),
    "ToolCallCompleted": _by_tools(Tools.completed),
    "ToolCallError": _by_tools(Tools.failed),
    "ReasoningStarted": _by_messages(Messages.reasoning_started),
    "ReasoningStep": _by_messages(Messages.reasoning_step),
    "ReasoningContentDelta": _by_messages(Messages.reasoning_delta),
    "ReasoningCompleted": _by_messages(Messages.reasoning_completed),
    "ModelRequestCompleted": AgnoDecoder._model_called,
}

# Maps the name of each known event to its handler. Any other event becomes a `custom.event`. All
# decoders share this table, because a table of bound methods would take 7 KB for each open run.
_HANDLERS: Final[Mapping[str, Handler]] = {
    **_OF_RUNS,
    # A team's events have the names of an agent's events, with the prefix `Team`.
    **{f"Team{name}": handle for name, handle in _OF_RUNS.items()},
    **{name: _by_steps(name) for name in steps.EVENTS},
    "WorkflowStarted": AgnoDecoder._started,
    "WorkflowPaused": AgnoDecoder._workflow_paused,
    "WorkflowRunOutput": AgnoDecoder._workflow_paused,
    "WorkflowCompleted": AgnoDecoder._completed,
    "WorkflowError": AgnoDecoder._failed,
    "WorkflowCancelled": AgnoDecoder._cancelled,
    "WorkflowAgentStarted": AgnoDecoder._workflow_agent_started,
    "WorkflowAgentCompleted": AgnoDecoder._workflow_agent_completed,
    "StepContinued": AgnoDecoder._continued,
    "StepExecutorContinued": AgnoDecoder._continued,
    "CustomEvent": AgnoDecoder._custom_event,
    "error": AgnoDecoder._resume_failed,
    **dict.fromkeys(_REPEATED, _nothing),
    **dict.fromkeys(_CONTROL, _nothing),
}
