"""Agno's frames to canonical drafts: agents, teams and workflows, of 2.3 and of 3.1.

Who ends the run: only its *outer* run, the first one that starts or continues in a leg without
naming a run around it. Frames without a `run_id` are the outer run's. Everything else is a run
inside it: `dispatch.worker` when it starts, `dispatch.finished` when it ends.

A message ends at RunContentCompleted and also where a tool call starts. Agno says
RunContentCompleted once, at the very end; a message kept open until then would carry text from
before and after the call under one id, and every client that shows messages and calls in their
order would show the answer above the call that it came from.

Drafts share their `source` and `subrun` objects: read them, do not change them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.dialects.agno import steps, values
from penstock.dialects.agno.calls import Call, Calls, tool_args, tool_name
from penstock.dialects.agno.pauses import Need, answered_by_decision, run_needs, workflow_needs
from penstock.dialects.agno.runs import Message, Run, named, parent_id
from penstock.dialects.agno.steps import Steps
from penstock.dialects.agno.values import obj, present, string, text
from penstock.dialects.base import (
    AgentFacts,
    Draft,
    Json,
    JsonObject,
    Pause,
    PauseItem,
    Source,
    Subrun,
)
from penstock.dialects.universal import from_custom
from penstock.sse import Frame

Drafts = list[Draft | Pause]

# Our name for the run of a workflow's own agent, which starts without telling its id.
_WORKFLOW_AGENT = "workflow-agent"

_ROLE = "assistant"


class AgnoDecoder:
    """One run's decoder (see `penstock.dialects.base.Decoder`).

    Message ids are made here (`msg-<leg>-<n>`, thoughts `think-<leg>-<n>`): Agno has none.
    `AgentFacts.drop` leaves out names that would be a `custom.event`; what carries the run's
    course cannot be dropped.
    """

    def __init__(self, agent: AgentFacts) -> None:
        self._agent = agent
        self._leg = 0
        self._made = 0  # ids made in this leg
        self._over = False  # a terminal event was given: nothing follows
        self._waits = False  # this leg ended in a pause
        self._outer_told = False  # this leg named its outer run
        self._resumed = False  # this leg said lifecycle.resumed
        self._session_id: str | None = None
        self._outer = Run(kind=agent.kind)
        self._runs: dict[str, Run] = {}  # by the upstream's run id
        self._calls = Calls()
        self._steps = Steps()
        self._tasks: list[tuple[str, str | None, str]] = []  # team's run key, member id, task
        self._waiting: dict[str, str] = {}  # item id to call id

    def open(self, leg: int) -> Sequence[Draft | Pause]:
        """A leg begins: its own ids, its own outer run."""
        self._leg = leg
        self._made = 0
        self._waits = self._outer_told = self._resumed = False
        return []

    def decided(self, items: Mapping[str, JsonObject]) -> Sequence[Draft]:
        """Results of the calls of which Agno says nothing any more.

        A refused call never runs and is never mentioned. The answer to an external call, to a
        question with options, and to `get_user_input` is the call's result: Agno gives it to the
        model without a tool event. Other calls that waited for input run, and tell it.
        """
        drafts: list[Draft] = []
        for item_id, decision in items.items():
            call = self._call(self._waiting.get(item_id))
            if call is None:
                continue  # a workflow's gate, or nothing that waits
            call.decision = string(decision.get("decision"))
            call.value = decision.get("value")
            if call.decision == "reject":
                drafts.append(self._refused(call, string(decision.get("note"))))
            elif call.value is not None and answered_by_decision(call.kind, call.tool):
                drafts.append(self._answered(call))
        self._waiting = {}
        return drafts

    def feed(self, frame: Frame) -> Sequence[Draft | Pause]:
        """One frame; after a terminal event or a pause nothing more is said."""
        if self._over or self._waits:
            return []
        name = frame.event
        try:
            body = values.loads(frame.data)
        except ValueError:
            return self._unreadable(name, frame.data.decode("utf-8", "replace"))
        if not isinstance(body, dict):
            return self._unreadable(name, body)
        if name is None or name == "message":  # Agno's own fallback for an event without a name
            name = string(body.get("event")) or "message"
        run = self._run_of(name, body)
        handle = _HANDLERS.get(name)
        return handle(self, run, body) if handle else self._unknown(run, name, body)

    def end(self) -> Sequence[Draft | Pause]:
        """The response ended: if the outer run has neither ended nor paused, it is lost."""
        if self._over or self._waits:
            return []
        return self._lost("the upstream's stream ended without a final event")

    def abort(self) -> Sequence[Draft | Pause]:
        """The response was cut: close what is open, and leave the reason to the caller."""
        if self._over or self._waits:
            return []
        return self._close_all("failed")

    def snapshot(self) -> JsonObject:
        """The state between legs."""
        inner = {run_id: run.dump() for run_id, run in self._runs.items() if run.inner}
        return {
            "over": self._over,
            "session_id": self._session_id,
            "outer": self._outer.dump(),
            "runs": inner,
            "calls": self._calls.dump(),
            "steps": self._steps.dump(),
            "tasks": [list(task) for task in self._tasks],
            "waiting": dict(self._waiting),
        }

    def restore(self, state: JsonObject) -> None:
        """Goes on from a snapshot; `open` comes next."""
        self._over = state["over"]
        self._session_id = state["session_id"]
        self._outer = Run.load(state["outer"])
        self._runs = {run_id: Run.load(run) for run_id, run in state["runs"].items()}
        if self._outer.id:
            self._runs[self._outer.id] = self._outer
        self._calls = Calls.load(state["calls"])
        self._steps = Steps.load(state["steps"])
        self._tasks = [(run, member, task) for run, member, task in state["tasks"]]
        self._waiting = dict(state["waiting"])

    # --- which run a frame is about

    def _run_of(self, name: str, body: JsonObject) -> Run:
        run_id = string(body.get("run_id"))
        run = self._runs.get(run_id) if run_id else self._outer
        if run is None:
            run = self._new_run(str(run_id), name, body)
        elif run is self._outer and name in _BEGIN and run_id:
            self._outer_told = True
        if run.source is None:
            self._introduce(run, body)
        if run is self._outer and self._session_id is None:
            self._session_id = string(body.get("session_id"))
        return run

    def _new_run(self, run_id: str, name: str, body: JsonObject) -> Run:
        outer = self._outer
        begins = name in _BEGIN
        if not self._is_inner(body) and (not outer.id or (begins and not self._outer_told)):
            # a continue may come back under a new id (Agno 3.1 forks): the outer run it stays
            self._runs.pop(outer.id, None)
            outer.id = run_id
            self._outer_told = begins
            self._runs[run_id] = outer
            return outer
        agent = self._runs.get(_WORKFLOW_AGENT)
        if agent is not None and body.get("workflow_agent") is True:
            self._runs[run_id] = agent
            return agent
        return self._inner_run(run_id, run_id, body)

    def _is_inner(self, body: JsonObject) -> bool:
        if parent_id(body) is not None:
            return True
        depth = body.get("nested_depth")
        if isinstance(depth, int) and depth > 0:
            return True
        about = named(body)
        return about is not None and _RANK[about[0]] < _RANK.get(self._agent.kind, 0)

    def _inner_run(self, key: str, run_id: str, body: JsonObject) -> Run:
        run = self._runs[run_id] = Run(key=key, id=run_id)
        self._introduce(run, body)
        if step_id := string(body.get("step_id")):
            run.step_id = self._steps.id_of(step_id)
        return run

    def _introduce(self, run: Run, body: JsonObject) -> None:
        """Who speaks in the run, once a frame says it; until then what the configuration says."""
        about = named(body)
        if about is None:
            if not run.inner:
                return
            about = "agent", run.id, run.id
        run.kind, agent_id, run.name = about
        around = self._around(body) if run.inner else None
        run.source = Source(
            agent_id=agent_id,
            agent_type="worker" if run.inner else run.kind,
            agent_name=run.name,
            team_name=around.name if around and around.kind == "team" else None,
        )
        if around is not None:
            run.subrun = Subrun(id=run.key, name=run.name)
            if around.inner:
                run.subrun["parent_id"] = around.key

    def _around(self, body: JsonObject) -> Run:
        return self._runs.get(parent_id(body) or "", self._outer)

    def _source(self, run: Run) -> Source:
        if run.source is not None:
            return run.source
        agent = self._agent
        return Source(
            agent_id=agent.id,
            agent_type=agent.kind,
            agent_name=agent.name or agent.id,
            team_name=None,
        )

    def _draft(self, run: Run, event_type: str, data: JsonObject) -> Draft:
        return Draft(event_type, data, run.source or self._source(run), run.subrun, run.step_id)

    # --- beginnings

    def _started(self, run: Run, body: JsonObject) -> Drafts:
        drafts: Drafts = []
        if run.inner:
            if run.finished:  # the same run again: a new attempt under a name of its own
                run = self._again(run, body)
            drafts.append(self._dispatched(run, body))
        else:
            value = {
                "upstream_run_id": run.id,
                "kind": run.kind,
                "model": string(body.get("model")),
                "model_provider": string(body.get("model_provider")),
                "session_id": self._session_id,
            }
            drafts.append(self._custom(run, "RunStarted", present(value)))
        if run.kind == "workflow":
            data = {"workflow": run.name or self._source(run)["agent_name"], "run_id": run.id}
            drafts.append(self._draft(run, "workflow.started", data))
        return drafts

    def _again(self, run: Run, body: JsonObject) -> Run:
        attempt = 2
        while any(other.key == f"{run.id}#{attempt}" for other in self._runs.values()):
            attempt += 1
        return self._inner_run(f"{run.id}#{attempt}", run.id, body)

    def _dispatched(self, run: Run, body: JsonObject) -> Draft:
        """Said by whoever hands the work over, so it has the source of the run around."""
        around = self._around(body)
        data = {
            "worker_name": run.name,
            "task": self._task(around, run, body),
            "subrun_id": run.key,
        }
        if around.inner:
            data["parent_subrun_id"] = around.key
        draft = self._draft(around, "dispatch.worker", data)
        draft.step_id = run.step_id
        return draft

    def _task(self, around: Run, run: Run, body: JsonObject) -> str:
        """What the team's call to its member said, or the workflow's step."""
        member = self._source(run)["agent_id"]
        for task in self._tasks:
            team, wanted, words = task
            if team == around.key and wanted in (member, None):
                if wanted is not None:  # a task for every member stays
                    self._tasks.remove(task)
                return words
        return string(body.get("step_name")) or ""

    def _continued(self, run: Run, body: JsonObject) -> Drafts:
        """Members, steps and the outer run each say that they go on: it is said once."""
        if self._leg == 1:
            return self._unknown(run, str(body.get("event")), body)
        if self._resumed:
            return []
        self._resumed = True
        upstream_id = self._outer.id or parent_id(body)
        return [
            self._draft(self._outer, "lifecycle.resumed", present({"upstream_run_id": upstream_id}))
        ]

    def _workflow_agent_started(self, run: Run, body: JsonObject) -> Drafts:
        agent = self._runs[_WORKFLOW_AGENT] = Run(_WORKFLOW_AGENT, _WORKFLOW_AGENT)
        agent.name = self._source(run)["agent_name"]
        agent.source = {**self._source(run), "agent_type": "worker"}
        agent.subrun = Subrun(id=agent.key, name=agent.name)
        data = {"worker_name": agent.name, "task": "", "subrun_id": agent.key}
        return [self._draft(run, "dispatch.worker", data)]

    def _workflow_agent_completed(self, run: Run, body: JsonObject) -> Drafts:
        agent = self._runs.get(_WORKFLOW_AGENT, run)
        return self._finish(agent, "completed", result=body.get("content")) if agent.inner else []

    # --- what a run says

    def _content(self, run: Run, body: JsonObject) -> Drafts:
        drafts: Drafts = []
        content = body.get("content")
        thought = body.get("reasoning_content")
        if thought and isinstance(thought, str):
            run.thoughts.append(thought)
            drafts.append(self._thought(run, thought))
        if content and isinstance(content, str):
            message = run.message or self._begin_message(run, drafts)
            message.parts.append(content)
            data = {"content": content, "message_id": message.id}
            drafts.append(self._draft(run, "llm.stream", data))
        elif content is not None and content != "":
            message = run.message or self._begin_message(run, drafts)
            message.value = content
            message.content_type = string(body.get("content_type"))
        if run.message is not None and (cited := values.citations(body.get("citations"))):
            run.message.citations = cited
        return drafts

    def _begin_message(self, run: Run, drafts: Drafts) -> Message:
        drafts += self._end_thoughts(run)
        run.message = Message(self._id("msg"))
        run.spoke = True
        data = {"message_id": run.message.id, "role": _ROLE}
        drafts.append(self._draft(run, "llm.message_started", data))
        return run.message

    def _end_message(self, run: Run) -> Drafts:
        message = run.message
        if message is None:
            return []
        run.message = None
        run.last_text = "".join(message.parts) or text(message.value)
        data = {
            "message_id": message.id,
            "role": _ROLE,
            "content": run.last_text,
            "value": message.value,
            "content_type": message.content_type,
            "citations": message.citations,
        }
        return [self._draft(run, "llm.message_completed", present(data))]

    def _content_completed(self, run: Run, _body: JsonObject) -> Drafts:
        return self._close(run)

    def _reasoning_started(self, run: Run, _body: JsonObject) -> Drafts:
        run.announced = True
        return []

    def _reasoning_delta(self, run: Run, body: JsonObject) -> Drafts:
        thought = string(body.get("reasoning_content"))
        if thought is None:
            return []
        run.thoughts.append(thought)
        return [self._thought(run, thought)]

    def _reasoning_step(self, run: Run, body: JsonObject) -> Drafts:
        """`reasoning_content` repeats all thoughts of the run: only what is new is said."""
        step = obj(body.get("content"))
        thought = string(body.get("reasoning_content"))
        if thought is None:
            thought = string(step.get("reasoning"))
        else:
            known = "".join(run.thoughts)
            run.thoughts = [thought]
            thought = thought.removeprefix(known)
        return [self._thought(run, thought, string(step.get("title")))] if thought else []

    def _reasoning_completed(self, run: Run, _body: JsonObject) -> Drafts:
        return self._end_thoughts(run)

    def _thought(self, run: Run, thought: str, title: str | None = None) -> Draft:
        if run.reasoning_id is None:
            run.reasoning_id = self._id("think")
        data = {"thought": thought, "reasoning_id": run.reasoning_id}
        if title is not None:
            data["title"] = title
        return self._draft(run, "llm.reasoning", data)

    def _end_thoughts(self, run: Run) -> Drafts:
        """The end of a train of thought has no words of its own."""
        run.announced = False
        if run.reasoning_id is None:
            return []
        data = {"thought": "", "reasoning_id": run.reasoning_id, "final": True}
        run.reasoning_id = None
        return [self._draft(run, "llm.reasoning", data)]

    def _id(self, prefix: str) -> str:
        self._made += 1
        return f"{prefix}-{self._leg}-{self._made}"

    def _close(self, run: Run) -> Drafts:
        return self._end_thoughts(run) + self._end_message(run)

    # --- tools

    def _tool_started(self, run: Run, body: JsonObject) -> Drafts:
        tool = obj(body.get("tool"))
        drafts = self._end_message(run)
        if not run.announced:
            drafts += self._end_thoughts(run)
        call = self._calls.find(run.key, tool, pending=True)
        if call is not None:
            call.pending = False
            data = {"tool_call_id": call.id, "status": "running"}
            return [*drafts, self._draft(run, "llm.tool_progress", data)]
        call = self._calls.add(run.key, tool, pending=False)
        self._remember_task(run, call)
        return [*drafts, self._asked(run, call, tool)]

    def _tool_completed(self, run: Run, body: JsonObject) -> Drafts:
        tool = obj(body.get("tool"))
        failed = tool.get("tool_call_error") is True
        return self._tool_ended(run, tool, text(tool.get("result")) if failed else None)

    def _tool_error(self, run: Run, body: JsonObject) -> Drafts:
        tool = obj(body.get("tool"))
        error = string(body.get("error")) or text(tool.get("result")) or "the tool failed"
        return self._tool_ended(run, tool, error)

    def _tool_ended(self, run: Run, tool: JsonObject, error: str | None) -> Drafts:
        call = self._calls.find(run.key, tool, pending=False)
        call = call or self._calls.find(run.key, tool, pending=True)
        drafts: Drafts = []
        if call is None:
            if error is not None and self._calls.told_already(run.key, tool):
                return []
            # its start was not seen (a stream read from the middle), and a result needs a call
            call = self._calls.add(run.key, tool, pending=False)
            drafts.append(self._asked(run, call, tool))
        self._calls.close(call, failed=error is not None)
        data = {
            "tool": call.tool,
            "result": values.tool_value(tool.get("result")),
            "tool_call_id": call.id,
            "outcome": "ok" if error is None else "error",
        }
        if error is not None:
            data["error"] = error or "the tool failed"
        duration_s = values.number(obj(tool.get("metrics")).get("duration"))
        if duration_s is not None:
            data["duration_s"] = duration_s
        return [*drafts, self._draft(run, "llm.tool_result", data)]

    def _asked(self, run: Run, call: Call, tool: JsonObject) -> Draft:
        data: JsonObject = {"tool": call.tool, "args": call.args, "tool_call_id": call.id}
        if call.pending:
            data["pending"] = True
        raw = tool.get("tool_args")
        if raw is not None and not isinstance(raw, dict):
            data["args_text"] = text(raw)
        return self._draft(run, "llm.tool_call", data)

    def _remember_task(self, run: Run, call: Call) -> None:
        """A team's call to a member comes before the member's run, which says no task."""
        task = string(call.args.get("task"))
        if run.kind == "team" and task is not None:
            self._tasks.append((run.key, string(call.args.get("member_id")), task))

    def _call(self, call_id: str | None) -> Call | None:
        return next((call for call in self._calls.open if call.id == call_id), None)

    def _refused(self, call: Call, note: str | None) -> Draft:
        return self._settled(call, None, "rejected", note or "rejected")

    def _answered(self, call: Call) -> Draft:
        return self._settled(call, values.tool_value(call.value), "ok", None)

    def _settled(self, call: Call, result: Json, outcome: str, error: str | None) -> Draft:
        self._calls.close(call)
        data = {
            "tool": call.tool,
            "result": result,
            "tool_call_id": call.id,
            "outcome": outcome,
        }
        if error is not None:
            data["error"] = error
        return self._draft(self._run_by_key(call.run), "llm.tool_result", data)

    def _settle_pending(self) -> Drafts:
        """The run completed over calls that still waited: Agno leaves them out without a word.

        2.3 lets a team go on when a member pauses; both versions skip calls that a continue did
        not name as they want it.
        """
        drafts: Drafts = []
        for call in [call for call in self._calls.open if call.pending]:
            if call.decision is None:
                drafts.append(self._settled(call, None, "expired", "the run ended undecided"))
            elif call.kind == "input" and call.value is not None:
                drafts.append(self._answered(call))
            else:
                drafts.append(
                    self._settled(call, None, "error", "approved, but the upstream never ran it")
                )
        return drafts

    def _run_by_key(self, key: str) -> Run:
        return next((run for run in self._runs.values() if run.key == key), self._outer)

    # --- pauses

    def _run_paused(self, run: Run, body: JsonObject) -> Drafts:
        """An inner run's pause announces its calls; that the run waits, its outermost says."""
        needs = run_needs(body, team=run.kind == "team")
        drafts = self._close(run)
        if run.inner:
            for need in needs:
                self._pending_call(run, need, drafts)
            return drafts
        return self._pause(drafts, needs, body)

    def _workflow_paused(self, run: Run, body: JsonObject) -> Drafts:
        if body.get("status") not in (None, "PAUSED"):  # WorkflowRunOutput comes at other ends too
            return self._unknown(run, "WorkflowRunOutput", body)
        if run.inner:
            return []
        return self._pause([], workflow_needs(body), body)

    def _pause(self, drafts: Drafts, needs: list[Need], body: JsonObject) -> Drafts:
        outer = self._outer
        for run in [*self._runs.values(), outer]:
            drafts += self._close(run)
        items: dict[str, PauseItem] = {}
        paths: JsonObject = {}
        seen: set[str] = set()
        for need in needs:
            run = self._runs.get(need.run_id or "", outer)
            call = self._pending_call(run, need, drafts) if need.tool else None
            if call is not None and call.id in seen:
                continue  # an agent lists a call among its tools and among its requirements
            item_id = call.upstream_id if call else str(need.step_id)
            while item_id in items:
                item_id = f"{item_id}#2" if call is None or call.id in items else call.id
            if call is not None:
                seen.add(call.id)
                self._waiting[item_id] = call.id
            items[item_id] = self._item(item_id, need, call, run)
            paths[item_id] = need.path
        if not items:
            return [*drafts, *self._fail("the upstream paused without saying what for", {})]
        self._waits = True
        resume = {
            "run_id": outer.id,
            "session_id": self._session_id,
            "kind": outer.kind,
            "items": paths,
            **{
                section: body[section]
                for section in ("tools", "requirements", "step_requirements")
                if isinstance(body.get(section), list)
            },
        }
        return [*drafts, Pause(list(items.values()), resume, self._source(outer))]

    def _pending_call(self, run: Run, need: Need, drafts: Drafts) -> Call:
        tool = need.tool or {}
        call = self._calls.find(run.key, tool)
        if call is None:
            call = self._calls.add(run.key, tool, pending=True)
            drafts.append(self._asked(run, call, tool))
        call.pending, call.kind, call.decision = True, need.kind, None
        return call

    def _item(self, item_id: str, need: Need, call: Call | None, run: Run) -> PauseItem:
        subrun = run.subrun
        if need.run_id and not run.inner and need.run_id != run.id:  # a member never heard of
            subrun = Subrun(id=need.run_id, name=need.run_name or need.run_id)
        return PauseItem(
            item_id=item_id,
            kind=need.kind,
            tool_call_id=call.id if call else None,
            tool=tool_name(need.tool) if need.tool else None,
            args=tool_args(need.tool) if need.tool else None,
            description=need.description,
            input_schema=need.input_schema,
            options=need.options,
            # Agno runs a confirmed call with whatever arguments the continue carries
            editable=need.kind == "confirmation" and call is not None,
            subrun=subrun,
        )

    def _told_by_workflow(self, _run: Run, _body: JsonObject) -> Drafts:
        """Pauses of single steps: WorkflowPaused follows and has all that they say, and more."""
        return []

    # --- ends

    def _completed(self, run: Run, body: JsonObject) -> Drafts:
        if run.inner and run.finished:
            return []
        drafts: Drafts = []
        content = body.get("content")
        if not run.spoke and run.kind != "workflow":
            # what was kept in a database comes back without its RunContent
            said = {key: body.get(key) for key in ("content", "content_type", "citations")}
            drafts += self._content(run, said)
        drafts += self._close(run)
        workflow = self._workflow_completed(run, body) if run.kind == "workflow" else []
        if run.inner:
            return [*drafts, *workflow, *self._finish(run, "completed", result=content)]
        drafts += self._settle_pending()
        drafts += self._close_all("cancelled")
        if state := body.get("session_state"):
            drafts.append(self._draft(run, "state.snapshot", {"snapshot": state}))
        self._over = True
        return [*drafts, *workflow, self._draft(run, "lifecycle.completed", _answer(run, body))]

    def _workflow_completed(self, run: Run, body: JsonObject) -> Drafts:
        failures = self._steps.failures(run.id, body.get("step_results"))
        answer = _answer(run, body)
        result = {key: answer[key] for key in ("summary", "value") if key in answer}
        data = {"run_id": run.id, "result": result}
        return [*self._said(run, failures), self._draft(run, "workflow.completed", data)]

    def _failed(self, run: Run, body: JsonObject) -> Drafts:
        words = text(body.get("error")) or text(body.get("content"))
        words = words or "the upstream reported an error without words"
        if run.inner:
            return [] if run.finished else self._finish(run, "failed", error=words)
        detail = present({key: body.get(key) for key in ("error_id", "additional_data")})
        error_type = string(body.get("error_type"))
        return self._fail(words, present({"error_type": error_type, "detail": detail or None}))

    def _fail(self, words: str, more: JsonObject) -> Drafts:
        drafts = self._close_all("failed")
        outer = self._outer
        if outer.kind == "workflow":
            error = {"code": "upstream_error", "message": words}
            data = {"run_id": outer.id, "error": error}
            drafts.append(self._draft(outer, "workflow.failed", data))
        self._over = True
        data = {"error": words, "code": "upstream_error", **more}
        return [*drafts, self._draft(outer, "lifecycle.failed", data)]

    def _cancelled(self, run: Run, _body: JsonObject) -> Drafts:
        """Agno says RunCompleted after it, too: the first end counts."""
        if run.inner:
            return [] if run.finished else self._finish(run, "cancelled")
        drafts = self._close_all("cancelled")
        self._over = True
        data = {"reason": "user_stop", "confirmed": True}
        return [*drafts, self._draft(run, "lifecycle.cancelled", data)]

    def _resume_failed(self, _run: Run, body: JsonObject) -> Drafts:
        """/resume answers with this when it does not know the run (any more)."""
        return self._lost(text(body.get("error")) or "the upstream does not know the run")

    def _lost(self, words: str) -> Drafts:
        drafts = self._close_all("failed")
        self._over = True
        data = {"error": words, "code": "upstream_lost"}
        return [*drafts, self._draft(self._outer, "lifecycle.failed", data)]

    def _finish(
        self, run: Run, status: str, *, result: Json = None, error: str | None = None
    ) -> Drafts:
        drafts = self._close(run)
        run.finished = True
        data = present({"subrun_id": run.key, "status": status, "result": result, "error": error})
        return [*drafts, self._draft(run, "dispatch.finished", data)]

    def _close_all(self, status: str) -> Drafts:
        """Everything that is open, the inner runs before the outer."""
        drafts: Drafts = []
        for run in {id(run): run for run in self._runs.values() if run.inner}.values():
            if not run.finished:
                drafts += self._finish(run, status)
        return drafts + self._close(self._outer)

    # --- steps and the rest

    def _said(self, run: Run, said: Iterable[steps.Said]) -> Drafts:
        source = self._source(run)
        return [Draft(kind, data, source, run.subrun, step_id) for kind, data, step_id in said]

    def _control(self, _run: Run, _body: JsonObject) -> Drafts:
        """Frames of /resume about the connection itself: the connector's own matter."""
        return []

    def _step_output(self, _run: Run, _body: JsonObject) -> Drafts:
        """StepCompleted repeats it."""
        return []

    def _custom_event(self, run: Run, body: JsonObject) -> Drafts:
        """A tool's own event, with whatever keys its class has beside the common ones."""
        for key in ("name", "type"):
            if name := string(body.get(key)):
                for value in _custom_values(body, key):
                    draft = from_custom(name, value)
                    if draft is not None:
                        return [self._own(run, draft)]
        return self._unknown(run, "CustomEvent", body)

    def _unknown(self, run: Run, name: str, body: JsonObject) -> Drafts:
        """An event that we have no word for, unless it is named by one (a class may be)."""
        if name in self._agent.drop:
            return []
        for value in _custom_values(body, "event"):
            draft = from_custom(name, value)
            if draft is not None:
                return [self._own(run, draft)]
        return [self._custom(run, name, body)]

    def _unreadable(self, name: str | None, value: Json) -> Drafts:
        return [self._custom(self._outer, name or "message", value)]

    def _own(self, run: Run, draft: Draft) -> Draft:
        return self._draft(run, draft.type, draft.data)

    def _custom(self, run: Run, name: str, value: Json) -> Draft:
        data = {"protocol": "agno", "name": f"agno.{name}", "value": value}
        return self._draft(run, "custom.event", data)


# Keys that every frame may have; in a CustomEvent the others are its value.
_COMMON = frozenset(
    """created_at event event_index agent_id agent_name team_id team_name run_id parent_run_id
    session_id workflow_id workflow_name workflow_run_id step_id step_name step_index
    parent_step_id nested_depth tools""".split()
)

_RANK = {"agent": 0, "team": 1, "workflow": 2}

_BEGIN = frozenset(
    {
        "RunStarted",
        "TeamRunStarted",
        "WorkflowStarted",
        "WorkflowAgentStarted",
        "RunContinued",
        "TeamRunContinued",
    }
)


def _custom_values(body: JsonObject, name_key: str) -> Iterable[Json]:
    """Where a custom event may carry its value: under a key, or all its own keys."""
    yield from (
        body[key] for key in ("value", "payload", "data") if isinstance(body.get(key), dict)
    )
    yield {key: item for key, item in body.items() if key not in _COMMON and key != name_key}


def _answer(run: Run, body: JsonObject) -> JsonObject:
    """The data of `lifecycle.completed`."""
    content = body.get("content")
    structured = content is not None and not isinstance(content, str)
    content_type = string(body.get("content_type"))
    metrics = obj(body.get("metrics"))
    return present(
        {
            "summary": text(content) or run.last_text,
            "value": content if structured else None,
            "content_type": content_type if content_type != "str" else None,
            "usage": values.usage(metrics),
            "metrics": values.other_metrics(metrics),
        }
    )


Handler = Callable[[AgnoDecoder, Run, JsonObject], Drafts]


def _steps_handler(name: str) -> Handler:
    def handle(decoder: AgnoDecoder, run: Run, body: JsonObject) -> Drafts:
        run_id = string(body.get("run_id")) or run.id
        return decoder._said(run, decoder._steps.feed(name, run_id, body))

    return handle


# A team says the same as an agent, with the prefix `Team`.
_RUN_HANDLERS: dict[str, Handler] = {
    "RunStarted": AgnoDecoder._started,
    "RunContinued": AgnoDecoder._continued,
    "RunContent": AgnoDecoder._content,
    "RunContentCompleted": AgnoDecoder._content_completed,
    "RunPaused": AgnoDecoder._run_paused,
    "RunCompleted": AgnoDecoder._completed,
    "RunError": AgnoDecoder._failed,
    "RunCancelled": AgnoDecoder._cancelled,
    "ToolCallStarted": AgnoDecoder._tool_started,
    "ToolCallCompleted": AgnoDecoder._tool_completed,
    "ToolCallError": AgnoDecoder._tool_error,
    "ReasoningStarted": AgnoDecoder._reasoning_started,
    "ReasoningStep": AgnoDecoder._reasoning_step,
    "ReasoningContentDelta": AgnoDecoder._reasoning_delta,
    "ReasoningCompleted": AgnoDecoder._reasoning_completed,
}

# Every event that means something to us; all others become `custom.event`.
_HANDLERS: dict[str, Handler] = {
    **_RUN_HANDLERS,
    **{f"Team{name}": handle for name, handle in _RUN_HANDLERS.items()},
    **{name: _steps_handler(name) for name in steps.EVENTS},
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
    "StepPaused": AgnoDecoder._told_by_workflow,
    "StepExecutorPaused": AgnoDecoder._told_by_workflow,
    "StepOutputReview": AgnoDecoder._told_by_workflow,
    "ConditionPaused": AgnoDecoder._told_by_workflow,
    "RouterPaused": AgnoDecoder._told_by_workflow,
    "StepOutput": AgnoDecoder._step_output,
    "CustomEvent": AgnoDecoder._custom_event,
    "replay": AgnoDecoder._control,
    "catch_up": AgnoDecoder._control,
    "subscribed": AgnoDecoder._control,
    "heartbeat": AgnoDecoder._control,
    "stream_expired": AgnoDecoder._control,
    "error": AgnoDecoder._resume_failed,
}
