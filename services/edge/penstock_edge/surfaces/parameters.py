"""The parameters that the operations of several surfaces declare."""

from __future__ import annotations

from typing import Final, get_args

from penstock.bus.records.runs import WhenBusy
from penstock.dialects.encoders import CLIENT_DIALECTS
from penstock.dialects.unified import CATEGORY_OF
from penstock.web.operation import (
    JSON,
    NULLABLE,
    OBJECT,
    SSE,
    Answer,
    Json,
    Parameter,
    a_list,
    an_object,
    in_path,
    one_of,
)
from penstock_edge.surfaces.query import IDLE, INCLUDES
from penstock_edge.views.dialects import DIALECTS

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


SWITCH: Final = one_of(("on", "off"))


def limit(most: int) -> Parameter:
    schema: Json = {"type": "integer", "minimum": 1, "maximum": most}
    return Parameter("limit", "How many entries a page has at most; streams ignore it", schema)


RUN_ID: Final = in_path("run_id", "The run's id, a UUIDv7 (a UUIDv8 in further shards)")
SESSION_ID: Final = in_path("session_id", "The session's id")
THREAD_ID: Final = in_path("thread_id", "The thread's id, which is the session's id")
AGNO_ID: Final = in_path("id", "The id in the configuration, or the upstream's name")
APP: Final = in_path("app", "The appName")
USER_ID: Final = in_path("user", "The user, who is the caller unless the caller may act for others")
APP_SESSION_ID: Final = in_path("session", "The session's id")
AGENT_ID: Final = in_path("agent", "The agent's id in the configuration")
LAST_EVENT_ID: Final = Parameter(
    "Last-Event-ID",
    "The id of the last frame that the client has read; the answer continues after this frame",
    location="header",
)
CURSOR: Final = (LAST_EVENT_ID, Parameter("after", "The same as Last-Event-ID, for pages and URLs"))
FROM: Final = Parameter(
    "from",
    "Without a cursor, the answer begins with the event of this `sequence`, or with the next one "
    "if it is not stored yet. 0 or less: with so many of the last events (-100). Not for dialects "
    "whose frames depend on earlier events, nor with the events of a workflow's steps",
    {"type": "integer", "minimum": -999_999_999, "maximum": 999_999_999},
)
SAVED_CURSOR: Final = Parameter(
    "cursor",
    "The name of a cursor that the edge saves: without Last-Event-ID, the stream continues there",
    {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
)
TIME: Final[Json] = {"type": "string", "format": "date-time"}
SINCE: Final = Parameter("since", "The answer begins at this time (RFC 3339)", TIME)
NAMES: Final = Parameter("names", "Whether frames have an `event` line", SWITCH)
MARKERS: Final = Parameter("markers", "Whether a frame marks the end of the stored events", SWITCH)
CURSORS: Final = Parameter("cursors", "Whether each message is followed by its cursor", SWITCH)
AGENT: Final = Parameter("agent", "Only runs of this agent")
USER: Final = Parameter("user_id", "The user, if not the caller; needs the scope act-as")
DIALECT: Final = Parameter("dialect", "In which dialect the events are written", one_of(DIALECTS))
ENCODED: Final = Parameter("dialect", DIALECT.description, one_of(CLIENT_DIALECTS))
TYPES: Final = (
    Parameter(
        "category",
        "Only events of these categories, separated by commas; for `dialect=unified`",
        a_list(one_of(sorted(set(CATEGORY_OF.values())))),
    ),
    Parameter(
        "type",
        "Only events of these types, separated by commas; for `dialect=unified`",
        a_list(one_of(sorted(CATEGORY_OF))),
    ),
)
INCLUDE: Final = Parameter(
    "include",
    "For the run of a workflow: whether the answer has the events of its steps' runs, too, in one "
    "order. Without it, all dialects but `canonical` and `raw` have them",
    one_of(INCLUDES),
)
OF_SESSION: Final = Parameter("session_id", "Only runs of this session")
UNTIL: Final = Parameter(
    "until", "The stream ends when no run is active or queued", one_of((IDLE,))
)
IDEMPOTENCY_KEY: Final = Parameter(
    "Idempotency-Key",
    "A request with the same key and body gets the run that the first one started",
    location="header",
)
WHEN_BUSY: Final = Parameter(
    "when_busy",
    "What a new run does while another one of the session is open, as in POST /v1/runs",
    one_of(get_args(WhenBusy)),
)
DEPTH: Final = Parameter(
    "Penstock-Depth",
    "The same header of the Penstock webhook that caused this request, if there is one. With it, "
    "Penstock ends a loop in which rules start runs through other systems",
    location="header",
)
SESSION: Final = (AGENT, USER, ENCODED, *TYPES, *CURSOR, SINCE, MARKERS, UNTIL)
