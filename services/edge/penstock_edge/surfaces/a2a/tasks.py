"""Sends, reads, lists, cancels and subscribes to tasks, for both bindings of A2A."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import datetime
from functools import partial
from math import inf
from typing import Any
from uuid import uuid4

import orjson
from starlette.responses import Response
from starlette.types import ASGIApp

from penstock import sse
from penstock.bus.records.runs import RunRecord
from penstock.bus.subjects import is_run_id
from penstock.dialects import a2a
from penstock.runs.pushes import request_pushes
from penstock.runs.start import Start
from penstock.settings import WorkflowAgent
from penstock.web.auth import require
from penstock.web.problems import Problem
from penstock_edge.runs.records import is_workflow, run_of
from penstock_edge.sources.read_run import Allowance, request_allowance
from penstock_edge.stream.responses.event_stream import EventStream, Prefaced
from penstock_edge.stream.responses.pages import NO_END
from penstock_edge.stream.responses.single_body import SingleBody
from penstock_edge.surfaces import legs
from penstock_edge.surfaces.a2a.request import (
    AnyRequest,
    ConfigRequest,
    Decision,
    ListRequest,
    PushNotification,
    SendRequest,
    TaskRequest,
    refusal,
    shown_push,
)
from penstock_edge.surfaces.a2a.views import STATES, Call, task_of_record
from penstock_edge.surfaces.bodies import validated, workflow_input
from penstock_edge.surfaces.errors import shortened
from penstock_edge.surfaces.query import cursor_of, when_busy_of
from penstock_edge.surfaces.surface import Handlers
from penstock_edge.views.cursor import LAST_FRAME, Cursor

JsonObject = dict[str, Any]
WAITS = (
    "This task waits for a decision, and a text decides nothing. Send a data part with "
    "approval_id, digest and decision (approve or reject)."
)


class Tasks(Handlers):
    """What A2A's methods do, in both bindings."""

    async def send(self, call: Call, asked: SendRequest, *, stream: bool = False) -> ASGIApp:
        """With `stream`, answer with the stream of the leg; otherwise with the task, when the leg
        has ended, or at once if the client asks for it."""
        edge, configuration = self._edge, asked.configuration
        if configuration.push_notification_config:
            raise no_push()
        at_once = configuration.return_immediately or not configuration.blocking
        if stream or not at_once:
            edge.streams.require_room(call.request.scope)
        values, history = asked.message.values(), configuration.history_length
        if asked.message.task_id is not None:
            return await self._answer(call, asked, values, stream=stream, at_once=at_once)
        record, leg = await self._start(call, asked, values)
        if stream:
            return await edge.stream(leg.view(call.form()), leg.position, call.who)
        if at_once:
            return call.answer(call.response(task_of_record(record)))
        return await self._whole(call, leg, history)

    async def _start(
        self, call: Call, asked: SendRequest, values: list[Any]
    ) -> tuple[RunRecord, legs.Leg]:
        require(call.who, "start")
        edge, agent, message = self._edge, call.agent, asked.message
        config = asked.configuration.task_push_notification_config
        given = None
        if values and not isinstance(agent, WorkflowAgent):
            text = "message.parts: a data part decides an approval, and then names the task"
            raise Problem(422, text)
        if values:
            given = workflow_input(agent, values[0], "message", "parts")
        elif not message.text.strip():
            raise Problem(422, "message.parts: must have a text")
        content = orjson.dumps([message.text, given], option=orjson.OPT_SORT_KEYS)
        # With the extension, a message with the same id and content is one that was sent again.
        same = hashlib.sha256(content).hexdigest() if call.extended else uuid4().hex
        key = [a2a.CHANNEL, message.message_id, agent.id, message.context_id, same]
        start = Start(
            agent,
            message.text,
            message.context_id,
            call.who.run_user(call.who.user_id),
            input=given,
            key=orjson.dumps(key).decode(),
            request=content,
            when_busy=when_busy_of(call.request),
        )
        if config is not None:
            require(call.who, "automate")
            push = partial(request_pushes, edge.bus, call.who, add=config.push())
            start = replace(start, prepare=push)
        started, leg = await legs.first_leg(edge, start)
        return started.record, leg

    async def _answer(
        self, call: Call, asked: SendRequest, values: list[Any], *, stream: bool, at_once: bool
    ) -> ASGIApp:
        message, history = asked.message, asked.configuration.history_length
        record = await self._run(call, message.task_id or "")
        if message.context_id not in (None, record.session_id):
            raise Problem(422, "message.contextId: the task is of another context")
        found, last = await self._read(call, record)
        state = found.state
        if state in a2a.ENDED:
            raise refusal("UNSUPPORTED_OPERATION", f"task {record.run_id} has ended")
        if (config := asked.configuration.task_push_notification_config) is not None:
            await self.add_push(call, config.model_copy(update={"task_id": record.run_id}))
        if values:
            require(call.who, "decide")
            leg = await self._decide(call, record, values)
        elif state in a2a.INTERRUPTED:
            return self._reminder(call, found.task(history=history), stream=stream)
        else:
            text = "the agent still works on the task; begin a new task in its context"
            raise refusal("UNSUPPORTED_OPERATION", text)
        if stream:
            return await self._follow(call, record, found, last, leg)
        if at_once:
            return await self._shown(call, record, history)
        return await self._whole(call, leg, history)

    async def _decide(self, call: Call, record: RunRecord, values: list[Any]) -> legs.Leg:
        edge, who = self._edge, call.who
        parts = [validated(Decision, value, "message", "parts") for value in values]
        sent = [answer for part in parts for answer in part.answers()]
        session_id = record.session_id
        reply = await legs.reply_of(edge.bus, who, call.agent, session_id, "message.parts", sent)
        leg = await legs.next_leg(edge, reply)
        if leg.run_id != record.run_id:
            raise Problem(422, "message.parts: the approvals are of another task of the context")
        await legs.decide(edge, who, a2a.CHANNEL, reply, user_id=who.user_id)
        return leg

    def _reminder(self, call: Call, task: JsonObject, *, stream: bool) -> ASGIApp:
        status = task["status"]
        asked = status.get("message") or a2a.message(task["id"], task["contextId"], task["id"])
        reminder = {**asked, "parts": [{"text": WAITS}, *asked["parts"]]}
        shown = {**task, "status": {**status, "message": reminder}}
        if not stream:
            return call.answer(call.response(shown))
        return Response(call.frame(shown), 200, {**sse.HEADERS, **call.headers})

    async def get(self, call: Call, asked: TaskRequest) -> ASGIApp:
        return await self._shown(call, await self._run(call, asked.id), asked.history_length)

    async def list(self, call: Call, asked: ListRequest) -> ASGIApp:
        edge = self._edge
        before = asked.page_token
        if before is not None and not is_run_id(before):
            raise Problem(422, "pageToken: must be nextPageToken of an earlier page")
        wanted = {"agent": call.agent.id, "session_id": asked.context_id}
        if asked.status is not None:
            names = {state: status for status, state in STATES.items()}
            wanted["status"] = names.get(asked.status, "")
        async with edge.turns.of(call.who.tenant_user):
            runs, more = await edge.run_list.page(
                call.who.owners,
                call.who.may_see_runs_of,
                {name: value for name, value in wanted.items() if value is not None},
                before,
                asked.page_size,
            )
        records = [RunRecord.model_validate(run) for run in runs]
        token = records[-1].run_id if more else ""
        since = asked.status_timestamp_after
        shown = [
            each
            for each in sorted(records, key=lambda each: each.updated_at, reverse=True)
            if since is None or datetime.fromisoformat(each.updated_at) > since
        ]
        allowance = request_allowance()
        tasks = [task_of_record(each) for each in shown]
        if asked.include_artifacts:
            read = [await self._read(call, each, allowance=allowance) for each in shown]
            tasks = [found.task(history=asked.history_length) for found, _ in read]
        sizes = {"pageSize": asked.page_size, "totalSize": len(tasks) + more}
        return call.answer({"tasks": tasks, "nextPageToken": token, **sizes})

    async def cancel(self, call: Call, asked: TaskRequest) -> ASGIApp:
        record = await self._run(call, asked.id)
        try:
            await self._edge.canceller.cancel(record.run_id, call.who)
        except Problem as problem:
            if problem.status != 409:
                raise
            raise refusal("TASK_NOT_CANCELABLE", problem.detail) from problem
        return await self._shown(call, record)

    async def subscribe(self, call: Call, asked: TaskRequest) -> ASGIApp:
        """Stream the task as it is, and then its updates. With a cursor, only the updates after it,
        up to the next pause or the end."""
        record = await self._run(call, asked.id)
        self._edge.streams.require_room(call.request.scope)
        after = cursor_of(call.request)
        if after is None:
            found, last = await self._read(call, record)
        else:
            # A stream goes on however long its run is.
            unlimited = Allowance(NO_END, NO_END, inf)
            found, last = await self._read(call, record, after.sequence + 1, unlimited)
        state = found.state
        if after is None and state in a2a.ENDED:
            text = f"task {record.run_id} has ended; get the task"
            raise refusal("UNSUPPORTED_OPERATION", text)
        leg = legs.LegId(found.leg + (state in a2a.INTERRUPTED), last)
        return await self._follow(call, record, found, last, leg, after)

    async def add_push(self, call: Call, asked: PushNotification) -> ASGIApp:
        run_id, push = (asked.task_id or "").lower(), asked.push()
        await self._pushes(call, run_id, add=push)
        return call.answer(shown_push(push, run_id))

    async def get_push(self, call: Call, asked: ConfigRequest) -> ASGIApp:
        push = (await self._pushes(call, asked.task_id)).get(asked.id)
        if push is None:
            text = f"the task has no push notifications {shortened(asked.id)}"
            raise refusal("TASK_NOT_FOUND", text)
        return call.answer(push)

    async def list_pushes(self, call: Call, asked: ConfigRequest) -> ASGIApp:
        pushes = await self._pushes(call, asked.task_id)
        return call.answer({"configs": list(pushes.values()), "nextPageToken": ""})

    async def remove_push(self, call: Call, asked: ConfigRequest) -> ASGIApp:
        await self._pushes(call, asked.task_id, remove=asked.id)
        return call.answer({})

    async def _pushes(self, call: Call, run_id: str, **change: Any) -> dict[str, JsonObject]:
        """Return the push notifications of a run by their ids, after a change. The run must be the
        caller's own, since a rule sees only its owner's."""
        require(call.who, "automate")
        record = await self._run(call, run_id)
        if record.user_id != call.who.user_id:
            text = f"there is no task {shortened(run_id)} of your own"
            raise refusal("TASK_NOT_FOUND", text)
        pushes = await request_pushes(self._edge.bus, call.who, record.run_id, **change)
        return {each.id: shown_push(each, record.run_id) for each in pushes}

    async def no_card(self, call: Call, asked: AnyRequest) -> ASGIApp:
        raise refusal("UNSUPPORTED_OPERATION", "there is no extended card; the card says all")

    async def _follow(
        self,
        call: Call,
        record: RunRecord,
        found: a2a.TaskFold,
        last: int,
        leg: legs.LegId,
        after: Cursor | None = None,
    ) -> ASGIApp:
        """Stream the task as it is after the stream sequence `last`, and then what follows, to the
        leg's end; with the cursor `after`, only what follows it."""
        # Events of the leg before may still follow its pause, such as the decision.
        replays = not is_workflow(record)
        form = call.form()
        view, position = await legs.located(self._edge, record, form, after, leg, replays=replays)
        if after is not None:
            return await self._edge.stream(view, position, call.who)
        cursor = Cursor(last, LAST_FRAME) if last else None
        preface = call.frame(found.task(), str(cursor) if cursor else None)
        position = replace(position, after=cursor, ended=False)
        client = await self._edge.hubs.join(view, position, call.who)
        return Prefaced(EventStream(client), preface)

    async def _whole(self, call: Call, leg: legs.Leg, history: int | None) -> ASGIApp:
        view = leg.view(call.object_form(history))
        client = await self._edge.hubs.join(view, leg.position, call.who)
        return SingleBody(client, shape=call.refused)

    async def _shown(self, call: Call, record: RunRecord, history: int | None = None) -> Response:
        found, _ = await self._read(call, record)
        task = found.task(history=history)
        return call.answer(call.response(task) if call.older else task)

    async def _read(
        self,
        call: Call,
        record: RunRecord,
        end: int = NO_END,
        allowance: Allowance | None = None,
    ) -> tuple[a2a.TaskFold, int]:
        """Fold the stored events before the stream sequence `end`; return the last one's, too. A
        task without events, or whose events have expired, is what its record says."""
        form = call.object_form(None)
        try:
            found, last = await legs.read_stored(
                self._edge, call.who, record, form, end=end, allowance=allowance
            )
        except Problem as problem:
            if problem.status != 410:
                raise
            found, last = a2a.TaskFold(call.encoder()), 0
        if found.state is None:
            found.add({"task": task_of_record(record)})
        return found, last

    async def _run(self, call: Call, run_id: str) -> RunRecord:
        missing = refusal("TASK_NOT_FOUND", f"there is no task {shortened(run_id)}")
        return await run_of(self._edge.bus, call.who, run_id, missing, call.agent.id)


def no_push() -> Problem:
    text = "A2A 0.3 has no push notifications here; use A2A 1.0"
    return refusal("PUSH_NOTIFICATION_NOT_SUPPORTED", text)
