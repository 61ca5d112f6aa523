"""Declare routes.

A declaration says what a route serves, who may call the route, and how the route answers.

The decorator `serves` gives a handler its `Operation`. The operation is the source for the router,
the check of scopes, the form of errors, and the OpenAPI document. A handler without an operation
cannot be served, because each `Route` needs one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel
from starlette.types import ASGIApp

from penstock.web.auth.grants import Permission
from penstock.web.auth.identity import Identity, missing_scope_problem, require
from penstock.web.problems import PROBLEM, ErrorShape, Problem

Json = dict[str, Any]
Schema = type[BaseModel] | Json
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
# A handler gets the request and returns the response. If the client has disconnected, the handler
# returns None, because no response can be sent.
Handler = Callable[[Any], Awaitable[ASGIApp | None]]
H = TypeVar("H", bound=Callable[..., Any])

JSON: Final = "application/json"
SSE: Final = "text/event-stream"
FORMS: Final = ("multipart/form-data", "application/x-www-form-urlencoded")
# Matches a parameter in a path. `{name}` stands for one segment. `{name:path}` at the end of a path
# stands for all remaining segments.
_NAME: Final = re.compile(r"{(\w+)(?::path)?}")
_DECLARED: Final = "__operations__"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the path, the query or a header. Only parameters in the path are required. In
    the query it may be sent once, or several times if its schema is a list."""

    name: str
    description: str
    schema: Json = field(default_factory=lambda: {"type": "string"})
    location: Literal["path", "query", "header"] = "query"


@dataclass(frozen=True, slots=True)
class Answer:
    """A response that is no error, with the schema of its body for each media type."""

    description: str
    content: Mapping[str, Schema] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path. The constructor raises ValueError unless the parameters in `path` are
    exactly the path parameters in `parameters`."""

    method: Method
    path: str
    summary: str
    tag: str
    answers: Mapping[int, Answer]
    # The caller needs all of these scopes. The field has no default, so that the author of each
    # operation must decide which scopes the operation needs.
    scopes: tuple[Permission, ...]
    # The caller needs at least one of these scopes. The handler then checks which of them the
    # request needs.
    any_scope: tuple[Permission, ...] = ()
    # Maps each scope that the handler requires only for some requests to the reason.
    sometimes: Mapping[Permission, str] = field(default_factory=dict)
    description: str = ""
    public: bool = False  # whether anybody may call the operation; if so, credentials are ignored
    errors: ErrorShape = PROBLEM
    # the statuses of errors, besides the statuses that every request may get
    refusals: tuple[int, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    body: Schema | None = None
    body_types: tuple[str, ...] = (JSON,)  # the media types that the body may have
    body_required: bool = True
    example: Any = None  # An example of the body.
    websocket: bool = False  # Whether the operation is a WebSocket; OpenAPI shows it as a GET.
    # Maps names of parameters that `path` does not contain to their values. The handler gets these
    # as path parameters.
    constants: Mapping[str, str] = field(default_factory=dict)
    published: bool = True  # whether the OpenAPI document contains the operation

    def __post_init__(self) -> None:
        described = [each.name for each in self.parameters if each.location == "path"]
        if sorted(described) != sorted(_NAME.findall(self.path)):
            raise ValueError(
                f"{self.method} {self.path}: describe exactly the parameters of the path, "
                f"with location='path'; described are {described}"
            )

    @property
    def id(self) -> str:
        words = self.template.replace("{", "").replace("}", "").strip("/").replace("/", "_")
        return f"{self.method.lower()}_{words}"

    @property
    def template(self) -> str:
        return _NAME.sub(r"{\1}", self.path)

    @property
    def can_stream(self) -> bool:
        """True if an answer of the operation can be an event stream."""
        return any(SSE in answer.content for answer in self.answers.values())

    @property
    def accepts_stream_token(self) -> bool:
        """True if a stream token in the URL is accepted. Only a GET of an event stream accepts
        one."""
        return self.method == "GET" and self.can_stream

    def check(self, identity: Identity) -> None:
        """Check that the caller has the scopes that this operation needs.

        Raises:
            Problem: 403 if the caller lacks a scope.
        """
        for scope in self.scopes:
            require(identity, scope)
        if self.any_scope and not any(map(identity.has_scope, self.any_scope)):
            names = " or ".join(self.any_scope)
            raise missing_scope_problem(identity, names)

    def check_query(self, query: str) -> None:
        """Check that no parameter comes twice that takes one value: the other one would be dropped
        in silence.

        Raises:
            Problem: 400.
        """
        if "&" not in query:
            return
        sent = Counter(name for name, _ in parse_qsl(query, keep_blank_values=True))
        for each in self.parameters:
            is_single = each.location == "query" and each.schema.get("type") != "array"
            if is_single and sent[each.name] > 1:
                raise Problem(
                    400, f"{each.name}: takes one value, and came {sent[each.name]} times"
                )


@dataclass(frozen=True, slots=True)
class Route:
    """An operation and its handler. The handler gets a Starlette `Request`, or a `WebSocket` if
    `operation.websocket` is set."""

    operation: Operation
    handler: Handler


def serves(*operations: Operation) -> Callable[[H], H]:
    """Return a decorator that declares the operations of a handler."""

    def declare(handler: H) -> H:
        setattr(handler, _DECLARED, operations)
        return handler

    return declare


def operations_of(*surfaces: object) -> tuple[Operation, ...]:
    """Return the operations that the methods of these classes declare, in the order of the source
    code."""
    return tuple(
        operation
        for surface in surfaces
        for member in vars(surface).values()
        for operation in getattr(member, _DECLARED, ())
    )


def routes_of(surface: object, around: Callable[[Handler], Handler] | None = None) -> list[Route]:
    """Return the routes that the methods of an object declare. `around` wraps each handler."""
    routes = []
    for name, member in vars(type(surface)).items():
        for operation in getattr(member, _DECLARED, ()):
            handler: Handler = getattr(surface, name)
            routes.append(Route(operation, around(handler) if around is not None else handler))
    return routes


def without_parameter_names(path: str) -> str:
    """Return the path with its parameters' names removed, such as `/runs/{}`."""
    return _NAME.sub("{}", path)


def in_path(name: str, description: str) -> Parameter:
    """Return a parameter of the path. The value of such a parameter is never empty."""
    return Parameter(name, description, {"type": "string", "minLength": 1}, "path")


def in_query(model: type[BaseModel]) -> tuple[Parameter, ...]:
    """Return the parameters of a query, which are the fields of a model (`bodies.read_query`)."""
    return tuple(
        Parameter(name, str(schema.pop("description")), schema)
        for name, schema in model.model_json_schema()["properties"].items()
    )


def json(description: str, schema: Schema) -> Answer:
    return Answer(description, {JSON: schema})


def an_object(**properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(properties)}


def a_list(items: Json) -> Json:
    return {"type": "array", "items": items}


def one_of(values: Iterable[str]) -> Json:
    return {"type": "string", "enum": list(values)}


TEXT: Final[Json] = {"type": "string"}
FLAG: Final[Json] = {"type": "boolean"}
OBJECT: Final[Json] = {"type": "object"}
NULLABLE: Final[Json] = {"type": ["string", "null"]}
