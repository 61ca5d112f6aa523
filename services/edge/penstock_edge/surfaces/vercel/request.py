"""Models of the body of POST /vercel/{agent}. Pure.

A client sends the whole conversation again with each request, and may write anything into it. So
only the last message counts: a user's message starts a run, and an assistant's message answers a
pause, with nothing but its approval responses that have the digest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from penstock.bus.records import Decided, WhenBusy
from penstock_edge.surfaces.bodies import document_of, validated
from penstock_edge.surfaces.errors import invalid, shortened

Id = Annotated[str, Field(min_length=1, max_length=512)]


class _Described(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class ChatRequest(_Described):
    """The body of POST /vercel/{agent}. `id` is the chat's. The client's own field `body` may add
    `when_busy`, as of POST /v1/runs, and `input` of a workflow."""

    id: Id
    messages: Annotated[list[Any], Field(min_length=1)]
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    when_busy: WhenBusy = "queue"
    input: Any = None


class Part(_Described):
    """A part of a message. A part of a tool call has a state, and perhaps an approval."""

    type: str
    text: str | None = None
    state: str | None = None
    approval: Any = None

    @property
    def is_answer(self) -> bool:
        is_call = self.type == "dynamic-tool" or self.type.startswith("tool-")
        return is_call and self.state == "approval-responded"


class Message(_Described):
    """A UIMessage."""

    role: Literal["system", "user", "assistant"]
    parts: list[Part]


class Descriptor(_Described):
    """The `approvalDescriptor` of the chunk that asked, unchanged."""

    digest: Annotated[str, Field(min_length=1)]


class Response(_Described):
    """The approval of a part that the user has answered."""

    id: Id
    approved: bool
    descriptor: Descriptor
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Chat:
    """One request: its fields, its last message, and where the message's parts are in the body."""

    request: ChatRequest
    message: Message
    where: tuple[str | int, ...]

    @classmethod
    def parse(cls, body: bytes) -> Chat:
        request = validated(ChatRequest, document_of(body))
        where = ("messages", len(request.messages) - 1)
        return cls(request, validated(Message, request.messages[-1], *where), (*where, "parts"))

    def responses(self) -> list[Response]:
        """Return the answers in an assistant's message; none in a user's message."""
        return [
            validated(Response, part.approval, *self.where, index, "approval")
            for index, part in enumerate(self.message.parts)
            if self.message.role == "assistant" and part.is_answer
        ]

    def text(self) -> str:
        """Return the text of the user's message, which is all that an agent gets of it."""
        if self.message.role != "user":
            text = "the last message must be the user's, or answer a tool-approval-request"
            raise invalid("no_user_message", self.where, text)
        for index, part in enumerate(self.message.parts):
            if part.text is None:
                text = f"an agent gets no {shortened(part.type)}"
                raise invalid("not_portable", (*self.where, index), text)
        text = "".join(part.text or "" for part in self.message.parts)
        if not text.strip():
            raise invalid("blank", self.where, "must not be empty or only white space")
        return text


def decided(response: Response, item_id: str) -> Decided:
    decision: Literal["approve", "reject"] = "approve" if response.approved else "reject"
    return Decided(item_id=item_id, decision=decision, note=response.reason)
