"""What the document says of one request, and the words that many requests share. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import BaseModel

Json = dict[str, Any]
Schema = type[BaseModel] | Json
Shape = Literal["problem", "executions", "detail"]

JSON: Final = "application/json"
SSE: Final = "text/event-stream"
FORMS: Final = ("multipart/form-data", "application/x-www-form-urlencoded")


@dataclass(frozen=True, slots=True)
class Parameter:
    """Something in the address or in a header; never required."""

    name: str
    description: str
    schema: Json = field(default_factory=lambda: {"type": "string"})
    place: Literal["query", "header"] = "query"


@dataclass(frozen=True, slots=True)
class Answer:
    """What is answered when all is well: a body by its media types, or none."""

    description: str
    content: Mapping[str, Schema] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path.

    `refusals`: besides those that every request may get, see `document`. `needs`: the scopes; None
    where nobody is asked. `body_types`: the media types of the body.
    """

    method: str
    path: str
    summary: str
    answers: Mapping[int, Answer]
    tag: str
    shape: Shape = "problem"
    needs: tuple[str, ...] | None = ("read",)
    parameters: tuple[Parameter, ...] = ()
    body: Schema | None = None
    body_types: tuple[str, ...] = (JSON,)
    body_required: bool = True
    refusals: tuple[int, ...] = ()

    @property
    def id(self) -> str:
        """By which generated clients call it."""
        words = self.path.replace("{", "").replace("}", "").strip("/").replace("/", "_")
        return f"{self.method.lower()}_{words}"


def json(description: str, schema: Schema) -> Answer:
    """A JSON body."""
    return Answer(description, {JSON: schema})


def an_object(**properties: Json) -> Json:
    """With all of these, and perhaps more."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def a_list(items: Json) -> Json:
    """Of these."""
    return {"type": "array", "items": items}


def one_of(*values: str) -> Json:
    """A text that is one of these."""
    return {"type": "string", "enum": list(values)}


TEXT: Final[Json] = {"type": "string"}
OBJECT: Final[Json] = {"type": "object"}
NULLABLE: Final[Json] = {"type": ["string", "null"]}
PAGE: Final = an_object(events=a_list(OBJECT), next=NULLABLE)
STREAM: Final[Json] = {
    "type": "string",
    "description": "Frames of Server-Sent Events, each with the cursor as its `id`.",
}
