"""Reads the bodies and ids of OpenAI's clients, and writes their errors. Pure.

An answer to a request is an item at the end of the `input`, and names the request by its id, which
has the digest. Nothing else decides: no text, and no answer before another item, which is history.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field

from penstock.dialects.approvals import CONFIRMATIONS
from penstock.dialects.json import parsed, string
from penstock.dialects.openai import RequestId
from penstock.web.problems import ErrorShape, Problem, schema_of
from penstock_edge.surfaces.legs import ClientAnswer, LegId

JsonObject = dict[str, Any]
ANSWERS: Final = {"mcp_approval_response": "approval_request_id", "function_call_output": "call_id"}
_TEXTS: Final = frozenset({"text", "input_text", "output_text"})
# The secret of a one-time link must not reach an agent, which could decide with it. A match begins
# where a word begins: tried at each letter of a word of 2 MB, it would take minutes.
_SECRET: Final = re.compile(r"(?<!\S)\S*/d/pln_\S*")
_REFERENCE: Final = re.compile(r"\(reference (resp_[0-9a-f.-]+)\)\s*$")


_RESPONSE_ID: Final = re.compile(
    r"resp_([0-9a-fA-F-]{36})(?:\.([0-9]{1,6}))?(?:\.([0-9]{1,18}))?((?:\.[0-9a-f-]{36})*)"
)


@dataclass(frozen=True, slots=True)
class ResponseId:
    """Says all that is needed to open a response again: `resp_<run>`, with `.<leg>` from the second
    leg on. The later legs of a workflow's run also have the stream sequence of the pause before
    them, and the approvals that the client has answered."""

    run_id: str
    leg: LegId = field(default_factory=LegId)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        match = _RESPONSE_ID.fullmatch(text)
        if match is None:
            return None
        run_id, leg, after, answered = match.groups()
        known = LegId(int(leg or 1), int(after or 0), tuple(answered.split(".")[1:]))
        return cls(run_id.lower(), known)

    def __str__(self) -> str:
        leg = self.leg
        later = [f"{leg.number}"] if leg.number > 1 else []
        later += [f"{leg.after}", *leg.answered] if leg.after else []
        return ".".join([f"resp_{self.run_id}", *later])


class _Body(BaseModel):
    """Fields that are not declared here are for a model (`temperature`), and have no effect."""

    model_config = ConfigDict(extra="allow")

    model: str = Field(min_length=1, max_length=512)
    stream: bool | None = False
    metadata: dict[str, str] | None = None


class ResponsesRequest(_Body):
    """The body of POST /openai/v1/responses."""

    input: str | list[JsonObject]
    background: bool | None = False
    previous_response_id: str | None = None
    conversation: str | JsonObject | None = None


class ChatRequest(_Body):
    """The body of POST /openai/v1/chat/completions."""

    messages: list[JsonObject] = Field(min_length=1)
    stream_options: JsonObject | None = None


def refused(param: str, text: str, status: int = 400, code: str | None = None) -> Problem:
    return Problem(status, f"{param}: {text}", param=param, code=code)


def answers_of(asked: ResponsesRequest) -> list[ClientAnswer]:
    """Return the answers at the end of the input."""
    if isinstance(asked.input, str):
        return []
    at = len(asked.input)
    while at and str(asked.input[at - 1].get("type")) in ANSWERS:
        at -= 1
    if at and at < len(asked.input) and asked.previous_response_id is not None:
        raise refused("input", "send the answers to requests without other items")
    return [_answer(item) for item in asked.input[at:]]


def _answer(sent: JsonObject) -> ClientAnswer:
    name = str(sent.get(ANSWERS[sent["type"]]))
    asked = RequestId.parse(name)
    if asked is None:
        text = f"{name[:128]!r} is the id of no request; send it back unchanged"
        raise refused("input", text, 404)
    # The digest is that of an item, so a request that has changed since is no longer found.
    return ClientAnswer(asked.approval_id, partial(_decided, asked, sent), status_if_none=409)


def _decided(asked: RequestId, sent: JsonObject, item: JsonObject) -> JsonObject | None:
    """Return the decision on an item of `approval.requested`; None if another one was asked."""
    if RequestId.of(asked.approval_id, item) != asked:
        return None
    kind, decision = item["kind"], {"item_id": item["item_id"], "decision": "approve"}
    is_answer = sent["type"] == "mcp_approval_response"
    yes = sent.get("approve") if is_answer else None
    if yes is False or (yes is True and kind in CONFIRMATIONS):
        note = string(sent.get("reason"))
        return {**decision, "decision": "approve" if yes else "reject", "note": note}
    if is_answer or kind in CONFIRMATIONS:
        yes_or_no = "mcp_approval_response with approve: true or false"
        how = yes_or_no if kind in CONFIRMATIONS else "function_call_output with the value"
        raise refused("input", f"{asked} is answered by {how}")
    value = text_of("input", sent.get("output"))
    return {**decision, "value": value if kind == "external" else parsed(value)}


def message_of(items: Sequence[JsonObject], param: str, *, in_session: bool) -> str:
    """Return what the agent gets: the user's last messages if the session has the earlier ones,
    else the whole conversation as one text."""
    turns = [each for each in items if each.get("role") in ("user", "assistant")]
    at = len(turns)
    while at and turns[at - 1]["role"] == "user":
        at -= 1
    new = "\n\n".join(text_of(param, each.get("content")) for each in turns[at:])
    if not new.strip():
        raise refused(param, "must end with a message of the user that has a text")
    if not in_session and at:
        earlier = (f"{each['role']}: {text_of(param, each.get('content'))}" for each in turns[:at])
        new = "\n\n".join(["The conversation so far:", *earlier, "The new message:", new])
    return _SECRET.sub("(a link)", new)


def reference_in(messages: Sequence[JsonObject]) -> str | None:
    """Return the id of the response that follows the pause with which the last answer ended."""
    answers = [each for each in messages if each.get("role") in ("user", "assistant")]
    while answers and answers[-1]["role"] == "user":
        answers.pop()
    found = _REFERENCE.search(text_of("messages", answers[-1].get("content"))) if answers else None
    return found[1] if found else None


def text_of(param: str, content: Any) -> str:
    """Return the text of a content: a text, or a list of parts; other parts are refused."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    texts = []
    for part in parts:
        if not isinstance(part, dict) or str(part.get("type")) not in _TEXTS:
            raise refused(param, "a message may only have parts that are texts")
        texts.append(str(part.get("text", "")))
    return "".join(texts)


class _Errors(ErrorShape):
    """OpenAI's shape. Its clients repeat a request after 409, which would be refused again."""

    def response(self, problem: Problem) -> Any:
        response = ErrorShape.response(self, problem)
        if problem.status == 409:
            response.headers["x-should-retry"] = "false"
        return response


def _error(problem: Problem) -> Mapping[str, Any]:
    kind = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    other = "server_error" if problem.status >= 500 else "invalid_request_error"
    error = {"message": problem.detail, "type": kind.get(problem.status, other)}
    return {"error": error | {name: problem.more.get(name) for name in ("param", "code")}}


_TEXT: Final = {"type": "string"}
ERRORS: Final = _Errors(
    "openai",
    "application/json",
    schema_of(error={"type": "object", "properties": {"message": _TEXT, "type": _TEXT}}),
    _error,
)
