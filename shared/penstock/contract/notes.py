"""What the catalogue says of each event beyond its schema: when it comes, how often, an example.

The examples are of one imagined run, each valid against its schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.events import Event, parse, timestamp

RUN_ID = "0198c5a0-7b1e-7c3a-9d52-4f6e8a1b2c3d"
_BEGAN_MS = 1_767_175_200_000  # 2025-12-31T10:00:00Z

_ASSISTANT = {
    "agent_id": "assistant",
    "agent_type": "agent",
    "agent_name": "Assistant",
    "team_name": None,
}
# What Penstock itself says has no source.
_OURS = ("lifecycle.started", "lifecycle.paused", "lifecycle.resumed", "approval.", "automation.")

_DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_APPROVAL = "0198c5a0-8f00-7d11-a1b2-c3d4e5f60718"
_DELIVERY = "0198c5a1-0001-7aaa-8bbb-0123456789ab"
_WORKFLOW_RUN = "wf-7"


@dataclass(frozen=True, slots=True)
class Note:
    """`when` it comes, how often (`times`), and the `sequence` and `data` of its example."""

    when: str
    times: str
    sequence: int
    data: dict[str, Any]


NOTES: dict[str, Note] = {
    "lifecycle.started": Note(
        "First of all, before the upstream answers.",
        "once per run, always sequence 1",
        1,
        {"agent": "assistant", "user_id": "ada", "message": "Delete the old report."},
    ),
    "lifecycle.paused": Note(
        "Directly after `approval.requested`, when policy says that a person must be asked.",
        "once per pause",
        9,
        {"reason": "approval_required", "approval_id": _APPROVAL},
    ),
    "lifecycle.resumed": Note(
        "When the leg after a pause begins; never without a `lifecycle.paused` before it.",
        "once per pause that is continued",
        11,
        {"approval_id": _APPROVAL, "upstream_run_id": "run-5f2c"},
    ),
    "lifecycle.retrying": Note(
        "Before a failed piece of work is done again. A plain run is never tried twice.",
        "any number",
        6,
        {"retry_count": 1, "max_retries": 3, "reason": "temporary network issue", "step": "fetch"},
    ),
    "lifecycle.completed": Note(
        "When the upstream has ended well and nothing waits for an answer.",
        "one terminal event per run",
        16,
        {
            "summary": "The old report is deleted.",
            "usage": {"input_tokens": 412, "output_tokens": 37, "total_tokens": 449},
        },
    ),
    "lifecycle.failed": Note(
        "When the upstream reported an error, was lost or took too long.",
        "one terminal event per run",
        16,
        {
            "error": "The model is overloaded.",
            "code": "upstream_error",
            "error_type": "OverloadedError",
            "status_code": 529,
            "retryable": True,
        },
    ),
    "lifecycle.cancelled": Note(
        "When a cancel took effect, or after 10 s without the upstream's word.",
        "one terminal event per run",
        16,
        {"reason": "user_stop", "by": "ada", "confirmed": True},
    ),
    "llm.message_started": Note(
        "At the first text of a message.",
        "once per `message_id`",
        2,
        {"message_id": "m1", "role": "assistant", "name": "Assistant"},
    ),
    "llm.stream": Note(
        "While a message is written: between its `message_started` and `message_completed`.",
        "any number per `message_id`; most of all traffic",
        3,
        {"content": "I will look ", "message_id": "m1"},
    ),
    "llm.message_completed": Note(
        "When a message is whole. Its `content` is what its pieces make together.",
        "once per `message_id`",
        5,
        {"message_id": "m1", "role": "assistant", "content": "I will look for the report."},
    ),
    "llm.reasoning": Note(
        "While the model thinks, if the upstream shows it.",
        "any number per `reasoning_id`",
        2,
        {"thought": "The user means the report of 2023.", "reasoning_id": "r1", "debug": False},
    ),
    "llm.tool_args": Note(
        "While the arguments of a call are written, before its `tool_call`; few upstreams do.",
        "any number per `tool_call_id`",
        6,
        {"tool_call_id": "call-1", "tool": "delete_document", "delta": '{"doc_id": "d-'},
    ),
    "llm.tool_call": Note(
        "When the model asks for a tool. It does not say that the tool runs.",
        "exactly once per `tool_call_id`",
        7,
        {
            "tool": "delete_document",
            "args": {"doc_id": "d-2"},
            "tool_call_id": "call-1",
            "pending": True,
        },
    ),
    "llm.tool_progress": Note(
        "When a tool begins to run, and while it tells how far it is.",
        "any number per `tool_call_id`",
        12,
        {"tool_call_id": "call-1", "status": "running"},
    ),
    "llm.tool_result": Note(
        "When a call is over: answered, failed, rejected or expired.",
        "at most once per `tool_call_id`",
        13,
        {
            "tool": "delete_document",
            "result": {"deleted": "d-2"},
            "tool_call_id": "call-1",
            "outcome": "ok",
            "duration_s": 0.18,
        },
    ),
    "dispatch.team": Note(
        "When a team is given its task.",
        "any number",
        2,
        {"team_name": "Research", "task": "Find the old report."},
    ),
    "dispatch.worker": Note(
        "When an agent inside the run begins an inner run.",
        "once per `subrun_id`",
        3,
        {"worker_name": "Librarian", "task": "Search the archive.", "subrun_id": "sub-1"},
    ),
    "dispatch.transfer": Note(
        "When one agent hands over to another.",
        "any number",
        4,
        {"to": "Librarian", "from": "Assistant", "reason": "It knows the archive."},
    ),
    "dispatch.finished": Note(
        "When an inner run ends, before the run itself does.",
        "once per `subrun_id`",
        8,
        {"subrun_id": "sub-1", "status": "completed", "result": "Found d-2."},
    ),
    "workflow.started": Note(
        "When a workflow begins.",
        "once per workflow run",
        2,
        {"workflow": "review_workflow", "run_id": _WORKFLOW_RUN, "version": "3"},
    ),
    "workflow.step_started": Note(
        "When a step begins.",
        "once per `step_id`",
        3,
        {
            "run_id": _WORKFLOW_RUN,
            "step_id": "static_analysis",
            "description": "Running static analysis...",
            "kind": "step",
        },
    ),
    "workflow.step_progress": Note(
        "While a step runs.",
        "any number per `step_id`",
        4,
        {"step_id": "static_analysis", "message": "12 of 40 files"},
    ),
    "workflow.step_completed": Note(
        "When a step ended well.",
        "at most once per `step_id`",
        5,
        {"run_id": _WORKFLOW_RUN, "step_id": "static_analysis", "output": {"score": 82}},
    ),
    "workflow.step_failed": Note(
        "When a step ended in an error; the workflow may go on.",
        "at most once per `step_id`",
        5,
        {
            "run_id": _WORKFLOW_RUN,
            "step_id": "static_analysis",
            "error": {"code": "tool_error", "message": "No such branch.", "retryable": False},
        },
    ),
    "workflow.transition": Note(
        "When a step has chosen which one comes next.",
        "any number",
        6,
        {
            "run_id": _WORKFLOW_RUN,
            "from_step": "static_analysis",
            "to_step": "security_scan",
            "reason": "static_analysis_complete",
        },
    ),
    "workflow.completed": Note(
        "When a workflow ended well, before the run's own end.",
        "at most once per workflow run",
        9,
        {"run_id": _WORKFLOW_RUN, "result": {"summary": "Code review finished successfully."}},
    ),
    "workflow.failed": Note(
        "When a workflow ended in an error, before the run's own end.",
        "at most once per workflow run",
        9,
        {
            "run_id": _WORKFLOW_RUN,
            "error": {"code": "step_failed", "message": "static_analysis failed."},
        },
    ),
    "retrieval.started": Note(
        "When a search of a knowledge base begins, if the upstream says so.",
        "once per `retrieval_id`",
        3,
        {"retrieval_id": "q1", "query": "old report"},
    ),
    "retrieval.result": Note(
        "When documents were found.",
        "any number",
        4,
        {
            "retrieval_id": "q1",
            "documents": [{"id": "d-2", "score": 0.92, "content": "Report of 2023."}],
        },
    ),
    "approval.requested": Note(
        "When the upstream waits for decisions, before anyone is asked.",
        "once per `approval_id`",
        8,
        {
            "approval_id": _APPROVAL,
            "digest": _DIGEST,
            "expires_at": "2025-12-31T11:00:00.000Z",
            "deciders_required": 1,
            "items": [
                {
                    "item_id": "call-1",
                    "kind": "confirmation",
                    "digest": _DIGEST,
                    "tool_call_id": "call-1",
                    "tool": "delete_document",
                    "args": {"doc_id": "d-2"},
                    "editable": True,
                }
            ],
        },
    ),
    "approval.decided": Note(
        "When the decision stands, before the run goes on.",
        "at most once per `approval_id`",
        10,
        {
            "approval_id": _APPROVAL,
            "outcome": "approved",
            "by": "grace",
            "automatic": False,
            "items": [{"item_id": "call-1", "decision": "approve"}],
        },
    ),
    "approval.expired": Note(
        "When the deadline passed without a decision.",
        "at most once per `approval_id`",
        10,
        {"approval_id": _APPROVAL, "reason": "not decided by 2025-12-31T11:00:00.000Z"},
    ),
    "approval.withdrawn": Note(
        "When the decision is not needed any more. May come after the run's end.",
        "at most once per `approval_id`",
        17,
        {"approval_id": _APPROVAL, "reason": "the run was cancelled"},
    ),
    "automation.triggered": Note(
        "When a rule matched an event. May come after the run's end.",
        "once per `delivery_id`",
        17,
        {
            "automation": "notify-ops",
            "trigger": "lifecycle.completed",
            "delivery_id": _DELIVERY,
            "workflow": "SendSlackAlert",
        },
    ),
    "automation.completed": Note(
        "When the receiver has taken the delivery. May come after the run's end.",
        "at most once per `delivery_id`",
        18,
        {
            "automation": "notify-ops",
            "workflow": "SendSlackAlert",
            "delivery_id": _DELIVERY,
            "status_code": 200,
            "result": "delivered",
            "attempts": 1,
            "duration_s": 0.21,
        },
    ),
    "automation.failed": Note(
        "When a delivery was given up. May come after the run's end.",
        "at most once per `delivery_id`",
        18,
        {
            "automation": "notify-ops",
            "workflow": "SendSlackAlert",
            "delivery_id": _DELIVERY,
            "status_code": 503,
            "result": "given up",
            "attempts": 8,
            "duration_s": 3604.5,
            "error": {"code": "http_503", "message": "Service Unavailable", "retryable": True},
        },
    ),
    "state.snapshot": Note(
        "When an agent shares its whole state.",
        "any number; each replaces what was known",
        3,
        {"snapshot": {"documents": 2}},
    ),
    "state.delta": Note(
        "When an agent changes its state.",
        "any number, to be applied in order",
        4,
        {"delta": [{"op": "replace", "path": "/documents", "value": 1}]},
    ),
    "state.messages": Note(
        "When an upstream sends the conversation as it knows it.",
        "any number; each replaces what was known",
        3,
        {"messages": [{"id": "u1", "role": "user", "content": "Delete the old report."}]},
    ),
    "artifact.updated": Note(
        "When a run has made a file, or a new version of one.",
        "any number",
        14,
        {"name": "report.pdf", "version": 0, "media_type": "application/pdf", "size_bytes": 48211},
    ),
    "custom.event": Note(
        "When an upstream says something that has no type of its own here.",
        "any number",
        2,
        {"protocol": "agno", "name": "agno.MemoryUpdateStarted", "value": {"user_id": "ada"}},
    ),
    "system.warning": Note(
        "When something should be known; the run goes on.",
        "any number",
        15,
        {"message": "The answer was cut at the model's limit.", "code": "max_tokens"},
    ),
    "system.error": Note(
        "When something went wrong that did not end the run.",
        "any number",
        15,
        {"message": "An upstream frame could not be read.", "code": "bad_frame"},
    ),
    "system.metrics": Note(
        "When an upstream tells gauges of its machine.",
        "any number",
        4,
        {"cpu": 42.0, "memory_used": "3.2GB", "disk_free": "120GB", "containers_running": 5},
    ),
}


def example(event_type: str) -> Event:
    """A whole message of the type, as it stands on the bus."""
    note = NOTES[event_type]
    category, action = event_type.split(".")
    return parse(
        {
            "run_id": RUN_ID,
            "timestamp": timestamp(_BEGAN_MS + 250 * note.sequence),
            "sequence": note.sequence,
            "source": None if event_type.startswith(_OURS) else _ASSISTANT,
            "event": {"category": category, "action": action},
            "data": note.data,
            "session_id": "thread-42",
            "leg": 2 if note.sequence > 10 else 1,
        }
    )
