"""Serves /v1/sessions/{session_id}/queue: the starts of a session that wait for their turn.

Connectors keep the order of a session's legs in KV `sessions` (decision 0133). The first leg of the
queue may run already, so only the legs behind it can be moved.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.types import ASGIApp

from penstock.bus.records.legs import SessionRecord
from penstock.bus.records.runs import RunRecord
from penstock.bus.subjects import is_run_id, session_key
from penstock.lookups import look_until
from penstock.web.auth import identity_of
from penstock.web.bodies import ignore_body, read_json
from penstock.web.operation import NULLABLE, TEXT, Operation, a_list, an_object, json, serves
from penstock.web.problems import Problem, invalid
from penstock_edge.runs.records import run_of
from penstock_edge.sources.sessions import Session, records_of, run_records
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.bodies import json_response
from penstock_edge.surfaces.session_start import session_of
from penstock_edge.surfaces.surface import Handlers

_operation = partial(Operation, tag="runs")
_ENTRY = an_object(run_id=TEXT, agent=TEXT, message=TEXT, created_at=TEXT)
_ONE = (by.SESSION_ID, by.RUN_ID, by.USER)


class MoveRequest(BaseModel):
    """The body of POST /v1/sessions/{session_id}/queue/{run_id}/move."""

    model_config = ConfigDict(extra="forbid", strict=True)

    before: str | None = Field(
        None, description="The run of the same queue that is to follow; null: the queue's end"
    )


class SessionQueues(Handlers):
    """Has the handlers of the queues of sessions."""

    @serves(
        _operation(
            method="GET",
            path="/v1/sessions/{session_id}/queue",
            summary="The starts that wait for their turn in a session",
            description="In their order; each agent has a queue of its own. `running` has the runs "
            "whose turn it is. A run that waits for a decision is in neither list.",
            answers={
                200: json("The queue", an_object(queue=a_list(_ENTRY), running=a_list(_ENTRY)))
            },
            scopes=("read",),
            parameters=(by.SESSION_ID, by.AGENT, by.USER),
            refusals=(404,),
        )
    )
    async def show(self, request: Request) -> ASGIApp:
        edge = self._edge
        session = await session_of(edge, request, "session_id", request.query_params.get("agent"))
        records = await records_of(edge.bus, session)
        running = [record.queue[0].run_id for record in records if record.queue]
        waiting = [run_id for record in records for run_id in _waiting(record)]
        # No connector has given these runs a place yet, so they are behind the others.
        unplaced = [
            run_id for run_id in await self._queued(session) if run_id not in (*running, *waiting)
        ]
        return json_response(
            {
                "queue": await self._entries([*waiting, *unplaced]),
                "running": await self._entries(running),
            }
        )

    @serves(
        _operation(
            method="POST",
            path="/v1/sessions/{session_id}/queue/{run_id}/move",
            summary="Move a waiting start to another place in its queue",
            answers={200: json("Moved", an_object(run_id=TEXT, before=NULLABLE))},
            scopes=("start",),
            parameters=_ONE,
            body=MoveRequest,
            example={"before": None},
            refusals=(404, 409),
        )
    )
    async def move(self, request: Request) -> ASGIApp:
        body = await read_json(request, self._edge.settings.max_body_bytes)
        try:
            asked = MoveRequest.model_validate(body)
        except ValidationError as error:
            raise invalid(error) from error
        if asked.before is not None and not is_run_id(asked.before):
            raise Problem(422, "before: must be a run id")
        run = await self._run(request)
        moved = await look_until(run.user_id, lambda: self._moved(run, asked.before), bool)
        if not moved:
            raise Problem(409, f"run {run.run_id} has no place in the queue yet; try again")
        return json_response({"run_id": run.run_id, "before": asked.before})

    @serves(
        _operation(
            method="DELETE",
            path="/v1/sessions/{session_id}/queue/{run_id}",
            summary="Withdraw a waiting start",
            description="The run is cancelled before its agent server is called. A run that has "
            "begun is 409; one that begins at this moment is cancelled.",
            answers={200: json("Withdrawn", an_object(run_id=TEXT, status=TEXT))},
            scopes=("start",),
            parameters=_ONE,
            refusals=(404, 409),
        )
    )
    async def withdraw(self, request: Request) -> ASGIApp:
        await ignore_body(request)
        run = await self._run(request)
        session = Session(run.user_id, run.session_id, (run.agent,), any_agent=False)
        places = [
            run_id
            for each in await records_of(self._edge.bus, session)
            for run_id in _waiting(each)
        ]
        if run.status != "queued" and run.run_id not in places:
            raise _not_waiting(run.run_id)
        cancelled = await self._edge.canceller.cancel(run.run_id, identity_of(request))
        status = "cancelled" if cancelled.at is not None else "cancelling"
        return json_response({"run_id": run.run_id, "status": status})

    async def _moved(self, run: RunRecord, before: str | None) -> bool:
        """Move the run; return False if a connector has still to give one of the runs its place.
        Raises Problem 409 if one of them does not wait."""
        unplaced: list[str] = []

        def change(record: SessionRecord) -> None:
            waiting = _waiting(record)
            unplaced[:] = {run.run_id, before or run.run_id} - {*waiting}
            if unplaced or before == run.run_id:
                return
            moved = next(leg for leg in record.queue if leg.run_id == run.run_id)
            record.queue.remove(moved)
            ids = [leg.run_id for leg in record.queue]
            record.queue.insert(len(ids) if before is None else ids.index(before), moved)

        bus, key = self._edge.bus, session_key(run.user_id, run.agent, run.session_id)
        changed = await bus.bucket("sessions").change(key, SessionRecord, change)
        for run_id in unplaced:
            record = await bus.bucket("runs").load(run_id, RunRecord)
            if record is None or record.status != "queued":
                raise _not_waiting(run_id)
        return changed is not None and not unplaced

    async def _run(self, request: Request) -> RunRecord:
        """Return the run of the path; raise Problem 404 if it is not the caller's, or not of the
        session."""
        session = await session_of(self._edge, request, "session_id", None)
        run_id = request.path_params["run_id"]
        run = await run_of(self._edge.bus, identity_of(request), run_id)
        if not session.has(run):
            raise Problem(404, f"there is no run {run_id} in this session")
        return run

    async def _queued(self, session: Session) -> list[str]:
        runs = self._edge.run_list
        await runs.index.caught_up()
        return [
            each.run_id
            for agent in session.agents
            for each in runs.rows.open_of_session(session.owner, agent, session.session_id)
            if each.status == "queued"
        ]

    async def _entries(self, run_ids: list[str]) -> list[dict[str, Any]]:
        return [
            run.model_dump(include={"run_id", "agent", "message", "created_at"})
            for run in await run_records(self._edge.bus, run_ids)
        ]


def _waiting(record: SessionRecord) -> list[str]:
    """Return the runs that have not begun, in their order: a later leg carries a decision."""
    return [leg.run_id for leg in record.queue[1:] if leg.leg == 1]


def _not_waiting(run_id: str) -> Problem:
    return Problem(
        409, f"run {run_id[:128]} does not wait in this queue: it has begun, or is of another one"
    )
