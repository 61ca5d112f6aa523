"""The surface for A2A's clients, of 1.0 and 0.3: a card for each agent, JSON-RPC and REST."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import orjson
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from penstock.dialects.a2a import EXTENSION
from penstock.settings import AgentConfig
from penstock.web.auth import identity_of, require
from penstock.web.auth.grants import Permission
from penstock.web.bodies import ignore_body
from penstock.web.operation import (
    JSON,
    OBJECT,
    SSE,
    Answer,
    Operation,
    Parameter,
    in_path,
    json,
    serves,
)
from penstock.web.operation import Method as Verb
from penstock.web.problems import Problem
from penstock_edge.edge import Edge
from penstock_edge.surfaces import parameters as by
from penstock_edge.surfaces.a2a.request import (
    REST_ERRORS,
    RPC_ERRORS,
    AnyRequest,
    ConfigRequest,
    ListRequest,
    PushNotification,
    RpcRequest,
    SendRequest,
    TaskRequest,
    refusal,
)
from penstock_edge.surfaces.a2a.tasks import Tasks, no_push
from penstock_edge.surfaces.a2a.views import Call
from penstock_edge.surfaces.agents import agent_by_id
from penstock_edge.surfaces.bodies import document_of, json_body, validated
from penstock_edge.surfaces.errors import InvalidBody, shortened
from penstock_edge.surfaces.surface import Handlers, Surface

JsonObject = dict[str, Any]
HEADERS: Final = (
    by.AGENT_ID,
    Parameter("A2A-Version", "1.0; without it, 0.3", location="header"),
    Parameter(
        "A2A-Extensions",
        f"With {EXTENSION}, the answer has the extension's parts",
        location="header",
    ),
)
_SINCE: Final = formatdate(usegmt=True)
_VERSION: Final = re.compile(r"(\d+\.\d+)(\.\d+)?")
_SEND: Final = {"message": {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "Hello"}]}}


class Card(Handlers):
    """Has the handler of the agents' cards."""

    @serves(
        *(
            Operation(
                method="GET",
                tag="a2a",
                errors=REST_ERRORS,
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
            "last-modified": _SINCE,
        }
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(b"", 304, headers)
        return Response(body, 200, headers, JSON)


@dataclass(frozen=True, slots=True)
class Method:
    """A method of A2A. REST has it as `path` below the agent, and `ids` maps fields of the request
    to parts of the path. `older` is its name in 0.3."""

    name: str
    handle: Callable[[Tasks, Call, Any], Awaitable[ASGIApp]]
    model: type[BaseModel]
    path: str
    verbs: tuple[Verb, ...] = ("GET",)
    scope: Permission | None = "read"  # None: a message needs `start` or `decide`
    ids: Mapping[str, str] = field(default_factory=dict)
    parameters: tuple[Parameter, ...] = ()
    example: Any = None  # of the body; None without a body
    older: str = ""
    streams: bool = False

    def operations(self) -> Iterator[Operation]:
        scopes = (self.scope,) if self.scope is not None else ()
        stream = {200: by.STREAMED, 204: by.OVER}
        for verb in self.verbs:
            yield Operation(
                method=verb,
                path=f"/a2a/{{agent}}{self.path}",
                summary=f"{self.name} of A2A",
                tag="a2a",
                answers=stream if self.streams else {200: json("The answer", OBJECT)},
                scopes=scopes,
                any_scope=() if scopes else ("start", "decide"),
                errors=REST_ERRORS,
                refusals=(400, 404, 409, 410),
                parameters=(
                    *HEADERS,
                    *(in_path(each, f"The {each}'s id") for each in self.ids.values()),
                    *self.parameters,
                ),
                body=self.model if self.example is not None else None,
                example=self.example,
                constants={"method": self.name},
            )


def _query(model: type[BaseModel], *left_out: str) -> tuple[Parameter, ...]:
    fields = [str(each.alias) for each in model.model_fields.values()]
    return tuple(Parameter(each, f"`{each}` of A2A") for each in fields if each not in left_out)


_PUSHES: Final = "/tasks/{task}/pushNotificationConfigs"
_QUERY: Final = _query(TaskRequest, "id")
_SENDS: Final = partial(
    Method, verbs=("POST",), scope=None, parameters=(by.WHEN_BUSY,), example=_SEND
)
_TASK: Final = partial(Method, model=TaskRequest, ids={"id": "task"})
_CONFIGS: Final = partial(Method, path=_PUSHES, scope="automate", ids={"taskId": "task"})
_CONFIG: Final = partial(
    Method,
    model=ConfigRequest,
    path=f"{_PUSHES}/{{config}}",
    scope="automate",
    ids={"taskId": "task", "id": "config"},
)
METHODS: Final = (
    _SENDS("SendMessage", Tasks.send, SendRequest, "/message:send", older="message/send"),
    _SENDS(
        "SendStreamingMessage",
        partial(Tasks.send, stream=True),
        SendRequest,
        "/message:stream",
        older="message/stream",
        streams=True,
    ),
    Method("ListTasks", Tasks.list, ListRequest, "/tasks", parameters=_query(ListRequest)),
    _TASK(
        "CancelTask",
        Tasks.cancel,
        path="/tasks/{task}:cancel",
        verbs=("POST",),
        scope="start",
        older="tasks/cancel",
    ),
    _TASK(
        "SubscribeToTask",
        Tasks.subscribe,
        path="/tasks/{task}:subscribe",
        verbs=("POST", "GET"),  # official clients send POST, the protocol's definition has GET
        older="tasks/resubscribe",
        parameters=by.CURSOR,
        streams=True,
    ),
    # The router takes the first path that fits, so this one comes after those of verbs.
    _TASK("GetTask", Tasks.get, path="/tasks/{task}", older="tasks/get", parameters=_QUERY),
    _CONFIGS(
        "CreateTaskPushNotificationConfig",
        Tasks.add_push,
        PushNotification,
        verbs=("POST",),
        example={"url": "https://hooks.example.com/a2a", "token": "t-1"},
    ),
    _CONFIGS("ListTaskPushNotificationConfigs", Tasks.list_pushes, ConfigRequest),
    _CONFIG("GetTaskPushNotificationConfig", Tasks.get_push),
    _CONFIG("DeleteTaskPushNotificationConfig", Tasks.remove_push, verbs=("DELETE",)),
    Method(
        "GetExtendedAgentCard",
        Tasks.no_card,
        AnyRequest,
        "/extendedAgentCard",
        older="agent/getAuthenticatedExtendedCard",
    ),
)
_BY_NAME: Final = {each.name: each for each in METHODS}
_BY_OLDER: Final = {each.older: each for each in METHODS if each.older}


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
    any_scope=("start", "decide", "read", "automate"),
    errors=RPC_ERRORS,
    parameters=(*HEADERS, by.LAST_EVENT_ID, by.WHEN_BUSY),
    body=RpcRequest,
    example={
        "jsonrpc": "2.0",
        "id": 1,
        "method": "SendStreamingMessage",
        "params": _SEND,
    },
    description="Errors of a method have the status 200, as JSON-RPC's clients expect.",
    refusals=(404, 409),
)


class Bindings(Tasks):
    """Has the handlers of A2A's methods, over JSON-RPC in 1.0 and 0.3, and over REST in 1.0."""

    @serves(RPC, replace(RPC, path=f"{RPC.path}/", published=False))
    async def rpc(self, request: Request) -> ASGIApp:
        body = await json_body(self._edge, request)
        try:
            document = document_of(body)
        except InvalidBody as error:
            raise refusal("PARSE_ERROR", error.detail) from error
        rpc_id = document.get("id") if isinstance(document, dict) else None
        call = call_of(self._edge, request, orjson.dumps(rpc_id))
        try:
            try:
                asked = validated(RpcRequest, document)
            except Problem as problem:
                raise refusal("INVALID_REQUEST", problem.detail) from problem
            require_version(call, "1.0", "0.3")
            method = (_BY_OLDER if call.older else _BY_NAME).get(asked.method)
            if method is None and call.older and "pushNotificationConfig" in asked.method:
                raise no_push()
            if method is None:
                text = f"A2A {call.version} has no method {shortened(asked.method)!r} here"
                raise refusal("METHOD_NOT_FOUND", text)
            if method.scope is not None:
                require(call.who, method.scope)
            return await method.handle(self, call, validated(method.model, asked.params))
        except Problem as problem:
            if problem.status in (401, 403, 429) or problem.status >= 500:
                raise
            return Response(call.error(problem), 200, media_type=JSON)

    @serves(*(operation for each in METHODS for operation in each.operations()))
    async def rest(self, request: Request) -> ASGIApp:
        call, path = call_of(self._edge, request), request.path_params
        method, document = _BY_NAME[path["method"]], {}
        require_version(call, "1.0")
        if method.example is None:
            await ignore_body(request)
        else:
            document = document_of(await json_body(self._edge, request))
        if isinstance(document, dict):
            ids = {name: path[part] for name, part in method.ids.items()}
            document = {**request.query_params, **document, **ids}
        return await method.handle(self, call, validated(method.model, document))


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
            "pushNotifications": True,
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
    older["capabilities"] = {**card["capabilities"], "pushNotifications": False}
    if "securitySchemes" in card:
        older["securitySchemes"] = {"bearer": {"type": "http", "scheme": "Bearer"}}
        older["security"] = [{"bearer": []}]
    return older


class A2a(Surface):
    """Has the handlers for cards and tasks, for agents of every protocol."""

    handlers = (Card, Bindings)
