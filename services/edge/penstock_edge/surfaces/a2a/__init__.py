"""The surface for A2A's clients, of 1.0 and 0.3: a card for each agent, JSON-RPC and REST."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from email.utils import formatdate
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from penstock.dialects.a2a import EXTENSION
from penstock.settings import AgentConfig
from penstock.web.auth import identity_of, require
from penstock.web.bodies import ignore_body, read_body, require_json
from penstock.web.operation import (
    JSON,
    OBJECT,
    SSE,
    Answer,
    Method,
    Operation,
    Parameter,
    in_path,
    json,
    serves,
)
from penstock.web.problems import Problem
from penstock_edge.edge import Edge
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.a2a.request import (
    REST_ERRORS,
    RPC_ERRORS,
    ListRequest,
    RpcRequest,
    SendRequest,
    parsed,
    refusal,
)
from penstock_edge.surfaces.a2a.tasks import Tasks, no_push
from penstock_edge.surfaces.a2a.views import Call
from penstock_edge.surfaces.agents import agent_by_id
from penstock_edge.surfaces.bodies import document_of
from penstock_edge.surfaces.errors import InvalidBody, shortened
from penstock_edge.surfaces.surface import Surface

JsonObject = dict[str, Any]
TASK: Final = in_path("task", "The task's id, which is the run's id")
VERSION: Final = Parameter("A2A-Version", "1.0; without it, 0.3", location="header")
EXTENSIONS: Final = Parameter(
    "A2A-Extensions", f"With {EXTENSION}, the answer has the extension's parts", location="header"
)
HEADERS: Final = (by.AGENT_ID, VERSION, EXTENSIONS)
_VERSION: Final = re.compile(r"(\d+\.\d+)(\.\d+)?")
_MESSAGE: Final = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "Hello"}]}
_TASK: Final = {200: json("The task", OBJECT)}
_STREAM: Final = {200: by.STREAMED, 204: by.OVER}
# The official clients send POST, and the protocol's definition has GET.
_SUBSCRIBE: Final[tuple[Method, ...]] = ("POST", "GET")
_CONFIG: Final = (in_path("config", "A configuration"),)
_PUSH: Final[tuple[tuple[Method, str, tuple[Parameter, ...]], ...]] = (
    ("POST", "", ()),
    ("GET", "", ()),
    ("GET", "/{config}", _CONFIG),
    ("DELETE", "/{config}", _CONFIG),
)
_OLDER: Final = {
    "message/send": "SendMessage",
    "message/stream": "SendStreamingMessage",
    "tasks/get": "GetTask",
    "tasks/cancel": "CancelTask",
    "tasks/resubscribe": "SubscribeToTask",
    "agent/getAuthenticatedExtendedCard": "GetExtendedAgentCard",
}
_rest = partial(Operation, tag="a2a", errors=REST_ERRORS)


class Card:
    """Has the handler of the agents' cards."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._since = formatdate(usegmt=True)

    @serves(
        *(
            _rest(
                method="GET",
                path=f"/a2a/{{agent}}{older}/.well-known/agent-card.json",
                summary=f"The card of an agent{' for clients of A2A 0.3' * bool(older)}",
                answers={200: json("The card", OBJECT), 304: Answer("The card has not changed")},
                scopes=("read",),
                parameters=(by.AGENT_ID,),
                refusals=(404,),
                constants={"older": older},
            )
            for older in ("", "/0.3")
        )
    )
    async def card(self, request: Request) -> ASGIApp:
        path, settings = request.path_params, self._edge.settings
        agent = agent_by_id(self._edge.config, path["agent"])
        url = str(request.url).partition(f"{path['older']}/.well-known/")[0]
        card = card_of(agent, url, needs_token=settings.auth.requires_credentials)
        body = orjson.dumps(older_card(card) if path["older"] else card)
        headers = {
            "etag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
            "cache-control": "private, max-age=60",
            "last-modified": self._since,
        }
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(b"", 304, headers)
        return Response(body, 200, headers, JSON)


RPC: Final = Operation(
    method="POST",
    path="/a2a/{agent}",
    summary="A method of A2A over JSON-RPC",
    tag="a2a",
    answers={
        200: Answer("The answer, or the stream", {JSON: OBJECT, SSE: by.STREAM}),
        204: by.OVER,
    },
    scopes=(),
    any_scope=("start", "decide", "read"),
    errors=RPC_ERRORS,
    parameters=(*HEADERS, by.LAST_EVENT_ID, by.WHEN_BUSY),
    body=RpcRequest,
    example={
        "jsonrpc": "2.0",
        "id": 1,
        "method": "SendStreamingMessage",
        "params": {"message": _MESSAGE},
    },
    description="Errors of a method have the status 200, as JSON-RPC's clients expect.",
    refusals=(404, 409),
)


class JsonRpc:
    """Has the handler of /a2a/{agent}: JSON-RPC, of A2A 1.0 and 0.3."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        tasks = Tasks(edge)
        self._methods: Mapping[str, Callable[[Call, Any], Awaitable[ASGIApp]]] = {
            "SendMessage": partial(tasks.send, stream=False),
            "SendStreamingMessage": partial(tasks.send, stream=True),
            "GetTask": partial(_needing, "read", tasks.get),
            "ListTasks": partial(_needing, "read", tasks.list),
            "CancelTask": partial(_needing, "start", tasks.cancel),
            "SubscribeToTask": partial(_needing, "read", tasks.subscribe),
            "GetExtendedAgentCard": _no_card,
        }

    @serves(RPC, replace(RPC, path=f"{RPC.path}/", published=False))
    async def post(self, request: Request) -> ASGIApp:
        require_json(request)
        try:
            document = document_of(await read_body(request, self._edge.settings.max_body_bytes))
        except InvalidBody as error:
            raise Problem(400, error.detail, code=-32700) from error
        rpc_id = document.get("id") if isinstance(document, dict) else None
        call = call_of(self._edge, request, orjson.dumps(rpc_id))
        try:
            try:
                asked = parsed(RpcRequest, document)
            except Problem as problem:
                raise Problem(400, problem.detail, code=-32600) from problem
            require_version(call, "1.0", "0.3")
            method = _OLDER.get(asked.method, "") if call.older else asked.method
            if "ushNotificationConfig" in asked.method:
                raise no_push()
            if method not in self._methods:
                text = f"A2A {call.version} has no method {shortened(asked.method)!r} here"
                raise Problem(400, text, code=-32601)
            return await self._methods[method](call, asked.params)
        except Problem as problem:
            if problem.status in (401, 403, 429) or problem.status >= 500:
                raise
            return Response(call.error(problem), 200, media_type=JSON)


class Rest:
    """Has the handlers of A2A's REST binding."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._tasks = Tasks(edge)

    @serves(
        *(
            _rest(
                method="POST",
                path=f"/a2a/{{agent}}/message:{verb}",
                summary=f"Send a message, and {what}",
                answers=answers,
                scopes=(),
                any_scope=("start", "decide"),
                parameters=(*HEADERS, by.WHEN_BUSY),
                body=SendRequest,
                example={"message": _MESSAGE},
                constants={"verb": verb},
                refusals=(404, 409),
            )
            for verb, what, answers in (
                ("send", "wait for the task", {200: json("The task", OBJECT)}),
                ("stream", "stream its task", _STREAM),
            )
        )
    )
    async def send(self, request: Request) -> ASGIApp:
        call = self._call(request)
        require_json(request)
        body = await read_body(request, self._edge.settings.max_body_bytes)
        stream = request.path_params["verb"] == "stream"
        return await self._tasks.send(call, document_of(body), stream=stream)

    @serves(
        _rest(
            method="POST",
            path="/a2a/{agent}/tasks/{task}:cancel",
            summary="Cancel a task",
            answers=_TASK,
            scopes=("start",),
            parameters=(*HEADERS, TASK),
            refusals=(404, 409),
        )
    )
    async def cancel(self, request: Request) -> ASGIApp:
        await ignore_body(request)
        return await self._tasks.cancel(self._call(request), self._task(request))

    @serves(
        *(
            _rest(
                method=method,
                path="/a2a/{agent}/tasks/{task}:subscribe",
                summary="Stream a task and its updates",
                answers=_STREAM,
                scopes=("read",),
                parameters=(*HEADERS, TASK, *by.CURSOR),
                refusals=(404, 410),
            )
            for method in _SUBSCRIBE
        )
    )
    async def subscribe(self, request: Request) -> ASGIApp:
        await ignore_body(request)
        return await self._tasks.subscribe(self._call(request), self._task(request))

    @serves(
        _rest(
            method="GET",
            path="/a2a/{agent}/tasks/{task}",
            summary="One task",
            answers=_TASK,
            scopes=("read",),
            parameters=(*HEADERS, TASK, Parameter("historyLength", "How many messages at most")),
            refusals=(404,),
        )
    )
    async def get(self, request: Request) -> ASGIApp:
        return await self._tasks.get(self._call(request), self._task(request))

    @serves(
        _rest(
            method="GET",
            path="/a2a/{agent}/tasks",
            summary="The caller's tasks of an agent, the newest first",
            answers={200: json("A page", OBJECT)},
            scopes=("read",),
            parameters=(
                *HEADERS,
                *(
                    Parameter(str(each.alias), f"`{each.alias}` of A2A's ListTasksRequest")
                    for each in ListRequest.model_fields.values()
                ),
            ),
            refusals=(404,),
        )
    )
    async def list(self, request: Request) -> ASGIApp:
        return await self._tasks.list(self._call(request), dict(request.query_params))

    @serves(
        *(
            _rest(
                method=method,
                path=f"/a2a/{{agent}}/tasks/{{task}}/pushNotificationConfigs{of}",
                summary="Not supported",
                answers={},
                scopes=("read",),
                parameters=(*HEADERS, TASK, *more),
                refusals=(400,),
            )
            for method, of, more in _PUSH
        )
    )
    async def push(self, request: Request) -> ASGIApp:
        await ignore_body(request)
        raise no_push()

    @serves(
        _rest(
            method="GET",
            path="/a2a/{agent}/extendedAgentCard",
            summary="Not supported",
            answers={},
            scopes=("read",),
            parameters=HEADERS,
            refusals=(400,),
        )
    )
    async def extended(self, request: Request) -> ASGIApp:
        return await _no_card()

    def _call(self, request: Request) -> Call:
        call = call_of(self._edge, request)
        require_version(call, "1.0")
        return call

    def _task(self, request: Request) -> JsonObject:
        return {**request.query_params, "id": request.path_params["task"]}


async def _needing(
    scope: Any, method: Callable[[Call, Any], Awaitable[ASGIApp]], call: Call, params: Any
) -> ASGIApp:
    require(call.who, scope)
    return await method(call, params)


async def _no_card(*_: Any) -> ASGIApp:
    raise refusal("UNSUPPORTED_OPERATION", "there is no extended card; the card says all")


def call_of(edge: Edge, request: Request, rpc_id: bytes | None = None) -> Call:
    agent = agent_by_id(edge.config, request.path_params["agent"])
    named = request.headers.get("a2a-version") or request.query_params.get("A2A-Version") or "0.3"
    match = _VERSION.fullmatch(named)
    wanted = request.headers.get("a2a-extensions", "") + request.headers.get("x-a2a-extensions", "")
    return Call(
        request,
        identity_of(request),
        agent,
        match[1] if match else named,
        EXTENSION in wanted,
        rpc_id,
    )


def require_version(call: Call, *served: str) -> None:
    if call.version not in served:
        text = f"A2A {shortened(call.version)!r}: this binding has {' and '.join(served)}"
        raise refusal("VERSION_NOT_SUPPORTED", f"{text}; send the header A2A-Version")


def card_of(agent: AgentConfig, url: str, *, needs_token: bool) -> JsonObject:
    name, text = agent.name or agent.id, f"{agent.name or agent.id}, behind Penstock"
    extension = {
        "uri": EXTENSION,
        "description": "Exact resume by SSE ids, tool calls and reasoning, decisions by digest",
        "required": False,
    }
    modes = ["text/plain", "application/json"]
    card: JsonObject = {
        "name": name,
        "description": text,
        "version": version("penstock"),
        "supportedInterfaces": [
            {"url": url, "protocolBinding": binding, "protocolVersion": of}
            for binding, of in (("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3"))
        ],
        "capabilities": {
            "streaming": True,
            "pushNotifications": False,
            "extendedAgentCard": False,
            "extensions": [extension],
        },
        "defaultInputModes": modes if agent.protocol == "workflow" else modes[:1],
        "defaultOutputModes": modes,
        "skills": [{"id": agent.id, "name": name, "description": text, "tags": [agent.kind]}],
    }
    if needs_token:
        card["securitySchemes"] = {"bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}}
        card["securityRequirements"] = [{"schemes": {"bearer": {"list": []}}}]
    return card


def older_card(card: JsonObject) -> JsonObject:
    url = card["supportedInterfaces"][0]["url"]
    older = {"url": url, "preferredTransport": "JSONRPC", "protocolVersion": "0.3.0"}
    new = ("supportedInterfaces", "securitySchemes", "securityRequirements")
    older |= {key: each for key, each in card.items() if key not in new}
    if "securitySchemes" in card:
        older["securitySchemes"] = {"bearer": {"type": "http", "scheme": "Bearer"}}
        older["security"] = [{"bearer": []}]
    return older


class A2a(Surface):
    """Has the handlers for cards and tasks, for agents of every protocol."""

    handlers = (Card, JsonRpc, Rest)
