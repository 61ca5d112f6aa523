"""The API of LangGraph's servers: `langgraph dev`, aegra and others."""

from __future__ import annotations

from collections.abc import Mapping
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
    "success": "completed",
    "error": "failed",
    "timeout": "failed",
    "interrupted": "failed",
}


class LangGraph(Protocol):
    """Streams a thread's run with `stream_resumable`, so that frames have ids to continue after."""

    OFFERS = (
        "`GET …/runs/{id}/stream` with `Last-Event-ID`, as LangGraph's own client does, then "
        "`GET …/runs/{id}`, and at the end the thread's state"
    )

    def start(self, run: Run) -> list[Request]:
        body = {
            "assistant_id": self.agent,
            "input": {"messages": [{"role": "user", "content": run.message}]},
            "stream_mode": ["messages-tuple"],
            "stream_resumable": True,
            "on_disconnect": "continue",
        }
        thread = {"thread_id": run.session, "if_exists": "do_nothing"}
        return [
            Request("POST", "/threads", body=thread),
            Request("POST", f"/threads/{run.session}/runs/stream", body=body),
        ]

    def next(self, run: Run) -> Request | None:
        if run.id is None:
            return None
        if "end" in run.notes:
            return self.reread(run)  # the whole text
        path = f"/threads/{run.session}/runs/{run.id}"
        if run.notes.pop("closed", False):
            return Request("GET", path)
        headers = {"last-event-id": run.cursor} if run.cursor else {}
        return Request("GET", f"{path}/stream", headers=headers)

    def reread(self, run: Run) -> Request | None:
        return Request("GET", f"/threads/{run.session}/state")

    def read_headers(self, run: Run, headers: Mapping[str, str]) -> None:
        if "/runs/" in (location := headers.get("content-location", "")):
            run.id = location.rpartition("/")[2]

    def read(self, run: Run, frame: Frame) -> Said:
        run.cursor = frame.id or run.cursor
        match frame.event:
            case "metadata":
                run.id = frame.fields["run_id"]
            case "messages":
                message = frame.value[0]
                if str(message.get("type", "")).startswith(("ai", "AI")):
                    return Said(words=words_in(message.get("content") or ""))
            case "error" if "404" in str(frame.fields.get("message")):
                return Said(unknown=True)
            case "error":
                return Said(end="failed")
        return NOTHING

    def read_json(self, run: Run, body: Any) -> Said:
        if "values" in body:
            return Said(shown=words_in(body["values"]), end=run.notes.get("end"))
        if end := _ENDS.get(body.get("status", "")):
            run.notes["end"] = end
        return NOTHING

    def closed(self, run: Run) -> Said:
        run.notes["closed"] = True
        return NOTHING
