"""Runs that wait for a decision, without a connector or an upstream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from penstock.bus import RawWriter, messages, streams, subjects
from penstock.bus.read import direct
from penstock.bus.records.approvals import ApprovalRecord, ContinueCommand
from penstock.bus.records.runs import RunRecord
from support.drive.pipeline import Event, Pipeline, new_run_id
from support.fakes.raw import agno


def asks(*tools: dict[str, Any]) -> bytes:
    """Return an Agno stream that pauses for these tools."""
    return agno("RunStarted") + agno("RunPaused", tools=list(tools), requirements=[])


def confirmation(tool_call_id: str = "t1", **args: Any) -> dict[str, Any]:
    """Return a tool that needs a confirmation."""
    return {
        "tool_call_id": tool_call_id,
        "tool_name": "delete_file",
        "tool_args": args or {"path": "/x"},
        "requires_confirmation": True,
    }


def user_input(tool_call_id: str = "t1") -> dict[str, Any]:
    """Return a tool that needs the input of an address and a number."""
    return {
        "tool_call_id": tool_call_id,
        "tool_name": "send",
        "tool_args": {},
        "requires_user_input": True,
        "user_input_schema": [
            {"name": "to", "field_type": "str", "description": "Whom", "value": None},
            {"name": "copies", "field_type": "int", "description": "How many", "value": None},
        ],
    }


async def pause(
    penstock: Pipeline, *tools: dict[str, Any], agent: str = "a", session_id: str = "s"
) -> ApprovalRecord:
    """Pause a new run for these tools (default: one confirmation); return the approval."""
    run_id = await start_and_pause(penstock, *tools, agent=agent, session_id=session_id)
    *_, paused = await penstock.events_until(run_id, "lifecycle.paused")
    return await penstock.approval(paused.data["approval_id"])


async def start_and_pause(
    penstock: Pipeline,
    *tools: dict[str, Any],
    agent: str = "a",
    session_id: str = "s",
    roles: Sequence[str] = (),
) -> str:
    """Start a run whose stream pauses, without the approvals service; return the run id.

    The run has its `approval.requested`, and no `lifecycle.paused` yet.
    """
    run_id, now = new_run_id(), messages.now()
    facts = {"run_id": run_id, "agent": agent, "session_id": session_id, "user_id": "u1"}
    times = {"created_at": now, "updated_at": now}
    record = RunRecord.model_validate({**facts, **times, "roles": list(roles) or None})
    await penstock.bus.bucket("runs").create(run_id, record.dump())
    writer = RawWriter(penstock.bus, run_id, "upstream", f"test/{run_id}")
    await writer.write("open", orjson.dumps({**facts, "protocol": "agno"}), leg=1)
    await writer.write("bytes", asks(*tools or [confirmation()]), leg=1)
    await writer.write("end", b'{"outcome":"eof"}', leg=1)
    await penstock.events_until(run_id, "approval.requested")
    return run_id


async def end(penstock: Pipeline, run_id: str) -> None:
    """Cancel the run in its current state."""
    writer = await RawWriter.resume(penstock.bus, run_id, "edge", f"test/{new_run_id()}")
    ending = {"type": "lifecycle.cancelled", "data": {"reason": "user_stop", "confirmed": True}}
    await writer.write("event", orjson.dumps(ending), leg=1)


async def continues(penstock: Pipeline, run_id: str) -> list[ContinueCommand]:
    """Return the continue commands that wait in the stream COMMANDS."""
    subject = subjects.command("connector", "continue", run_id)
    found = direct.replay(penstock.bus, streams.COMMANDS, subject)
    return [ContinueCommand.model_validate_json(stored.payload) async for stored in found]


def of_type(events: list[Event], type_: str) -> list[Event]:
    """Return the events of one type."""
    return [event for event in events if event.type == type_]
