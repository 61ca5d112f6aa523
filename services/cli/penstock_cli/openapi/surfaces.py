"""Every request that is served, surface by surface: the table of the document. Pure data.

A test holds it to the routes of every service.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from penstock_cli.openapi import parameters as by
from penstock_cli.openapi.operation import (
    FORMS,
    JSON,
    NULLABLE,
    OBJECT,
    PAGE,
    SSE,
    STREAM,
    TEXT,
    Answer,
    Json,
    Operation,
    a_list,
    an_object,
    json,
)
from penstock_edge.stream.pages import MAX_PAGE
from penstock_edge.surfaces.adk import apps, artifacts, legacy, run_sse
from penstock_edge.surfaces.adk import run as adk_run
from penstock_edge.surfaces.adk.request import RunAgentRequest
from penstock_edge.surfaces.agno import sessions as agno_sessions
from penstock_edge.surfaces.agno.request import ContinueRequest, RunRequest
from penstock_edge.surfaces.agno.routes import KINDS
from penstock_edge.surfaces.agui import routes as agui_surface
from penstock_edge.surfaces.agui.request import RunAgentInput

_START: Final = ("start",)
_STREAM: Final = Answer("The stream", {SSE: STREAM})
_EVENTS: Final = Answer("The stream, or a page where JSON is accepted", {SSE: STREAM, JSON: PAGE})
_OVER: Final = Answer("All of it was told before; do not come back")
_FOLLOWED: Final = {200: _STREAM, 204: _OVER}
_DONE: Final = Answer("It is done")
_ANYTHING: Final[Json] = {}


def _adk() -> list[Operation]:
    many, one = apps.PATH, f"{apps.PATH}/{{session}}"
    # what an ADK server answers is relayed as it is
    upstream = (404, 409, 502, 504)
    session = json("The session", OBJECT)
    operation = partial(Operation, tag="adk", shape="detail", refusals=upstream)
    create = partial(operation, needs=_START, body_required=False)
    leg = partial(operation, needs=_START, body=RunAgentRequest)
    return [
        leg(
            "POST",
            run_sse.PATH,
            "Start a run, or answer a pause, and stream the leg",
            {200: _STREAM},
            refusals=(*upstream, 501),
        ),
        leg(
            "POST",
            adk_run.PATH,
            "The same leg as one list, once it is over",
            {200: json("The leg's events", a_list(OBJECT))},
            refusals=(*upstream, 500, 501),
        ),
        operation(
            "GET",
            many,
            "A user's sessions",
            {200: json("The sessions, without events", a_list(OBJECT))},
        ),
        create("POST", many, "Create a session", {200: session}, body=apps.CreateRequest),
        operation("GET", one, "A session with its events", {200: session}),
        create(
            "POST",
            one,
            "Create a session of this id; the body is its state",
            {200: session},
            body={"type": ["object", "null"]},
        ),
        operation(
            "PATCH",
            one,
            "Change an ADK session's state without a run",
            {200: session},
            needs=_START,
            body=apps.ChangeRequest,
        ),
        operation("DELETE", one, "Delete a session", {200: json("Null", _ANYTHING)}, needs=_START),
        operation(
            "GET",
            artifacts.PATH,
            "The names of a session's artifacts",
            {200: json("The names", a_list(TEXT))},
        ),
        operation(
            "GET",
            f"{artifacts.PATH}/{{artifact}}",
            "An artifact; below its name, its versions, one version, and what is known of them",
            {200: json("What the ADK server answers", _ANYTHING)},
            parameters=(by.VERSION,),
        ),
        operation(
            "GET",
            legacy.PATH,
            "The session's latest run, in the legacy events",
            _FOLLOWED,
            parameters=by.CURSOR,
            refusals=(404, 410),
        ),
        operation(
            "POST",
            legacy.PATH,
            "Start a run in the session",
            {200: json("It is begun", an_object(success={"type": "boolean"}, sessionId=TEXT))},
            needs=_START,
            body=legacy.QueryRequest,
            refusals=(404,),
        ),
    ]


def _agno(kind: str) -> list[Operation]:
    path = f"/{kind}s"
    runs = f"{path}/{{id}}/runs"
    named = an_object(id=TEXT, name=TEXT)
    leg = {200: Answer("The leg as a stream, or the run", {SSE: STREAM, JSON: OBJECT})}
    pending = {202: json("With `background` and without `stream`: it is begun", OBJECT)}
    operation = partial(Operation, tag="agno", shape="detail")
    begin = partial(operation, body_types=(*FORMS, JSON))
    return [
        operation("GET", path, f"Every {kind}", {200: json("Ids and names", a_list(named))}),
        operation(
            "GET",
            f"{path}/{{id}}",
            f"One {kind}",
            {200: json("Its id and name", named)},
            refusals=(404,),
        ),
        begin(
            "POST",
            runs,
            "Start a run",
            leg | pending,
            needs=_START,
            body=RunRequest,
            refusals=(404,),
        ),
        begin(
            "POST",
            f"{runs}/{{run_id}}/continue",
            "Answer a pause",
            leg,
            needs=("decide",),
            body=ContinueRequest,
            refusals=(404, 409, 410),
        ),
        operation(
            "POST",
            f"{runs}/{{run_id}}/cancel",
            "Cancel a run",
            {200: json("It is cancelled, or being cancelled", OBJECT)},
            needs=_START,
            parameters=(by.OF_SESSION,),
            refusals=(404, 409),
        ),
    ]


def _agno_sessions() -> list[Operation]:
    one = f"{agno_sessions.PATH}/{{session_id}}"
    operation = partial(Operation, tag="agno", shape="detail", refusals=(404,))
    refused = partial(operation, answers={}, needs=(), refusals=(405,))
    page = an_object(data=a_list(OBJECT), meta=OBJECT)
    runs = {200: json("The runs", a_list(OBJECT))}
    return [
        operation(
            "GET",
            agno_sessions.PATH,
            "The user's sessions",
            {200: json("A page", page)},
            parameters=(*by.AGNO_SESSIONS, *by.AGNO_SESSION),
        ),
        operation(
            "GET",
            one,
            "One session with its conversation",
            {200: json("It", OBJECT)},
            parameters=by.AGNO_SESSION,
        ),
        operation(
            "GET",
            f"{one}/runs",
            "A session's runs",
            runs,
            parameters=(*by.AGNO_SESSION, *by.AGNO_RUNS),
            refusals=(400, 404),
        ),
        operation(
            "GET",
            f"{one}/run-previews",
            "A session's runs in short",
            runs,
            parameters=(*by.AGNO_SESSION, *by.AGNO_RUNS),
            refusals=(400, 404),
        ),
        operation(
            "GET",
            f"{one}/runs/{{run_id}}",
            "One run of a session",
            {200: json("It", OBJECT)},
            parameters=by.AGNO_SESSION,
        ),
        refused("POST", agno_sessions.PATH, "Not served: a run begins a session"),
        refused("DELETE", agno_sessions.PATH, "Not served: sessions are read only"),
        refused("PATCH", one, "Not served: sessions are read only"),
        refused("DELETE", one, "Not served: sessions are read only"),
        refused("POST", f"{one}/rename", "Not served: sessions have no names of their own"),
    ]


def _first_looks() -> list[Operation]:
    agno = partial(Operation, tag="agno", shape="detail")
    since = an_object(status=TEXT, instantiated_at=TEXT)
    names_or_objects = {"oneOf": [a_list(TEXT), an_object(apps=a_list(OBJECT))]}
    names = {200: json("The names, as `appName` takes them, or objects", names_or_objects)}
    version = an_object(version=TEXT, language=TEXT, language_version=TEXT)
    adk = partial(Operation, tag="adk", shape="detail")
    return [
        agno("GET", "/config", "What there is, as AgentOSClient asks", {200: json("It", OBJECT)}),
        agno("GET", "/health", "Whether the edge answers", {200: json("It does", since)}),
        adk("GET", "/list-apps", "The agents as ADK's apps", names, parameters=(by.DETAILED,)),
        adk("GET", "/version", "Penstock's version", {200: json("It", version)}),
    ]


def _agui() -> list[Operation]:
    contract = "/api/v1/agent/runs/{thread_id}"
    page = an_object(threadId=TEXT, events=a_list(OBJECT), next=NULLABLE)
    operation = partial(Operation, tag="agui", refusals=(404, 410))
    return [
        operation(
            "POST",
            agui_surface.PATH,
            "Start a run, or answer a pause, and stream the leg",
            _FOLLOWED,
            shape="detail",
            needs=_START,
            body=RunAgentInput,
            refusals=(404, 409, 410),
        ),
        operation(
            "GET",
            "/agui/{agent}/threads/{thread_id}/events",
            "A thread's runs in turn",
            _FOLLOWED,
            shape="detail",
            parameters=(
                by.PRELUDE,
                by.PROTOCOL_VERSION,
                by.NAMES,
                by.UNTIL,
                by.USER,
                *by.CURSOR,
            ),
        ),
        operation(
            "GET",
            f"{contract}/events",
            "A thread's runs in turn, as the agent runs contract has them",
            _FOLLOWED,
            parameters=(by.AGENT, by.UNTIL, by.USER, *by.CURSOR),
        ),
        operation(
            "GET",
            f"{contract}/history",
            "The same events as pages",
            {200: json("A page", page)},
            parameters=(by.AGENT, by.USER, *by.CURSOR, by.limit(MAX_PAGE)),
        ),
    ]


LEGACY: Final = (
    *_adk(),
    *(operation for kind in KINDS for operation in _agno(kind)),
    *_first_looks(),
    *_agno_sessions(),
    *_agui(),
)
