"""Runs of Penstock's workflows as docs/workflow-events.md defines them, with the children's events.

The two runs are the examples of the documents: the code review of unified-events.md and the
diagnosis of executions-sse.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from support.fakes.raw import RUN_ID

Event = dict[str, Any]
Said = tuple[str, dict[str, Any], str | None, dict[str, Any]]  # type, data, step id, fields


def child(number: int) -> str:
    """Return the id of the run that is the child of that number."""
    return f"01a1f8c3-1008-7{number:03d}-9e51-6f2ae3b9b92e"


def source(
    agent_id: str, agent_type: str, name: str, team: str | None = None
) -> dict[str, str | None]:
    """Return the source of an event."""
    return {"agent_id": agent_id, "agent_type": agent_type, "agent_name": name, "team_name": team}


def run(own: dict[str, str | None], said: Iterable[Said]) -> list[Event]:
    """Return the envelopes. `own` is the source of events without a source in their fields."""
    events: list[Event] = []
    for number, (type, data, step_id, fields) in enumerate(said, 1):
        category, _, action = type.partition(".")
        event: Event = {
            "run_id": RUN_ID,
            "timestamp": f"2026-11-20T10:00:{number // 10:02d}.{number % 10}00Z",
            "sequence": number,
            "source": None if number == 1 else own,
            "event": {"category": category, "action": action},
            "data": data,
            "session_id": "s-1",
            "leg": 1,
        }
        if step_id is not None:
            event["step_id"] = step_id
        events.append({**event, **fields})
    return events


def own(type: str, of_step: str | None = None, /, **data: Any) -> Said:
    """Return an event of the workflow itself; `of_step` is the id of the event's step."""
    return type, data, of_step, {}


def started(agent: str, version: str, input: Any) -> list[Said]:
    """Return the two events of a run's start."""
    return [
        own("lifecycle.started", agent=agent, user_id="u-1", workflow=agent),
        own("workflow.started", workflow=agent, run_id=RUN_ID, version=version, input=input),
    ]


def moved(from_step: str, to_step: str, reason: str) -> Said:
    """Return a transition."""
    ends = {"from_step": from_step, "to_step": to_step}
    return own("workflow.transition", run_id=RUN_ID, **ends, reason=reason)


def begun(
    step: str, description: str, kind: str, run_id: str = RUN_ID, id: str = "", **data: Any
) -> Said:
    """Return the start of a step. `id` is the step's id where it is not `step_<name>`."""
    data = {"step_id": id or f"step_{step}", "description": description, "kind": kind, **data}
    return own("workflow.step_started", data["step_id"], run_id=run_id, **data)


def worked(step: str, worker: str, number: int, task: str, **data: Any) -> list[Said]:
    """Return the dispatch and the start of a step that a worker does."""
    names = {"worker_name": worker, "task": task, "subrun_id": child(number)}
    description = data.pop("description", step)
    doer = {"child_run_id": child(number), "role": "worker", **data}
    return [
        own("dispatch.worker", f"step_{step}", **names),
        begun(step, description, "step", **doer),
    ]


def said(step: str, number: int, text: str, speaker: dict[str, str | None], **subrun: Any) -> Said:
    """Return the message of a child."""
    message = {"message_id": f"{child(number)}/m1", "role": "assistant", "content": text}
    inner = {"id": child(number), "name": speaker["agent_id"], **subrun}
    return "llm.message_completed", message, f"step_{step}", {"source": speaker, "subrun": inner}


def done(step: str, number: int, text: str, output: Any) -> list[Said]:
    """Return the end of a child, and of the step that the child did."""
    step_id = f"step_{step}"
    ended = {"run_id": RUN_ID, "step_id": step_id, "output": output, "child_run_id": child(number)}
    return [
        own("dispatch.finished", step_id, subrun_id=child(number), status="completed", result=text),
        own("workflow.step_completed", step_id, **ended),
    ]


def gate(approval_id: str, step: str, title: str, show: dict[str, Any]) -> list[Said]:
    """Return the start of a step that asks a person, and its request."""
    item = {
        **{"item_id": f"step_{step}", "kind": "confirmation", "digest": "d", "editable": False},
        **{"description": title, "args": show},
    }
    asked = {"approval_id": approval_id, "digest": "d", "deciders_required": 1, "items": [item]}
    return [begun(step, step, "approve"), own("approval.requested", f"step_{step}", **asked)]


def decided(approval_id: str, step: str) -> Said:
    """Return the approval of a step."""
    items = [{"item_id": f"step_{step}", "decision": "approve"}]
    by = {"outcome": "approved", "by": "ann", "automatic": False}
    return own("approval.decided", f"step_{step}", approval_id=approval_id, **by, items=items)


LINTER: Final = source("linter", "worker", "Linter")
SCANNER: Final = source("scanner", "worker", "Scanner")
WRITER: Final = source("writer", "worker", "Writer")
SCORE: Final = '{"score": 82}'
REPORT: Final = "Code review finished successfully."


def code_review() -> list[Event]:
    """Return the code review: one step fails once, and both steps need a person's consent."""
    analysis = {"description": "Running static analysis..."}
    own_source = source("review_workflow", "global_supervisor", "Code review")
    failed = {"status": "failed", "error": "temporary network issue"}
    retry = {"retry_count": 1, "max_retries": 3, "reason": "temporary network issue"}
    allow = {"score": 82}
    return run(
        own_source,
        [
            *started("review_workflow", "1", {"diff": "+1"}),
            *worked("static_analysis", "linter", 1, "Review this diff", **analysis),
            *worked("security_scan", "scanner", 3, "Scan this diff"),
            own("dispatch.finished", "step_static_analysis", subrun_id=child(1), **failed),
            own("lifecycle.retrying", **retry, step="static_analysis"),
            *worked("static_analysis", "linter", 2, "Review this diff", **analysis, attempt=2),
            said("security_scan", 3, "No findings.", SCANNER),
            *done("security_scan", 3, "No findings.", {"findings": []}),
            moved("security_scan", "license_check", "security_scan_complete"),
            *gate("a-2", "license_check", "Are the licenses fine?", {}),
            said("static_analysis", 2, SCORE, LINTER),
            *done("static_analysis", 2, SCORE, {"score": 82}),
            moved("static_analysis", "sign_off", "when"),
            *gate("a-1", "sign_off", "Merge with score 82?", allow),
            own("lifecycle.paused", reason="approval_required", approval_id="a-2"),
            decided("a-1", "sign_off"),
            own("lifecycle.resumed", approval_id="a-1"),
            own(
                "workflow.step_completed",
                "step_sign_off",
                **{"run_id": RUN_ID, "step_id": "step_sign_off", "output": {"approved": True}},
            ),
            own("lifecycle.paused", reason="approval_required", approval_id="a-2"),
            decided("a-2", "license_check"),
            own("lifecycle.resumed", approval_id="a-2"),
            own(
                "workflow.step_completed",
                "step_license_check",
                **{"run_id": RUN_ID, "step_id": "step_license_check", "output": {"approved": True}},
            ),
            moved("sign_off", "report", "sign_off_complete"),
            moved("license_check", "report", "license_check_complete"),
            *worked("report", "writer", 4, "Score 82"),
            said("report", 4, REPORT, WRITER),
            *done("report", 4, REPORT, REPORT),
            own("workflow.completed", run_id=RUN_ID, result=REPORT),
            own("lifecycle.completed", summary=REPORT),
        ],
    )


TEAM: Final = "Payment Gateway"
GLOBAL: Final = source("10", "global_supervisor", "Global Supervisor")
TEAM_SUPERVISOR: Final = source("15", "team_supervisor", "Payment Gateway Supervisor", TEAM)
MONITOR: Final = source("20", "worker", "Database Monitor", TEAM)
TEAM_TASK: Final = "Check database cluster health and connection pool status"
WORKER_TASK: Final = "Execute database health check"
CONCLUSION: Final = "Diagnosis completed successfully. Found 2 warnings, 0 critical issues."


def diagnosis() -> list[Event]:
    """Return the diagnosis with one team, whose nested workflow has one worker."""
    team, worker = "step_teams.0", f"{child(6)}/step_workers.0"
    inside = {"source": TEAM_SUPERVISOR, "subrun": {"id": child(6), "name": "diagnosis_team"}}
    under = {"id": child(8), "parent_id": child(6), "name": "20"}
    by_worker = {"source": MONITOR, "subrun": under}
    whole = {"run_id": RUN_ID, "step_id": "step_teams", "output": ["The database is healthy."]}
    item: dict[str, Any] = {"parent_step_id": "step_teams", "iteration": 1}
    doer = {"child_run_id": child(6), "role": "team_supervisor", "team_name": TEAM}
    worker_names = {"worker_name": "Database Monitor", "task": WORKER_TASK}
    call = {"tool": "check_database_status", "tool_call_id": f"{child(8)}/c1"}
    args = {"host": "db-cluster-01", "timeout": 30}
    healthy = {"status": "healthy", "connections": 45, "latency_ms": 12}

    inner = {"subrun_id": child(8), "parent_subrun_id": child(6)}
    step = {
        **{"run_id": child(6), "step_id": worker, "description": "workers", "kind": "step"},
        **{"child_run_id": child(8), "role": "worker"},
    }
    begins = {"workflow": "diagnosis_team", "run_id": child(6), "version": "1"}
    ends = {"run_id": child(6), "result": "The database is healthy."}
    over = {"subrun_id": child(8), "status": "completed", "result": "healthy"}
    stepped = {"run_id": child(6), "step_id": worker, "output": "healthy"}

    def in_team(type: str, data: dict[str, Any], step_id: str = team) -> Said:
        return type, data, step_id, inside

    return run(
        GLOBAL,
        [
            *started("10", "3", {"message": "Analyze system state"}),
            *worked("plan", "10", 5, "Analyze system state", role="global_supervisor"),
            said("plan", 5, "One team.", GLOBAL),
            *done("plan", 5, "One team.", {"teams": [{"name": TEAM, "task": TEAM_TASK}]}),
            moved("plan", "teams", "plan_complete"),
            begun("teams", "teams", "parallel"),
            own("dispatch.team", team, team_name=TEAM, task=TEAM_TASK, subrun_id=child(6)),
            begun("teams", "teams", "workflow", id=team, **item, **doer),
            in_team("workflow.started", begins),
            in_team("dispatch.worker", {**worker_names, **inner}, worker),
            in_team("workflow.step_started", step, worker),
            ("llm.tool_call", {**call, "args": args}, worker, by_worker),
            ("llm.tool_result", {**call, "result": healthy, "outcome": "ok"}, worker, by_worker),
            in_team("dispatch.finished", over, worker),
            in_team("workflow.step_completed", stepped, worker),
            in_team("workflow.completed", ends),
            own("dispatch.finished", team, subrun_id=child(6), status="completed"),
            own("workflow.step_completed", team, **{**whole, "step_id": team}),
            own("workflow.step_completed", "step_teams", **whole),
            moved("teams", "summary", "teams_complete"),
            *worked("summary", "10", 9, "Conclude", role="global_supervisor"),
            said("summary", 9, CONCLUSION, GLOBAL),
            *done("summary", 9, CONCLUSION, CONCLUSION),
            own("workflow.completed", run_id=RUN_ID, result=CONCLUSION),
            own("lifecycle.completed", summary=CONCLUSION),
        ],
    )
