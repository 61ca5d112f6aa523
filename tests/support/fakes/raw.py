"""Source frames in the form of the connector and the other writers, without a bus."""

from __future__ import annotations

import json
from typing import Any

from penstock.bus.messages import RawFrame

RUN_ID = "01a1f8c3-1007-77dc-be51-6f2ae3b9b92e"


class Frames:
    """Make the frames of one run, with the numbers that RAW would give them."""

    def __init__(self, protocol: str = "agno", **facts: Any) -> None:
        self.facts = {
            "agent": "assistant",
            "protocol": protocol,
            "kind": "agent",
            "session_id": "s-1",
            "user_id": "u-1",
            "message": "hello",
            **facts,
        }
        self.sequence = 0
        self.leg = 1
        self.connection = "pod/1"
        self.clock = 0

    def frame(self, kind: str, payload: bytes = b"", writer: str = "upstream") -> RawFrame:
        self.sequence += 1
        self.clock += 1
        return RawFrame(
            RUN_ID,
            writer,
            self.sequence,
            kind,
            self.leg,
            self.connection,
            f"2026-11-20T10:00:{self.clock // 1000:02d}.{self.clock % 1000:03d}Z",
            payload,
        )

    def open(self) -> RawFrame:
        return self.frame("open", json.dumps(self.facts).encode())

    def open_next(self, approval_id: str, **decided: str) -> RawFrame:
        self.leg += 1
        items = [{"item_id": item, "decision": what} for item, what in decided.items()]
        facts = {"agent": "assistant", "approval_id": approval_id, "items": items}
        return self.frame("open", json.dumps(facts).encode())

    def bytes(self, body: bytes) -> RawFrame:
        return self.frame("bytes", body)

    def end(self, outcome: str = "eof", **facts: Any) -> RawFrame:
        return self.frame("end", json.dumps({"outcome": outcome, **facts}).encode())

    def lost(self, code: str = "upstream_lost", error: str = "gone", **facts: Any) -> RawFrame:
        return self.frame("lost", json.dumps({"code": code, "error": error, **facts}).encode())

    def event(self, type: str, writer: str = "approvals", **data: Any) -> RawFrame:
        return self.frame("event", json.dumps({"type": type, "data": data}).encode(), writer)


def agno(event: str, **fields: Any) -> bytes:
    """Return one frame of an Agno stream."""
    body = {"event": event, "agent_id": "demo-agent", "run_id": RUN_ID, **fields}
    return f"event: {event}\ndata: {json.dumps(body)}\n\n".encode()


def agui(*events: dict[str, Any]) -> bytes:
    return b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)


def agno_text(*chunks: str) -> bytes:
    """Return a whole answer of an Agno agent."""
    return b"".join(
        [
            agno("RunStarted"),
            *(agno("RunContent", content=chunk) for chunk in chunks),
            agno("RunContentCompleted"),
            agno("RunCompleted", content="".join(chunks)),
        ]
    )


def agno_pause(tool_call_id: str = "t1", path: str = "/x") -> bytes:
    """Return a turn that ends in a tool which needs a confirmation."""
    tool = {
        "tool_call_id": tool_call_id,
        "tool_name": "delete_file",
        "tool_args": {"path": path},
        "requires_confirmation": True,
        "confirmed": None,
        "result": None,
    }
    return agno("RunStarted") + agno("RunPaused", tools=[tool], requirements=[])


def agno_approved(tool_call_id: str = "t1") -> bytes:
    """Return the rest of the turn after the confirmation."""
    tool = {
        "tool_call_id": tool_call_id,
        "tool_name": "delete_file",
        "tool_args": {"path": "/x"},
        "confirmed": True,
    }
    done = {**tool, "result": "{'deleted': '/x'}", "tool_call_error": False}
    return b"".join(
        [
            agno("RunContinued"),
            agno("ToolCallStarted", tool=tool),
            agno("ToolCallCompleted", tool=done),
            agno("RunContent", content="Done."),
            agno("RunContentCompleted"),
            agno("RunCompleted", content="Done."),
        ]
    )
