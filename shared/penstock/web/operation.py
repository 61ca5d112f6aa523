"""The declaration of one route: what it serves, who may call it, and how it answers.

An `Operation` stands beside its handler, as the argument of `serves`. The router, the check of
scopes, the shape of errors and the OpenAPI document are all made from it. A route without an
Operation cannot be mounted, because `Route` needs one.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel
from starlette.types import ASGIApp

from penstock.web.auth.identity import Identity, require
from penstock.web.auth.scopes import Permission
from penstock.web.problems import PROBLEM, ErrorShape, Problem

Json = dict[str, Any]
Schema = type[BaseModel] | Json
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
# The response, or None where the client has left and nothing can be sent.
Handler = Callable[[Any], Awaitable[ASGIApp | None]]
H = TypeVar("H", bound=Callable[..., Any])

JSON: Final = "application/json"
SSE: Final = "text/event-stream"
FORMS: Final = ("multipart/form-data", "application/x-www-form-urlencoded")
# `{name}` is one segment of the path; `{name:path}`, at the end, is all segments from there on
_NAME: Final = re.compile(r"{(\w+)(?::path)?}")
_DECLARED: Final = "__operations__"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value in the path, the query or a header. Only those in the path are required."""

    name: str
    description: str
    schema: Json = field(default_factory=lambda: {"type": "string"})
    place: Literal["path", "query", "header"] = "query"


@dataclass(frozen=True, slots=True)
class Answer:
    """A response that is no error: its body by media types, or none."""

    description: str
    content: Mapping[str, Schema] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path.

    Raises ValueError when it is made, for a path parameter without a description, or for one that
    the path does not have.
    """

    method: Method
    path: str
    summary: str
    tag: str
    answers: Mapping[int, Answer]
    # The caller needs all of these. It has no default, so that nobody forgets to decide.
    scopes: tuple[Permission, ...]
    # The caller needs at least one of these; the handler checks the one that the body decides on.
    any_scope: tuple[Permission, ...] = ()
    # Scopes that the handler requires of some requests only, each with the reason.
    sometimes: Mapping[Permission, str] = field(default_factory=dict)
    description: str = ""
    public: bool = False  # credentials are not looked at
    errors: ErrorShape = PROBLEM
    refusals: tuple[int, ...] = ()  # statuses besides those that every request may get
    parameters: tuple[Parameter, ...] = ()
    body: Schema | None = None
    body_types: tuple[str, ...] = (JSON,)  # media types
    body_required: bool = True
    example: Any = None  # of the body
    websocket: bool = False  # the path is opened as a WebSocket, which is a GET in OpenAPI
    given: Mapping[str, str] = field(default_factory=dict)  # further path parameters, constant
    published: bool = True  # whether the OpenAPI document has it

    def __post_init__(self) -> None:
        described = [each.name for each in self.parameters if each.place == "path"]
        if sorted(described) != sorted(_NAME.findall(self.path)):
            raise ValueError(
                f"{self.method} {self.path}: describe exactly the parameters of the path, "
                f"with place='path'; described are {described}"
            )

    @property
    def id(self) -> str:
        """The name of the operation in generated clients."""
        words = self.template.replace("{", "").replace("}", "").strip("/").replace("/", "_")
        return f"{self.method.lower()}_{words}"

    @property
    def template(self) -> str:
        """The path as OpenAPI writes it."""
        return _NAME.sub(r"{\1}", self.path)

    @property
    def streams(self) -> bool:
        """Whether the answer is an event stream, perhaps beside other media types."""
        return any(SSE in answer.content for answer in self.answers.values())

    @property
    def takes_stream_token(self) -> bool:
        """Whether a stream token in the URL opens it: only event streams that a GET opens."""
        return self.method == "GET" and self.streams

    def check(self, identity: Identity) -> None:
        """Check the scopes that the declaration names.

        Raises:
            Problem: 403 where the caller has not the scopes.
        """
        for scope in self.scopes:
            require(identity, scope)
        if self.any_scope and not any(map(identity.may, self.any_scope)):
            names = " or ".join(self.any_scope)
            raise Problem(403, f"this needs the scope {names}, which the token does not have")


@dataclass(frozen=True, slots=True)
class Route:
    """An operation with the handler that serves it.

    The handler gets a Starlette `Request`, or a `WebSocket` for an operation of that kind.
    """

    operation: Operation
    handler: Handler


def serves(*operations: Operation) -> Callable[[H], H]:
    """Declare what a method serves; several operations may share one handler."""

    def declare(handler: H) -> H:
        setattr(handler, _DECLARED, operations)
        return handler

    return declare


def operations_of(*surfaces: object) -> tuple[Operation, ...]:
    """The operations that the methods of these classes declare, in the order of their text."""
    return tuple(
        operation
        for surface in surfaces
        for member in vars(surface).values()
        for operation in getattr(member, _DECLARED, ())
    )


def routes_of(surface: object, around: Callable[[Handler], Handler] | None = None) -> list[Route]:
    """The routes of an instance of such a class. `around` wraps each handler."""
    routes = []
    for name, member in vars(type(surface)).items():
        for operation in getattr(member, _DECLARED, ()):
            handler: Handler = getattr(surface, name)
            routes.append(Route(operation, around(handler) if around is not None else handler))
    return routes


def unnamed(path: str) -> str:
    """The path whatever its parameters are called: `/runs/{}`."""
    return _NAME.sub("{}", path)


def in_path(name: str, description: str) -> Parameter:
    """A parameter of the path, which is never empty."""
    return Parameter(name, description, {"type": "string", "minLength": 1}, "path")


def json(description: str, schema: Schema) -> Answer:
    """An answer with a JSON body."""
    return Answer(description, {JSON: schema})


def an_object(**properties: Json) -> Json:
    """The schema of an object with all of these properties, and perhaps more."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def a_list(items: Json) -> Json:
    """The schema of a list."""
    return {"type": "array", "items": items}


def one_of(values: Iterable[str]) -> Json:
    """The schema of a text that is one of these."""
    return {"type": "string", "enum": list(values)}


TEXT: Final[Json] = {"type": "string"}
FLAG: Final[Json] = {"type": "boolean"}
OBJECT: Final[Json] = {"type": "object"}
NULLABLE: Final[Json] = {"type": ["string", "null"]}
