"""Helpers that send requests as AG-UI clients do."""

from __future__ import annotations

import uuid
from typing import Any

import orjson

from support.drive.clients import Client, Stream


def user(text: Any, id: str = "u1") -> dict[str, Any]:
    """Return a user message."""
    return {"id": id, "role": "user", "content": text}


def tool(call_id: str, content: str, **fields: Any) -> dict[str, Any]:
    """Return a tool's result, as a frontend sends it."""
    fields = {"toolCallId": call_id, "content": content, **fields}
    return {"id": uuid.uuid4().hex, "role": "tool", **fields}


def run_input(thread: str = "s1", *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a RunAgentInput as HttpAgent 1.0 sends it, without the fields of value `missing`."""
    body = {
        "threadId": thread,
        "runId": uuid.uuid4().hex,
        "protocolVersion": "1.0",
        "messages": list(messages) or [user("hello")],
        "state": {},
        "tools": [],
        "context": [],
        "forwardedProps": {},
        **fields,
    }
    return {name: value for name, value in body.items() if value != "missing"}


def post(edge: Client, agent: str, body: Any, **headers: str) -> Stream:
    """Send POST /agui/{agent}; `body` is sent as JSON, or unchanged if it is bytes."""
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    given = {"content-type": "application/json", "accept": "text/event-stream", **headers}
    return Stream(edge, "POST", f"/agui/{agent}", content=content, headers=given)


def approved(interrupt: dict[str, Any], approved: bool = True) -> dict[str, Any]:
    """Return the entry of `resume` that answers a confirmation."""
    payload = {"approved": approved}
    return {"interruptId": interrupt["id"], "status": "resolved", "payload": payload}
