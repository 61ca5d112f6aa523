"""Answers as Penstock does, with recorded runs: no bus, no agent and no model runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit

from penstock import sse
from penstock.events import TERMINAL, Event, parse

_ANSWER_S: Final = 60.0  # how long a stream waits for a decision


@dataclass
class _Recorded:
    """A run: its events, and how far it has come. A pause ends with a decision."""

    events: list[Event]
    decided: set[str] = field(default_factory=set)
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def run_id(self) -> str:
        return self.events[0].run_id

    @property
    def so_far(self) -> list[Event]:
        """The events up to the first pause that was not decided."""
        for number, event in enumerate(self.events, 1):
            if event.type == "lifecycle.paused" and not self._is_decided(event):
                return self.events[:number]
        return self.events

    def record(self) -> dict[str, Any]:
        """Return the record as it is before the next decision."""
        last = next(each for each in reversed(self.so_far) if each.event.category == "lifecycle")
        is_open = last.type not in {*TERMINAL, "lifecycle.paused"}
        started = self.events[0]
        return {
            "run_id": self.run_id,
            "agent": started.data.get("agent", ""),
            "session_id": started.session_id or self.run_id,
            "user_id": started.data.get("user_id", ""),
            "status": "running" if is_open else last.event.action,
            "created_at": started.timestamp,
            "updated_at": last.timestamp,
            "sequence": last.sequence,
            "summary": last.data.get("summary"),
        }

    def approvals(self) -> Iterator[dict[str, Any]]:
        """Yield the approvals that were requested so far."""
        for event in self.so_far:
            if event.type == "approval.requested":
                record = self.record()
                yield {
                    **{name: record[name] for name in ("run_id", "agent", "session_id", "user_id")},
                    **event.data,
                    "leg": event.leg or 1,
                    "status": "decided" if self._is_decided(event) else "pending",
                    "requested_at": event.timestamp,
                    "updated_at": event.timestamp,
                }

    def _is_decided(self, event: Event) -> bool:
        return event.data["approval_id"] in self.decided

    def wait_for(self, count: int) -> bool:
        """Wait until the run has so many events; return False after a minute."""
        with self.changed:
            return self.changed.wait_for(lambda: len(self.so_far) >= count, _ANSWER_S)

    def decide(self, approval_id: str) -> None:
        with self.changed:
            self.decided.add(approval_id)
            self.changed.notify_all()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Write nothing: a client may leave at any time."""


class ReplayServer:
    """Serves recorded runs at `url`: starts, streams with cursors, records, approvals, decisions.

    `add` takes what `penstock events RUN --json` prints. Each start gets the next run, again from
    the first one after the last. `cut_after` drops the next connections after so many frames,
    `turn_away` answers the next connections with these statuses and `Retry-After: 1` (200 lets one
    through), and `refuse` answers the requests to a path with a status and a text. `requests` has
    each request's path and body.
    """

    def __init__(self) -> None:
        self.cut_after: list[int] = []
        self.turn_away: list[int] = []
        self.refuse: dict[str, tuple[int, str]] = {}
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self._runs: list[_Recorded] = []
        self._starts = 0
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop to listen. Open streams go on."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def add(self, events: Path | Iterable[Mapping[str, Any]]) -> str:
        """Serve a further run, from a file of JSON lines or from events; return the run's id.

        Raises penstock.events.InvalidEvent, and ValueError for a run without events.
        """
        if isinstance(events, Path):
            events = map(json.loads, events.read_text(encoding="utf-8").splitlines())
        recorded = _Recorded([parse(each) for each in events])
        if not recorded.events:
            raise ValueError("a run has at least one event")
        self._runs.append(recorded)
        return recorded.run_id

    def answer(self, method: str, path: list[str], body: dict[str, Any]) -> tuple[int, Any]:
        """Return the status and the body, which is JSON or the run to stream."""
        found: tuple[int, Any] = 404, f"there is no {'/'.join(path)} in what is replayed"
        match method, *path:
            case ("POST", "runs") | ("POST", "workflows", _, "runs"):
                found = self._start()
            case "GET", "runs":
                found = 200, {"runs": [each.record() for each in self._runs], "next": None}
            case "GET", "approvals":
                every = [found for each in self._runs for found in each.approvals()]
                found = 200, {"approvals": every, "next": None}
            case "GET", "runs", run_id, *rest if run := self._run(run_id):
                found = 200, run if rest == ["events"] else run.record()
            case "POST", "runs", run_id, "cancel" if self._run(run_id):
                found = 409, "a recorded run cannot be cancelled"
            case _, "approvals", approval_id, *rest:
                found = self._approval(approval_id, body if rest == ["decision"] else None)
        return found

    def _start(self) -> tuple[int, Any]:
        if not self._runs:
            return 404, "there is no recorded run: call `add` first"
        self._starts += 1
        return 202, self._runs[(self._starts - 1) % len(self._runs)].record()

    def _run(self, run_id: str) -> _Recorded | None:
        return next((each for each in self._runs if each.run_id == run_id), None)

    def _approval(self, approval_id: str, decision: dict[str, Any] | None) -> tuple[int, Any]:
        for run in self._runs:
            for approval in run.approvals():
                if approval["approval_id"] == approval_id:
                    if decision is None:
                        return 200, approval
                    if decision.get("digest") != approval["digest"]:
                        return 409, "the request has changed: read it again"
                    run.decide(approval_id)
                    return 200, approval | {"status": "decided"}
        return 404, f"there is no approval {approval_id!r}"


def _handler(server: ReplayServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            size = int(self.headers.get("content-length", 0))
            self._answer(json.loads(self.rfile.read(size) or b"{}"))

        def log_message(self, format: str, *args: object) -> None:
            """Write no log."""

        def _answer(self, body: dict[str, Any]) -> None:
            path = urlsplit(self.path).path
            server.requests.append((path, body))
            _, version, *rest = [unquote(each) for each in path.split("/")]
            status: int
            found: Any
            if path in server.refuse:
                status, found = server.refuse[path]
            else:
                known = rest if version == "v1" else [path]
                status, found = server.answer(self.command, known, body)
            if isinstance(found, _Recorded):
                if "text/event-stream" in self.headers.get("accept", ""):
                    self._stream(found)
                    return
                events = [each.model_dump(exclude_unset=True) for each in found.so_far]
                found = {"events": events, "next": None}
            elif isinstance(found, str):
                found = {"title": "Refused", "status": status, "detail": found}
            content = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _stream(self, run: _Recorded) -> None:
            if server.turn_away and (status := server.turn_away.pop(0)) != 200:
                self.send_response(status)
                self.send_header("retry-after", "1")
                self.send_header("content-length", "0")
                self.end_headers()
                return
            cursor = self.headers.get("last-event-id")
            sent = int(cursor.split("-")[0]) if cursor else 0
            if sent >= len(run.events):
                self.send_response(204)
                self.end_headers()
                return
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            frames = server.cut_after.pop(0) if server.cut_after else len(run.events)
            while sent < len(run.events) and frames:
                if not run.wait_for(sent + 1):
                    return
                event = run.events[sent]
                sent, frames = sent + 1, frames - 1
                self.wfile.write(sse.encode(event.dump(), event=event.type, id=f"{sent}-0"))
            if sent < len(run.events):
                self.wfile.write(b"event: llm.")  # it is cut within a frame

    return Handler
