"""Penstock's own API."""

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
    "lifecycle.completed": "completed",
    "lifecycle.failed": "failed",
    "lifecycle.cancelled": "failed",
}


class Penstock(Protocol):
    """Starts with an idempotency key, and follows the run's events."""

    OFFERS = (
        "the start again with the same `Idempotency-Key`, and "
        "`GET /v1/runs/{id}/events` with `Last-Event-ID`"
    )

    def start(self, run: Run) -> list[Request]:
        body = {"agent": self.agent, "message": run.message, "session_id": run.session}
        return [Request("POST", "/v1/runs", body=body, headers={"idempotency-key": run.key})]

    def next(self, run: Run) -> Request | None:
        if run.id is None:
            return self.start(run)[0]
        headers = {"last-event-id": run.cursor} if run.cursor else {}
        return self._events(run, headers)

    def reread(self, run: Run) -> Request | None:
        return self._events(run, {}) if run.id else None

    def read(self, run: Run, frame: Frame) -> Said:
        run.cursor = frame.id or run.cursor
        run.id = frame.fields["run_id"]
        if frame.event == "llm.stream":
            return Said(words=words_in(frame.fields["data"]["content"]))
        end = _ENDS.get(frame.event or "")
        return Said(end=end) if end else NOTHING

    def read_json(self, run: Run, body: Any) -> Said:
        run.id = body["run_id"]  # of a start that was repeated
        return NOTHING

    def _events(self, run: Run, headers: dict[str, str]) -> Request:
        return Request("GET", f"/v1/runs/{run.id}/events", headers=headers)
