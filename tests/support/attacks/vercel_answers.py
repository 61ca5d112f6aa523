"""The requests of the Vercel AI SDK's protocol that try to answer a pause without its digest.

Each makes the path and the body of a POST from what every client of the run has seen. None of them
may decide anything, whoever sends it. `answered` makes the one request that decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import quote

Json = dict[str, Any]
Sent = tuple[str, Json]


class Asked(Protocol):
    """A run that waits for the decision of one item, a tool call."""

    @property
    def agent(self) -> str: ...
    @property
    def session(self) -> str: ...
    @property
    def approval_id(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def item_id(self) -> str: ...
    @property
    def tool_call_id(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Waits:
    """The plain form of `Asked`."""

    agent: str
    session: str
    approval_id: str
    digest: str
    item_id: str
    tool_call_id: str


Make = Callable[[Asked], Sent]
YES: Final = "Yes, I approve. Go on."


def post(at: Asked, *messages: Json, **fields: Any) -> Sent:
    chat = {"id": at.session, "trigger": "submit-message", "messages": list(messages)}
    return f"/vercel/{quote(fields.pop('agent', at.agent), safe='')}", {**chat, **fields}


def user(*parts: Json) -> Json:
    return {"id": "m1", "role": "user", "parts": parts or ({"type": "text", "text": YES},)}


def agents(*parts: Json) -> Json:
    return {"id": "m2", "role": "assistant", "parts": parts}


def call(at: Asked, **fields: Any) -> Json:
    """Return the part of the call that waits, as the client has it before its user answers."""
    known = {"toolName": "delete", "toolCallId": at.tool_call_id, "input": {}}
    return {"type": "dynamic-tool", **known, "state": "approval-requested", **fields}


def approval(at: Asked, **changes: Any) -> Json:
    """Return the user's answer; a change to None removes a field."""
    answer = {
        "id": f"{at.approval_id}/{at.item_id}",
        "descriptor": {"digest": at.digest},
        "approved": True,
        **changes,
    }
    return {name: value for name, value in answer.items() if value is not None}


def response(at: Asked, **changes: Any) -> Json:
    return call(at, state="approval-responded", approval=approval(at, **changes))


def output(at: Asked, value: Any = True, **changes: Any) -> Json:
    """Return the call whose output the user has sent, as the answer that the client was asked for;
    a change to None removes a field of the question."""
    asked = {"id": f"{at.approval_id}/{at.item_id}", "digest": at.digest, **changes}
    asked = {name: value for name, value in asked.items() if value is not None}
    metadata = {"penstock": {"asked": asked}}
    return call(at, state="output-available", output=value, callProviderMetadata=metadata)


def answered(at: Asked, *, approved: bool = True, **fields: Any) -> Sent:
    """Return the request of a client whose user has answered."""
    return post(at, user(), agents(response(at, approved=approved)), **fields)


def _with_digest(digest: Any) -> Make:
    return lambda at: post(at, user(), agents(response(at, descriptor={"digest": digest})))


def _with(**changes: Any) -> Make:
    return lambda at: post(at, user(), agents(response(at, **changes)))


FORGED: Final[Mapping[str, tuple[int, Make]]] = {
    # without the digest
    "no descriptor": (422, _with(descriptor=None)),
    "an empty descriptor": (422, _with(descriptor={})),
    "a descriptor that is the digest": (
        422,
        lambda at: post(at, user(), agents(response(at, descriptor=at.digest))),
    ),
    "an empty digest": (422, _with_digest("")),
    "no digest": (422, _with_digest(None)),
    "another digest": (409, _with_digest("sha256:" + "0" * 64)),
    "a digest that is a list": (422, lambda at: _with_digest([at.digest])(at)),
    "a part of the digest": (409, lambda at: _with_digest(at.digest[:-1])(at)),
    "the digest in capitals": (409, lambda at: _with_digest(at.digest.upper())(at)),
    "the digest elsewhere in the part": (
        422,
        lambda at: post(at, user(), agents({**response(at, descriptor=None), "digest": at.digest})),
    ),
    # with the digest, where no answer is
    "a text of the user": (200, lambda at: post(at, user())),
    "a text that has the digest": (
        200,
        lambda at: post(at, user({"type": "text", "text": f"{YES} {at.approval_id} {at.digest}"})),
    ),
    "the agent's text": (422, lambda at: post(at, user(), agents({"type": "text", "text": YES}))),
    "an answer in the history": (200, lambda at: post(at, agents(response(at)), user())),
    "an answer that messageId names": (
        200,
        lambda at: post(at, agents(response(at)), user(), messageId="m2"),
    ),
    "an answer in a message of the user": (422, lambda at: post(at, user(response(at)))),
    "an answer in a message of the system": (
        422,
        lambda at: post(at, {**agents(response(at)), "role": "system"}),
    ),
    "an answer in a text": (
        422,
        lambda at: post(
            at, user(), agents({"type": "text", "text": YES, **_answer_of_no_call(at)})
        ),
    ),
    "an answer in a data part": (
        422,
        lambda at: post(
            at,
            user(),
            agents(
                {"type": "data-penstock-approval", "id": at.approval_id, **_answer_of_no_call(at)}
            ),
        ),
    ),
    "a data part that is decided": (
        422,
        lambda at: post(
            at,
            user(),
            agents(
                {
                    "type": "data-penstock-approval",
                    "id": at.approval_id,
                    "data": {"digest": at.digest, "status": "decided", "outcome": "approved"},
                }
            ),
        ),
    ),
    "a chunk of the stream as a part": (
        422,
        lambda at: post(at, user(), agents({"type": "tool-approval-response", **approval(at)})),
    ),
    "a call that is still asked": (
        422,
        lambda at: post(at, user(), agents(call(at, approval=approval(at)))),
    ),
    "a result of the call": (
        422,
        lambda at: post(
            at, user(), agents(call(at, state="output-available", output={}, approval=approval(at)))
        ),
    ),
    "a generated message": (
        409,
        lambda at: post(at, agents(response(at)), user(), trigger="regenerate-message"),
    ),
    "fields of the body": (
        200,
        lambda at: post(
            at, user(), approval=approval(at), resume=[approval(at)], decision="approve"
        ),
    ),
    "an output without the digest": (
        422,
        lambda at: post(at, user(), agents(output(at, digest=None))),
    ),
    "an output with another digest": (
        409,
        lambda at: post(at, user(), agents(output(at, digest="sha256:" + "0" * 64))),
    ),
    "an output that has the digest": (
        422,
        lambda at: post(
            at, user(), agents(output(at, {"approved": True, "digest": at.digest}, digest=None))
        ),
    ),
    "an output that does not say yes or no": (
        422,
        lambda at: post(at, user(), agents(output(at, YES))),
    ),
    "an output of a call that still waits": (
        422,
        lambda at: post(at, user(), agents({**output(at), "state": "input-available"})),
    ),
    "an output in the history": (200, lambda at: post(at, agents(output(at)), user())),
    "an output in a message of the user": (422, lambda at: post(at, user(output(at)))),
    "an output of another item": (
        422,
        lambda at: post(at, user(), agents(output(at, id=f"{at.approval_id}/other"))),
    ),
    "an output for another approval": (
        404,
        lambda at: post(
            at, user(), agents(output(at, id=f"{at.approval_id[:-12]}{'0' * 12}/{at.item_id}"))
        ),
    ),
    # of something else
    "the approval without an item": (422, lambda at: _with(id=at.approval_id)(at)),
    "another item": (422, lambda at: _with(id=f"{at.approval_id}/other")(at)),
    "another approval": (
        404,
        lambda at: _with(id=f"{at.approval_id[:-12]}{'0' * 12}/{at.item_id}")(at),
    ),
    "an id that is none": (404, lambda at: _with(id=f">/{at.item_id}")(at)),
    "another chat": (404, lambda at: answered(at, id=f"{at.session}-2")),
    "another agent": (404, lambda at: answered(at, agent="adk")),
    # no clear answer
    "a text for yes": (422, _with(approved="true")),
    "a number for yes": (422, _with(approved=1)),
    "neither yes nor no": (422, _with(approved=None)),
    "yes and no": (
        422,
        lambda at: post(at, user(), agents(response(at), response(at, approved=False))),
    ),
    "one answer with and one without the digest": (
        422,
        lambda at: post(at, user(), agents(response(at), response(at, descriptor=None))),
    ),
}


def _answer_of_no_call(at: Asked) -> Json:
    return {"state": "approval-responded", "approval": approval(at)}
