"""Collects a leg's frames into one list of ADK events, which is the body of /run. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import orjson
from starlette.responses import Response

from penstock.sse import Frame, FrameTooLarge, Parser
from penstock.web.problems import Problem
from penstock_edge.stream.responses.single_body import Body

SHOWN_CHARACTERS: Final = 2000


class EventList(Body):
    """A response body that lists the leg's events as JSON.

    If the leg failed, the response is an error instead of the list.
    """

    def __init__(self) -> None:
        self._parser = Parser()
        self._frames: list[Frame] = []

    def add(self, taken: bytes) -> None:
        """Add the next bytes of the stream.

        Raises:
            Problem: 502 if a frame is too large.
        """
        try:
            self._frames += self._parser.feed(taken)
        except FrameTooLarge as error:
            raise Problem(502, f"the upstream sent too much: {error}") from error

    def response(self) -> Response:
        return Response(listed(self._frames), media_type="application/json")


def listed(frames: Iterable[Frame]) -> bytes:
    """Return the frames' events, unchanged, as a JSON list.

    Partial events are left out, because a later complete event has their content.

    Raises:
        Problem: the leg ended with an error frame of adk-streaming.md. The statuses are ADK's: 504
            for a timeout, 502 if the agent server refused the request, 500 for every other error.
    """
    events = []
    for frame in frames:
        try:
            event = orjson.loads(frame.data)
        except orjson.JSONDecodeError:
            # ADK up to 1.22 does not escape the text of an error frame, so such a frame is not
            # JSON.
            text = frame.data.decode(errors="replace")
            raise Problem(500, text[:SHOWN_CHARACTERS]) from None
        if isinstance(event, dict) and "error" in event and "author" not in event:
            raise _failure(event)
        if not (isinstance(event, dict) and event.get("partial") is True):
            events.append(frame.data)
    return b"[" + b",".join(events) + b"]"


def _failure(event: dict[str, Any]) -> Problem:
    text = str(event["error"])
    if "status_code" in event:
        return Problem(502, f"{text}: {event.get('detail', '')}"[:SHOWN_CHARACTERS])
    return Problem(504 if event.get("error_code") == "TIMEOUT" else 500, text)
