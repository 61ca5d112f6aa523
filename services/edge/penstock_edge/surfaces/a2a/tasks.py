"""What both bindings of A2A do with tasks: send, read, list, cancel, subscribe."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import uuid4

import orjson
from starlette.responses import Response
from starlette.types import ASGIApp

from penstock import sse
from penstock.bus import subjects
from penstock.bus.records import Push, PushReply, PushRequest, RunRecord
from penstock.bus.subjects import is_run_id
from penstock.dialects import a2a
from penstock.runs.decide import ANSWER_S
from penstock.runs.start import Start
from penstock.settings import WorkflowAgent
from penstock.web.auth import require
from penstock.web.problems import Problem
from penstock_edge.edge import Edge
from penstock_edge.runs.pauses import approval_in_session
from penstock_edge.runs.records import is_workflow, run_of
from penstock_edge.sources.encode import encode
from penstock_edge.sources.history import history_of
from penstock_edge.sources.locate import StartPosition, locate
from penstock_edge.stream.responses.event_stream import EventStream, Prefaced
from penstock_edge.stream.responses.pages import NO_END
from penstock_edge.stream.responses.single_body import SingleBody
from penstock_edge.surfaces.a2a.request import (
    AnyRequest,
    ConfigRequest,
    Decision,
    ListRequest,
    PushNotification,
    SendRequest,
    TaskRequest,
    parsed,
    refusal,
    shown_push,
)
from penstock_edge.surfaces.a2a.views import STATES, Call, TaskObject, fold_form, task_of_record
from penstock_edge.surfaces.bodies import workflow_input
from penstock_edge.surfaces.errors import shortened
from penstock_edge.surfaces.legs import Answer, Leg, Reply, decide, first_leg, located, next_leg
from penstock_edge.surfaces.query import cursor_of, when_busy_of
from penstock_edge.views.cursor import LAST_FRAME, Cursor
from penstock_edge.views.view import View

JsonObject = dict[str, Any]
WAITS = (
    "This task waits for a decision, and a text decides nothing. Send a data part with "
    "approval_id, digest and decision (approve or reject)."
)


class Tasks:
    """The tasks of one edge."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

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
            return await edge.stream(leg.view(call.form()), leg.position)
        if at_once:
            return call.answer(call.response(task_of_record(record)))
        return await self._whole(call, leg, history)

    async def _start(
        self, call: Call, asked: SendRequest, values: list[Any]
    ) -> tuple[RunRecord, Leg]:
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
            prepare=None if config is None else partial(self._pushes, call, add=config.push()),
            when_busy=when_busy_of(call.request),
        )
        started, leg = await first_leg(edge, start)
        if not started.new:
            leg = replace(leg, position=await locate(edge.bus, leg.view(call.form()), None))
        return started.record, leg

    async def _answer(
        self, call: Call, asked: SendRequest, values: list[Any], *, stream: bool, at_once: bool
    ) -> ASGIApp:
        edge, message, history = self._edge, asked.message, asked.configuration.history_length
        record = await self._run(call, message.task_id or "")
        if message.context_id not in (None, record.session_id):
            raise Problem(422, "message.contextId: the task is of another context")
        found, last = await self._read(call, record)
        state = found.fold.state or STATES[record.status]
        if state in a2a.ENDED:
            raise refusal("UNSUPPORTED_OPERATION", f"task {record.run_id} has ended")
        if (config := asked.configuration.task_push_notification_config) is not None:
            await self._pushes(call, await self._own_run(call, record.run_id), add=config.push())
        if values:
            require(call.who, "decide")
            reply = await self._reply(call, record, values)
            leg = await next_leg(edge, reply)
            await decide(edge, call.who, a2a.CHANNEL, reply, user_id=call.who.user_id)
        elif state in a2a.INTERRUPTED:
            return self._reminder(call, found.fold.task(history=history), stream=stream)
        else:
            text = "the agent still works on the task; begin a new task in its context"
            raise refusal("UNSUPPORTED_OPERATION", text)
        if stream:
            return await self._follow(call, found, last, _rest(call, leg), leg.position)
        if at_once:
            return await self.get(call, TaskRequest(id=record.run_id, history_length=history))
        return await self._whole(call, leg, history)

    async def _reply(self, call: Call, record: RunRecord, values: list[Any]) -> Reply:
        bus, who = self._edge.bus, call.who
        answers: dict[str, Answer] = {}
        for value in values:
            part = parsed(Decision, value)
            approval, root = await approval_in_session(
                bus, who, call.agent, record.session_id, part.approval_id, awaited=True
            )
            run_id = root.run_id if root is not None else approval and approval.run_id
            if approval is None or run_id != record.run_id or approval.approval_id in answers:
                name = shortened(part.approval_id)
                raise Problem(422, f"message.parts: the task has no approval {name!r} to decide")
            answers[approval.approval_id] = Answer(approval, part.decided(approval), part.digest)
        return Reply([*answers.values()], record if is_workflow(record) else None)

    def _reminder(self, call: Call, task: JsonObject, *, stream: bool) -> ASGIApp:
        status = task["status"]
        asked = status.get("message") or a2a.message(task["id"], task["contextId"], task["id"])
        reminder = {**asked, "parts": [a2a.text_part(WAITS), *asked["parts"]]}
        shown = call.response({**task, "status": {**status, "message": reminder}})
        if not stream:
            return call.answer(shown)
        return Response(call.frame(shown), 200, {**sse.HEADERS, **call.headers})

    async def get(self, call: Call, asked: TaskRequest) -> ASGIApp:
        record = await self._run(call, asked.id)
        return call.answer(call.task(await self._task(call, record, asked.history_length)))

    async def list(self, call: Call, asked: ListRequest) -> ASGIApp:
        edge = self._edge
        before = asked.page_token
        if before is not None and not is_run_id(before):
            raise Problem(422, "pageToken: must be nextPageToken of an earlier page")
        wanted = {"agent": call.agent.id}
        if asked.context_id is not None:
            wanted["session_id"] = asked.context_id
        if asked.status is not None:
            names = {state: status for status, state in STATES.items()}
            wanted["status"] = names.get(asked.status, "")
        async with edge.turns.of(call.who.tenant_user):
            runs, more = await edge.run_list.page(
                call.who.owners, call.who.may_see_runs_of, wanted, before, asked.page_size
            )
        records = [RunRecord.model_validate(run) for run in runs]
        token = records[-1].run_id if more else ""
        since = asked.status_timestamp_after
        shown = [
            each
            for each in sorted(records, key=lambda each: each.updated_at, reverse=True)
            if since is None or datetime.fromisoformat(each.updated_at) > since
        ]
        tasks = [
            await self._task(call, each, asked.history_length)
            if asked.include_artifacts
            else task_of_record(each)
            for each in shown
        ]
        sizes = {"pageSize": asked.page_size, "totalSize": len(tasks) + more}
        return call.answer({"tasks": tasks, "nextPageToken": token, **sizes})

    async def cancel(self, call: Call, asked: TaskRequest) -> ASGIApp:
        record = await self._run(call, asked.id)
        try:
            await self._edge.canceller.cancel(record.run_id, call.who)
        except Problem as problem:
            if problem.status != 409:
                raise
            raise refusal("TASK_NOT_CANCELABLE", problem.detail, 409) from problem
        return call.answer(call.task(await self._task(call, record, None)))

    async def subscribe(self, call: Call, asked: TaskRequest) -> ASGIApp:
        """Stream the task as it is, and then its updates. With a cursor, only the updates after it,
        up to the next pause or the end."""
        edge = self._edge
        record = await self._run(call, asked.id)
        edge.streams.require_room(call.request.scope)
        after = cursor_of(call.request)
        found, last = await self._read(call, record, after.sequence + 1 if after else NO_END)
        state = found.fold.state or STATES[record.status]
        if after is None and state in a2a.ENDED:
            text = f"task {record.run_id} has ended; get the task"
            raise refusal("UNSUPPORTED_OPERATION", text)
        number = found.leg + (state in a2a.INTERRUPTED)
        # Events of the leg before may still follow its pause, such as the decision.
        replays = not is_workflow(record)
        view, position = await located(
            edge, record, call.form(), after, number=number, after_event=last, replays=replays
        )
        if after is not None:
            return await edge.stream(view, position)
        return await self._follow(call, found, last, view, position, record)

    async def add_push(self, call: Call, asked: PushNotification) -> ASGIApp:
        run_id, push = await self._own_run(call, asked.task_id or ""), asked.push()
        await self._pushes(call, run_id, add=push)
        return call.answer(shown_push(push, run_id))

    async def get_push(self, call: Call, asked: ConfigRequest) -> ASGIApp:
        run_id = await self._own_run(call, asked.task_id)
        for push in await self._pushes(call, run_id):
            if push.id == asked.id:
                return call.answer(shown_push(push, run_id))
        raise Problem(404, f"the task has no push notifications {shortened(asked.id)}")

    async def list_pushes(self, call: Call, asked: ConfigRequest) -> ASGIApp:
        run_id = await self._own_run(call, asked.task_id)
        configs = [shown_push(each, run_id) for each in await self._pushes(call, run_id)]
        return call.answer({"configs": configs, "nextPageToken": ""})

    async def remove_push(self, call: Call, asked: ConfigRequest) -> ASGIApp:
        run_id = await self._own_run(call, asked.task_id)
        await self._pushes(call, run_id, remove=asked.id)
        return call.answer({})

    async def no_card(self, call: Call, asked: AnyRequest) -> ASGIApp:
        raise refusal("UNSUPPORTED_OPERATION", "there is no extended card; the card says all")

    async def _pushes(
        self, call: Call, run_id: str, *, add: Push | None = None, remove: str | None = None
    ) -> Sequence[Push]:
        """Add or remove a push at the automations service; return those of the run after it. A
        repeated request has no further effect."""
        who = call.who
        require(who, "automate")
        request = PushRequest(
            user_id=who.user_id,
            tenant=who.tenant,
            roles=sorted(who.roles),
            scopes=sorted(who.scopes),
            add=add,
            remove=remove,
        )
        answer = await self._edge.bus.request(subjects.push(run_id), request.dump(), ANSWER_S)
        reply = PushReply.model_validate_json(answer.data)
        if reply.status != 200:
            raise Problem(reply.status, reply.detail)
        return reply.pushes

    async def _own_run(self, call: Call, run_id: str) -> str:
        """Return the id of a run that is the caller's own, since a rule sees only its owner's."""
        record = await self._run(call, run_id)
        if record.user_id != call.who.user_id:
            raise Problem(404, f"there is no task {shortened(run_id)} of your own")
        return record.run_id

    async def _follow(
        self,
        call: Call,
        found: TaskObject,
        last: int,
        view: View,
        position: StartPosition,
        record: RunRecord | None = None,
    ) -> ASGIApp:
        """Stream the task as it is after the stream sequence `last`, and then what follows."""
        task = found.fold.task() if found.fold.state else task_of_record(record) if record else {}
        cursor = Cursor(last, LAST_FRAME) if last else None
        preface = call.frame(call.response(task), str(cursor) if cursor else None)
        client = await self._edge.hubs.join(view, replace(position, after=cursor, ended=False))
        return Prefaced(EventStream(client), preface)

    async def _whole(self, call: Call, leg: Leg, history: int | None) -> ASGIApp:
        view = leg.view(call.object_form(history))
        client = await self._edge.hubs.join(view, leg.position)

        def shape(problem: Problem) -> Response:
            return Response(call.error(problem), problem.status, media_type="application/json")

        return SingleBody(client, shape=shape)

    async def _task(self, call: Call, record: RunRecord, history: int | None) -> JsonObject:
        try:
            found, _ = await self._read(call, record)
        except Problem as problem:
            if problem.status != 410:
                raise
            return task_of_record(record)
        return found.fold.task(history=history) if found.fold.state else task_of_record(record)

    async def _read(
        self, call: Call, record: RunRecord, end: int = NO_END
    ) -> tuple[TaskObject, int]:
        """Fold the stored events before the stream sequence `end`; return the last one's, too."""
        bus, found, last = self._edge.bus, TaskObject(call.extended), 0
        view, position = await located(self._edge, record, fold_form(found), None, number=1)
        encoding, turn = view.encoding(), self._edge.turns.for_caller(call.who)
        history = history_of(bus, view, None, position.start, turn)
        while batch := await history.before(end):
            for stored in batch:
                await encode(bus, view, encoding, stored)
                last = stored.sequence
        return found, last

    async def _run(self, call: Call, run_id: str) -> RunRecord:
        unknown = Problem(404, f"there is no task {shortened(run_id)}")
        record = await run_of(self._edge.bus, call.who, run_id, unknown)
        if record.agent != call.agent.id:
            raise unknown
        return record


def _rest(call: Call, leg: Leg) -> View:
    """Return the view up to the end of this leg. Events of the leg before may still follow its
    pause, such as the decision, so that leg is written, too."""
    if leg.tree is not None:
        return leg.view(call.form())
    return call.form().view(leg.run_id, leg.number, replays=True)


def no_push() -> Problem:
    text = "A2A 0.3 has no push notifications here; use A2A 1.0"
    return refusal("PUSH_NOTIFICATION_NOT_SUPPORTED", text)
