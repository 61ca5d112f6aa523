"""Agno AgentOS 3: runs in the background, with `event_index` as the cursor."""

from __future__ import annotations

from typing import Any

from penstock_conformance.chaos.protocols.base import (
    NOTHING,
    End,
    Protocol,
    Run,
    Said,
    words_in,
)
from penstock_conformance.exchange import Frame, Request

_ENDS: dict[str, End] = {
    "RunCompleted": "completed",
    "RunError": "failed",
    "RunCancelled": "failed",
    "COMPLETED": "completed",
    "ERROR": "failed",
    "CANCELLED": "failed",
}


class Agno(Protocol):
    """Starts with `background=true`, which the server offers for runs that outlive a client."""

    OFFERS = (
        "`POST …/resume` with the last `event_index`, and `GET …/runs/{id}`, by turns "
        "(the run was started with `background=true`)"
    )
    GOES_ON = "once, `POST …/runs/{id}/continue` for a run that is still RUNNING after the restart"

    def start(self, run: Run) -> list[Request]:
        form = {
            "message": run.message,
            "session_id": run.session,
            "stream": "true",
            "background": "true",
        }
        return [Request("POST", f"/agents/{self.agent}/runs", form=form)]

    def next(self, run: Run) -> Request | None:
        if run.id is None:
            return None
        path = f"/agents/{self.agent}/runs/{run.id}"
        if self.goes_on and run.notes.get("status") == "RUNNING" and "went_on" not in run.notes:
            run.notes["went_on"] = True
            form = {"session_id": run.session, "stream": "true", "background": "true"}
            return Request("POST", f"{path}/continue", form=form)
        if run.asked % 2:
            return Request("GET", f"{path}?session_id={run.session}")
        form = {"session_id": run.session}
        if run.cursor is not None:
            form["last_event_index"] = run.cursor
        return Request("POST", f"{path}/resume", form=form)

    def reread(self, run: Run) -> Request | None:
        if run.id is None:
            return None
        return Request("GET", f"/agents/{self.agent}/runs/{run.id}?session_id={run.session}")

    def read(self, run: Run, frame: Frame) -> Said:
        data = frame.fields
        run.id = run.id or data.get("run_id")
        if "event_index" in data:
            run.cursor = str(data["event_index"])
        event = data.get("event")
        if event == "error":
            return Said(unknown="not found" in str(data.get("error")))
        if event == "RunContent":
            return Said(words=words_in(data.get("content", "")))
        if event in _ENDS:
            return Said(shown=words_in(data.get("content", "")), end=_ENDS[event])
        return NOTHING

    def read_json(self, run: Run, body: Any) -> Said:
        run.notes["status"] = body.get("status")
        return Said(shown=words_in(body), end=_ENDS.get(body.get("status", "")))
