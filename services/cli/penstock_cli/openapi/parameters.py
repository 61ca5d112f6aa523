"""The parameters of the addresses, and the ids in the paths. Pure data."""

from __future__ import annotations

from typing import Final, get_args

from penstock.bus.records import RunStatus
from penstock.dialects.encoders import CLIENT_DIALECTS
from penstock.dialects.unified import CATEGORY_OF
from penstock_cli.openapi.operation import Json, Parameter, one_of
from penstock_edge.stream.pages import MAX_PAGE
from penstock_edge.surfaces.agno.routes import KINDS
from penstock_edge.surfaces.agno.session_shapes import STATUSES
from penstock_edge.surfaces.agno.sessions import MAX_LISTED as MAX_SESSIONS
from penstock_edge.surfaces.agno.sessions import SORTED_BY
from penstock_edge.surfaces.query import IDLE
from penstock_edge.surfaces.v1.runs import MAX_LISTED
from penstock_edge.views.dialects import DIALECTS

SWITCH: Final = one_of("on", "off")


def limit(most: int) -> Parameter:
    """How many at most."""
    schema: Json = {"type": "integer", "minimum": 1, "maximum": most}
    return Parameter("limit", "How many at most; of a page, not of a stream", schema)


LAST_EVENT_ID: Final = Parameter(
    "Last-Event-ID", "The last frame's id: go on after it", place="header"
)
CURSOR: Final = (LAST_EVENT_ID, Parameter("after", "The same as Last-Event-ID, for pages and URLs"))
SINCE: Final = Parameter(
    "since", "From this time on (RFC 3339)", {"type": "string", "format": "date-time"}
)
NAMES: Final = Parameter("names", "Whether frames have an `event` line", SWITCH)
MARKERS: Final = Parameter("markers", "Whether a frame tells where replay ends", SWITCH)
CURSORS: Final = Parameter("cursors", "Whether each message is followed by its cursor", SWITCH)
AGENT: Final = Parameter("agent", "Only this agent's")
USER: Final = Parameter("user_id", "Another user's; needs the scope act-as")
PROTOCOL_VERSION: Final = Parameter("protocolVersion", "The AG-UI version that the client speaks")
PRELUDE: Final = Parameter("prelude", "First restate where the thread stands", one_of("0", "1"))
DIALECT: Final = Parameter("dialect", "How the events are told", one_of(*DIALECTS))
SUBJECTS: Final = Parameter(
    "subjects", "`category.action`, where `*` is any; several by commas. Without it: all"
)
TYPES: Final = (
    Parameter(
        "category",
        "Only these, by commas; `dialect=unified` alone has them",
        one_of(*sorted(set(CATEGORY_OF.values()))),
    ),
    Parameter("type", "Only these, by commas; as `category`", one_of(*sorted(CATEGORY_OF))),
)
OF_SESSION: Final = Parameter("session_id", "Only this session's")
VERSION: Final = Parameter(
    "version", "Which version of the artifact; without it: the newest", {"type": "integer"}
)
DETAILED: Final = Parameter(
    "detailed", "Objects with descriptions instead of names", {"type": "boolean"}
)
RUN_EVENTS: Final = (DIALECT, NAMES, MARKERS, *TYPES, *CURSOR, limit(MAX_PAGE))
RUNS: Final = (
    AGENT,
    OF_SESSION,
    Parameter("status", "Only those that are so", one_of(*get_args(RunStatus))),
    limit(MAX_LISTED),
    Parameter("before", "`next` of the page before"),
)
TOLD_IN: Final = Parameter("dialect", DIALECT.description, one_of(*CLIENT_DIALECTS))
UNTIL: Final = Parameter("until", "End when nothing is under way", one_of(IDLE))
IDEMPOTENCY_KEY: Final = Parameter(
    "Idempotency-Key", "A repeat with it is given the first run", place="header"
)
SESSION: Final = (AGENT, USER, TOLD_IN, *TYPES, *CURSOR, SINCE, MARKERS, UNTIL)
AGNO_SESSION: Final = (
    Parameter("type", "Only the sessions of agents of this kind", one_of(*KINDS)),
    USER,
)
AGNO_SESSIONS: Final = (
    Parameter("component_id", "Only the sessions of this agent, team or workflow"),
    Parameter("session_name", "Only those whose first message has this in it"),
    limit(MAX_SESSIONS),
    Parameter("page", "Which page, from 1 on", {"type": "integer", "minimum": 0}),
    Parameter("sort_by", "The order", one_of(*SORTED_BY)),
    Parameter("sort_order", "Which way", one_of("asc", "desc")),
)
AGNO_RUNS: Final = (
    Parameter("status", "Only those that are so; may be repeated", one_of(*STATUSES.values())),
    Parameter("created_after", "Unix time in seconds", {"type": "integer", "minimum": 0}),
    Parameter("created_before", "Unix time in seconds", {"type": "integer", "minimum": 0}),
)

# What the names in paths stand for.
IDS: Final = {
    "run_id": "The run's id, a UUIDv7",
    "session_id": "The session's id",
    "thread_id": "The thread's id: the session's",
    "approval_id": "The approval's id, from approval.requested",
    "token_id": "The stream token's id, not the token",
    "agent": "The agent's id in the configuration",
    "id": "The id in the configuration, or the upstream's name",
    "app": "The appName",
    "user": "The user: the caller, unless it may act for others",
    "session": "The session's id",
    "artifact": "The artifact's name, and what is below it: `report.txt`, `report.txt/versions/1`",
}
