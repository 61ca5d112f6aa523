"""Models of the body of POST /vercel/{agent}. Pure.

A client sends the whole conversation again with each request, and may write anything into it. So
only the last message counts: a user's message starts a run, and an assistant's message answers a
pause, with nothing but those parts of calls that have the digest of what was asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from penstock.bus.records.runs import WhenBusy
from penstock.dialects.json import obj
from penstock_edge.surfaces.bodies import document_of, validated
from penstock_edge.surfaces.errors import invalid, shortened
from penstock_edge.surfaces.legs import ClientAnswer

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


class Question(_Described):
    """What is answered: an item's `question_id`, and the digest that the client got with it."""

    id: Annotated[str, Field(pattern="/")]
    digest: Annotated[str, Field(min_length=1)]


class Part(_Described):
    """A part of a message. A part of a tool call has a state, and perhaps an answer."""

    type: str
    text: str | None = None
    state: str | None = None
    approval: Any = None
    output: Any = None
    error: Any = Field(None, alias="errorText")
    metadata: Any = Field(None, alias="callProviderMetadata")

    def answer(self, *where: str | int) -> ClientAnswer | None:
        """Return a yes or no (`addToolApprovalResponse`), or the value that a call asks for, which
        is the call's output (`addToolOutput`)."""
        said, asked = obj(self.approval), obj(obj(self.metadata).get("penstock")).get("asked")
        if self.type != "dynamic-tool" and not self.type.startswith("tool-"):
            return None
        status = "resolved"
        match self.state:
            case "approval-responded":
                asked = {**obj(said.get("descriptor")), "id": said.get("id")}
                payload = {key: said.get(key) for key in ("approved", "reason")}
                status = "cancelled" if said.get("approved") is False else "approved"
            case "output-available" if asked is not None:
                payload = self.output
            case "output-error" if asked is not None:
                payload, status = {"reason": self.error}, "cancelled"
            case _:
                return None
        question = validated(Question, asked, *where)
        return ClientAnswer.of(question.id, status, payload, question.digest)


class Message(_Described):
    """A UIMessage."""

    role: Literal["system", "user", "assistant"]
    parts: list[Part]


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

    def answers(self) -> list[ClientAnswer]:
        """Return the answers in an assistant's message; none in a user's message."""
        if self.message.role != "assistant":
            return []
        answers = (part.answer(*self.where, at) for at, part in enumerate(self.message.parts))
        return [each for each in answers if each is not None]

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
