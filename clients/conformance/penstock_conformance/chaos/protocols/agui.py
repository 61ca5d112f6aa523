"""AG-UI 1.0 over HTTP and SSE."""

from __future__ import annotations

from typing import Any

from penstock_conformance.chaos.protocols.base import NOTHING, Protocol, Run, Said, words_in
from penstock_conformance.exchange import Frame, Request


class Agui(Protocol):
    """Posts runs to one path, which is `agent`."""

    OFFERS = "nothing: AG-UI says that a broken stream cannot be entered again"

    def start(self, run: Run) -> list[Request]:
        message = {"id": f"{run.name}-message", "role": "user", "content": run.message}
        names = {"threadId": run.session, "runId": run.key, "protocolVersion": "1.0"}
        rest: dict[str, Any] = {"state": {}, "tools": [], "context": [], "forwardedProps": {}}
        return [
            Request(
                "POST",
                f"/{self.agent.lstrip('/')}",
                body={**names, "messages": [message], **rest},
                headers={"accept": "text/event-stream"},
            )
        ]

    def read(self, run: Run, frame: Frame) -> Said:
        event = frame.fields
        match event["type"]:
            case "RUN_STARTED":
                run.id = event.get("runId")
            case "TEXT_MESSAGE_CONTENT" | "TEXT_MESSAGE_CHUNK":
                return Said(words=words_in(event.get("delta") or ""))
            case "RUN_FINISHED":
                return Said(end="completed")
            case "RUN_ERROR":
                return Said(end="failed")
        return NOTHING
