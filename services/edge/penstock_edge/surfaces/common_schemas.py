"""Schemas and answers that the operations of several surfaces declare."""

from __future__ import annotations

from typing import Final

from penstock.web.operation import JSON, NULLABLE, OBJECT, SSE, Answer, Json, a_list, an_object

PAGE: Final = an_object(events=a_list(OBJECT), next=NULLABLE)
STREAM: Final[Json] = {
    "type": "string",
    "description": "Frames of Server-Sent Events, each with the cursor as its `id`.",
}
STREAMED: Final = Answer("The stream", {SSE: STREAM})
OVER: Final = Answer("All events were sent before; do not reconnect")
FOLLOWED: Final = {200: STREAMED, 204: OVER}
STREAM_OR_PAGE: Final = {
    200: Answer("The stream, or a page where JSON is accepted", {SSE: STREAM, JSON: PAGE}),
    204: OVER,
}
