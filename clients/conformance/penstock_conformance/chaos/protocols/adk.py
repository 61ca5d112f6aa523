"""ADK's API server: a session, and one stream for each invocation."""

from __future__ import annotations

from typing import Any

from penstock_conformance.chaos.protocols.base import NOTHING, Protocol, Run, Said, words_in
from penstock_conformance.exchange import Frame, Request


class Adk(Protocol):
    """Posts to `/run_sse`. ADK's API has no runs, so what a client can ask for is the session."""

    OFFERS = "`GET` of the session, whose last event tells whether the agent has answered"
    GOES_ON = "once, `POST /run_sse` with the `invocationId` alone, which is for resumable apps"

    def start(self, run: Run) -> list[Request]:
        text = {"role": "user", "parts": [{"text": run.message}]}
        return [
            Request("POST", self._sessions, body={"sessionId": run.session}),
            Request("POST", "/run_sse", body={**self._body(run), "newMessage": text}),
        ]

    def next(self, run: Run) -> Request | None:
        # Once the session was read, the server is there again.
        if self.goes_on and run.id is not None and run.notes.get("state") == "looked":
            run.notes["state"] = "went on"
            return Request("POST", "/run_sse", body={**self._body(run), "invocationId": run.id})
        return self.reread(run)

    def reread(self, run: Run) -> Request | None:
        return Request("GET", f"{self._sessions}/{run.session}")

    def read(self, run: Run, frame: Frame) -> Said:
        event = frame.fields
        if "error" in event:
            return Said(end="failed")
        run.id = run.id or event.get("invocationId")
        if _parts(event):  # the last event of a resumable app has none
            run.notes["last"] = event
        words = words_in(_text(event))
        # The event that is not partial repeats the text of the partial ones before it.
        return Said(words=words) if event.get("partial") else Said(shown=words)

    def read_json(self, run: Run, body: Any) -> Said:
        events = body.get("events") or []
        if events:  # a session that is new has none
            run.notes.setdefault("state", "looked")
        said = tuple(word for each in events for word in words_in(_text(each)))
        last: Any = next((each for each in reversed(events) if _parts(each)), {})
        return Said(shown=said, end="completed" if _answers(last) else None)

    def closed(self, run: Run) -> Said:
        return Said(end="completed") if _answers(run.notes.get("last") or {}) else NOTHING

    @property
    def _sessions(self) -> str:
        return f"/apps/{self.agent}/users/chaos/sessions"

    def _body(self, run: Run) -> dict[str, Any]:
        names = {"appName": self.agent, "userId": "chaos", "sessionId": run.session}
        return {**names, "streaming": True}


def _parts(event: Any) -> list[Any]:
    return list((event.get("content") or {}).get("parts") or [])


def _text(event: Any) -> str:
    if event.get("author") == "user":
        return ""
    return "".join(part.get("text") or "" for part in _parts(event))


def _answers(event: Any) -> bool:
    """Return whether the event is an agent's final answer: text, and no call of a tool."""
    calls = any("functionCall" in part or "functionResponse" in part for part in _parts(event))
    return bool(_text(event)) and not calls and not event.get("partial")
