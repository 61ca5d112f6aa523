"""How A2A's clients read a task: as a stream of one leg, or as one object. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from penstock import sse
from penstock.bus.records.runs import RunRecord
from penstock.dialects import a2a
from penstock.dialects.a2a import A2aEncoder, TaskFold
from penstock.settings import AgentConfig
from penstock.web.auth import Identity
from penstock.web.problems import Problem
from penstock_edge.surfaces.a2a.request import rest_error, rpc_error
from penstock_edge.views.agui import UNNAMED
from penstock_edge.views.encoded_leg import LegForm, WholeLeg
from penstock_edge.views.upstream_frames import INTERRUPTED

JsonObject = dict[str, Any]
STATES: Final = {
    "queued": a2a.SUBMITTED,
    "running": a2a.WORKING,
    "paused": a2a.INPUT_REQUIRED,
    "completed": a2a.COMPLETED,
    "failed": a2a.FAILED,
    "cancelled": a2a.CANCELED,
}


@dataclass(frozen=True, slots=True)
class Call:
    """A request for an agent, and how its answers are written. `rpc_id` is the JSON text of the id
    of a JSON-RPC request, None for REST."""

    request: Request
    who: Identity
    agent: AgentConfig
    version: str
    extended: bool
    rpc_id: bytes | None = None

    @property
    def older(self) -> bool:
        return self.version == "0.3"

    @property
    def headers(self) -> dict[str, str]:
        return {"a2a-extensions": a2a.EXTENSION} if self.extended else {}

    def encoder(self) -> A2aEncoder:
        return A2aEncoder(self.extended, self.older)

    def wrapped(self, body: bytes, member: str = "result") -> bytes:
        if self.rpc_id is None:
            return body
        return b'{"jsonrpc":"2.0","id":%b,"%b":%b}' % (self.rpc_id, member.encode(), body)

    def answer(self, body: JsonObject) -> Response:
        written = self.wrapped(orjson.dumps(body))
        return Response(written, 200, self.headers, "application/json")

    def error(self, problem: Problem) -> bytes:
        if self.rpc_id is None:
            return orjson.dumps(rest_error(problem))
        return self.wrapped(orjson.dumps(rpc_error(problem)), "error")

    def refused(self, problem: Problem) -> Response:
        return Response(self.error(problem), problem.status, media_type="application/json")

    def response(self, task: JsonObject) -> JsonObject:
        """Return a stream response, which is also the answer to a message."""
        return a2a.older({"task": task}) if self.older else {"task": task}

    def frame(self, task: JsonObject, cursor: str | None = None) -> bytes:
        return self.encoded(a2a.escaped(orjson.dumps(self.response(task))), cursor)

    def encoded(self, body: bytes, cursor: str | None) -> bytes:
        return sse.encode(self.wrapped(body), id=cursor)

    @property
    def _key(self) -> tuple[str, ...]:
        return self.version, f"extended={self.extended}", repr(self.rpc_id)

    def form(self) -> LegForm[A2aEncoder]:
        lost = Problem(503, f"{INTERRUPTED}; subscribe to the task again")
        return LegForm(
            self._key,
            a2a.CHANNEL,
            self.encoder,
            lambda frame, cursor: self.encoded(frame.data, cursor),
            lambda _: [sse.encode(self.error(lost), event="error")],
            UNNAMED,
            headers=self.headers,
        )

    def object_form(self, history: int | None) -> LegForm[WholeLeg[TaskFold]]:
        def write(found: TaskFold) -> bytes:
            return self.wrapped(orjson.dumps(self.response(found.task(history=history))))

        key = (*self._key, f"object {history}")
        return LegForm.of_object(key, a2a.CHANNEL, lambda: TaskFold(self.encoder()), write)


def task_of_record(record: RunRecord) -> JsonObject:
    """Return the task without its content, for lists and where the events are gone."""
    status = {"state": STATES[record.status], "timestamp": record.updated_at}
    return {"id": record.run_id, "contextId": record.session_id, "status": status}
