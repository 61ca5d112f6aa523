"""Reads the requests of A2A's clients, and writes their errors. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from penstock.bus.records.webhooks import Push
from penstock.web.operation import TEXT
from penstock.web.problems import ErrorShape, Problem, schema_of
from penstock_edge.surfaces.legs import ClientAnswer

JsonObject = dict[str, Any]


def _none(value: Any) -> Any:
    return value or None  # an empty text is the default of a text in clients' protobuf messages


Id = Annotated[Annotated[str, Field(max_length=512)] | None, BeforeValidator(_none)]
Count = Annotated[int, Field(ge=0)]


class AnyRequest(BaseModel):
    """Unknown fields are ignored, and fields may have the names of the protocol's definition, as
    the specification demands."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class MessagePart(AnyRequest):
    """A text, or a value. The content of any other part is refused."""

    text: str | None = None
    data: Any = None


class TaskMessage(AnyRequest):
    """A message of the user, of A2A 1.0 or 0.3."""

    message_id: Annotated[str, Field(min_length=1, max_length=512)]
    role: Literal["ROLE_USER", "user"]
    parts: Annotated[list[MessagePart], Field(min_length=1)]
    context_id: Id = None
    task_id: Id = None

    def values(self) -> list[Any]:
        """Return the values of the data parts; Problem if a part is neither text nor data."""
        for part in self.parts:
            if not part.model_fields_set & {"text", "data"}:
                text = "message.parts: only parts with text or data are accepted"
                raise refusal("CONTENT_TYPE_NOT_SUPPORTED", text)
        return [part.data for part in self.parts if "data" in part.model_fields_set]

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.parts if part.text)


class Authentication(AnyRequest):
    """What the header `Authorization` of a push notification has."""

    scheme: Annotated[str, Field(min_length=1, max_length=64)]
    credentials: str = ""


class PushNotification(AnyRequest):
    """Where a client is told of a task's changes."""

    task_id: Id = None
    id: Annotated[Annotated[str, Field(max_length=128)] | None, BeforeValidator(_none)] = None
    url: str
    token: Id = None
    authentication: Authentication | None = None

    def push(self) -> Push:
        """Without an id, the URL is the id, so that a request which is sent again adds nothing."""
        auth = self.authentication or Authentication(scheme="Bearer")
        scheme = auth.scheme if self.authentication else None
        if self.token is not None and scheme is not None and scheme.lower() != "bearer":
            raise Problem(422, "authentication: with a token, the scheme must be Bearer")
        push_id = self.id or hashlib.sha256(self.url.encode()).hexdigest()[:16]
        return Push(
            id=push_id,
            url=self.url,
            token=self.token,
            scheme=scheme,
            credentials=auth.credentials or None,
        )


def shown_push(push: Push, run_id: str) -> JsonObject:
    """Return a push notification as its client sees it, without the secrets."""
    auth = {"authentication": {"scheme": push.scheme}} if push.scheme else {}
    return {"taskId": run_id, "id": push.id, "url": push.url, **auth}


class SendConfiguration(AnyRequest):
    """How a message is answered; `blocking` is of A2A 0.3."""

    return_immediately: bool = False
    blocking: bool = True
    history_length: Count | None = None
    task_push_notification_config: PushNotification | None = None
    push_notification_config: Any = None


class SendRequest(AnyRequest):
    """A message to an agent, which begins a task or answers one."""

    message: TaskMessage
    configuration: SendConfiguration = SendConfiguration()


class TaskRequest(AnyRequest):
    """A request about one task."""

    id: str
    history_length: Count | None = None


class ConfigRequest(AnyRequest):
    """A request about the push notifications of a task, or about one of them."""

    task_id: str
    id: str = ""


class ListRequest(AnyRequest):
    """A page of the caller's tasks."""

    context_id: Id = None
    status: Id = None
    page_size: Annotated[int, Field(ge=1, le=100)] = 50
    page_token: Id = None
    history_length: Count | None = None
    status_timestamp_after: datetime | None = None
    include_artifacts: bool = False


class RpcRequest(AnyRequest):
    """A request of JSON-RPC 2.0."""

    jsonrpc: Literal["2.0"]
    id: str | int | None = None
    method: str
    params: JsonObject = {}


class ItemDecision(BaseModel):
    """The decision on one item of an approval."""

    model_config = ConfigDict(extra="forbid")

    item_id: str
    decision: Literal["approve", "reject"]
    note: str | None = None
    value: Any = None
    args: JsonObject | None = None


class Decision(BaseModel):
    """The data part that decides an approval: the same for all items, or one for each."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["approval.decision"] = "approval.decision"
    approval_id: str
    digest: Annotated[str, Field(min_length=1)]
    decision: Literal["approve", "reject"] | None = None
    note: str | None = None
    items: list[ItemDecision] = []

    def answers(self) -> list[ClientAnswer]:
        if (self.decision is None) is not bool(self.items):
            raise Problem(422, "message.parts: a decision has either `decision` or `items`")
        same = {"decision": self.decision, "note": self.note}
        sent = [each.model_dump(exclude_none=True) for each in self.items] or [same]
        return [
            ClientAnswer(self.approval_id, partial(_decided, each), self.digest) for each in sent
        ]


def _decided(sent: JsonObject, item: JsonObject) -> JsonObject | None:
    """Return the decision on an item; None if the one that was sent is on another item."""
    fields = {"item_id": item["item_id"], **sent}
    return fields if fields["item_id"] == item["item_id"] else None


# --- Errors

# The code of JSON-RPC, the status of google.rpc, and that of HTTP (5.4, in A2A 1.0.1). Over REST,
# the official client shows only errors with one of these reasons.
_ERRORS: Final[Mapping[str, tuple[int, str, int]]] = {
    "TASK_NOT_FOUND": (-32001, "NOT_FOUND", 404),
    "TASK_NOT_CANCELABLE": (-32002, "FAILED_PRECONDITION", 400),
    "PUSH_NOTIFICATION_NOT_SUPPORTED": (-32003, "FAILED_PRECONDITION", 400),
    "UNSUPPORTED_OPERATION": (-32004, "FAILED_PRECONDITION", 400),
    "CONTENT_TYPE_NOT_SUPPORTED": (-32005, "INVALID_ARGUMENT", 400),
    "VERSION_NOT_SUPPORTED": (-32009, "FAILED_PRECONDITION", 400),
    "INVALID_REQUEST": (-32600, "INVALID_ARGUMENT", 400),
    "METHOD_NOT_FOUND": (-32601, "UNIMPLEMENTED", 400),
    "INVALID_PARAMS": (-32602, "INVALID_ARGUMENT", 400),
    "INTERNAL_ERROR": (-32603, "INTERNAL", 500),
    "PARSE_ERROR": (-32700, "INVALID_ARGUMENT", 400),
}
# The reason of any other Problem by its status, and the status of google.rpc where it differs.
_OTHERS: Final[Mapping[int, tuple[str, str | None]]] = {
    **dict.fromkeys((400, 422), ("INVALID_PARAMS", None)),
    401: ("INVALID_REQUEST", "UNAUTHENTICATED"),
    403: ("INVALID_REQUEST", "PERMISSION_DENIED"),
    404: ("INVALID_PARAMS", "NOT_FOUND"),
    409: ("UNSUPPORTED_OPERATION", None),
    410: ("TASK_NOT_FOUND", None),
    415: ("CONTENT_TYPE_NOT_SUPPORTED", None),
    429: ("INTERNAL_ERROR", "RESOURCE_EXHAUSTED"),
    503: ("INTERNAL_ERROR", "UNAVAILABLE"),
}


def refusal(reason: str, detail: str) -> Problem:
    return Problem(_ERRORS[reason][2], detail, reason=reason)


def _described(problem: Problem) -> tuple[int, str, JsonObject]:
    """Return the code of JSON-RPC, the status of google.rpc, and the details of an error."""
    reason, name = _OTHERS.get(problem.status, ("INTERNAL_ERROR", None))
    if "reason" in problem.more:
        reason, name = problem.more["reason"], None
    code, status, _ = _ERRORS[reason]
    about = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "domain": "a2a-protocol.org"}
    return code, name or status, {**about, "reason": reason, "metadata": {}}


def rpc_error(problem: Problem) -> JsonObject:
    code, _, details = _described(problem)
    return {"code": code, "message": problem.detail, "data": [details]}


def rest_error(problem: Problem) -> JsonObject:
    _, name, details = _described(problem)
    error = {"code": problem.status, "status": name, "message": problem.detail}
    return {"error": {**error, "details": [details]}}


def _rpc_body(problem: Problem) -> Mapping[str, Any]:
    return {"jsonrpc": "2.0", "id": None, "error": rpc_error(problem)}


_SOME: Final = {"type": "object"}
RPC_ERRORS: Final = ErrorShape(
    "a2a_rpc", "application/json", schema_of(jsonrpc=TEXT, id={}, error=_SOME), _rpc_body
)
REST_ERRORS: Final = ErrorShape("a2a", "application/json", schema_of(error=_SOME), rest_error)
