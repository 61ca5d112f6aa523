"""Every route of Penstock, and what a caller needs for it: the table of the tests of access.

A path's `{names}` stand for things of Alice's, which `Secured.given` makes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Shape = Literal["problem", "executions", "detail"]


@dataclass(frozen=True, slots=True)
class Row:
    """One route, asked by its method.

    `needs`: the scopes without any of which it is refused. `foreign`: what Bob is answered about
    what is Alice's; 0 where nothing in the request is anybody's. `good`: what Alice is answered;
    4xx and 5xx only where her request comes through to an end that is none of authentication's.
    """

    method: str
    route: str
    needs: tuple[str, ...] = ()
    foreign: int = 0
    good: int = 200
    shape: Shape = "problem"
    query: str = ""
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    public: bool = False  # nobody is asked, or the answer is not about rights
    bob: Any = None  # Bob's body, where it is the body that names Alice

    def __str__(self) -> str:
        return f"{self.method} {self.route}{self.query}"


PAGE = {"accept": "application/json"}
SESSION = "/apps/{app}/users/{user}/sessions"
THREAD = "/api/v1/agent/runs/{session_id}"
AGUI = {
    "threadId": "t-{new}",
    "runId": "{new}",
    "messages": [{"id": "m1", "role": "user", "content": "Hello"}],
    "tools": [],
    "context": [],
    "state": {},
    "forwardedProps": {},
}
MESSAGE = {"agent": "assistant", "message": "Hello"}
ALICE = "?user_id=alice"
SUBJECTS = {"subjects": ["*.*"]}


def _adk(app: str, **changes: Any) -> dict[str, Any]:
    return {
        "appName": app,
        "userId": "alice",
        "sessionId": "s-{new}",
        "newMessage": {"role": "user", "parts": [{"text": "Hello"}]},
        **changes,
    }


def _agno(kind: str) -> list[Row]:
    path = f"/{kind}s"
    one, runs = f"{path}/{{id}}", f"{path}/{{id}}/runs"
    decision = {"tools": [{"tool_call_id": "c1", "confirmed": True}], "stream": True}
    return [
        Row("GET", path, ("read",), shape="detail"),
        Row("GET", one, ("read",), shape="detail"),
        Row(
            "POST",
            runs,
            ("start", "raw"),
            403,
            shape="detail",
            body={"message": "Hello", "stream": True},
            bob={"message": "Hello", "stream": True, "user_id": "alice"},
        ),
        Row(
            "POST",
            f"{runs}/{{run_id}}/continue",
            ("decide", "raw"),
            404,
            good=409 if kind == "agent" else 422,  # it has ended; the others' answers look else
            shape="detail",
            body=decision,
        ),
        Row("POST", f"{runs}/{{run_id}}/cancel", ("start",), 404, good=409, shape="detail"),
    ]


ROWS = [
    # our own API
    Row("POST", "/v1/runs", ("start",), 403, 202, body=MESSAGE, bob=MESSAGE | {"user_id": "alice"}),
    Row("GET", "/v1/runs", ("read",)),
    Row("GET", "/v1/runs/{run_id}", ("read",), 404),
    Row("GET", "/v1/runs/{run_id}/events", ("read",), 404),
    Row("GET", "/v1/runs/{run_id}/events", ("read",), 404, headers=PAGE),
    Row("GET", "/v1/runs/{run_id}/events", ("read", "raw"), 404, query="?dialect=raw"),
    Row("POST", "/v1/runs/{run_id}/cancel", ("start",), 404, 409),
    Row("GET", "/v1/agents", ("read",)),
    Row("GET", "/v1/events", ("read",), headers=PAGE),
    Row(
        "GET",
        "/v1/sessions/{session_id}/events",
        ("read",),
        403,
        query="?user_id=alice",
        headers=PAGE,
    ),
    # executions-sse.md
    Row(
        "POST",
        "/api/service/v1/executions/trigger",
        ("start",),
        shape="executions",
        body={"topologyId": 123, "userMessage": "Hello"},
    ),
    Row(
        "POST",
        "/api/service/v1/executions/cancel",
        ("start",),
        404,
        409,
        shape="executions",
        body={"runId": "{run_id}"},
    ),
    # adk-streaming.md
    Row("POST", "/run_sse", ("start", "raw"), 403, shape="detail", body=_adk("vana")),
    Row("POST", "/run_sse", ("start",), 403, shape="detail", body=_adk("assistant")),
    Row("POST", "/run", ("start", "raw"), 403, shape="detail", body=_adk("vana")),
    Row("GET", SESSION, ("read",), 403, shape="detail"),
    Row("POST", SESSION, ("start",), 403, shape="detail", body={}),
    Row("GET", f"{SESSION}/{{session}}", ("read",), 403, shape="detail"),
    Row("POST", f"{SESSION}/{{session}}", ("start",), 403, 409, shape="detail", body={}),
    Row(
        "PATCH",
        f"{SESSION}/{{session}}",
        ("start",),
        403,
        good=422,  # only ADK agents have state
        shape="detail",
        body={"stateDelta": {"colour": "blue"}},
    ),
    Row("DELETE", f"{SESSION}/{{session}}", ("start",), 403, shape="detail"),
    Row("GET", f"{SESSION}/{{session}}/artifacts", ("read",), 403, shape="detail"),
    Row(
        "GET",
        f"{SESSION}/{{session}}/artifacts/{{artifact}}",
        ("read",),
        403,
        good=404,  # only ADK agents have artifacts
        shape="detail",
    ),
    Row("GET", f"{SESSION}/{{session}}/run", ("read",), 403, shape="detail"),
    Row("POST", f"{SESSION}/{{session}}/run", ("start",), 403, shape="detail", body={"query": "?"}),
    # agno-events.md
    *_agno("agent"),
    *_agno("team"),
    *_agno("workflow"),
    *(Row("GET", path, ("read",), shape="detail") for path in ("/config", "/health", "/sessions")),
    *(
        Row("GET", f"/sessions/{{session}}{below}", ("read",), 403, shape="detail", query=ALICE)
        for below in ("", "/runs", "/run-previews", "/runs/{run}")
    ),
    # nobody may write them
    *(
        Row(method, f"/sessions{below}", good=405, shape="detail", body={})
        for method, below in (
            ("POST", ""),
            ("DELETE", ""),
            ("PATCH", "/{session}"),
            ("DELETE", "/{session}"),
            ("POST", "/{session}/rename"),
        )
    ),
    *(Row("GET", path, ("read",), shape="detail") for path in ("/list-apps", "/version")),
    # agent-runs-sse.md and AG-UI
    Row("GET", f"{THREAD}/events", ("read",), 403, query="?until=idle&user_id=alice"),
    Row("GET", f"{THREAD}/history", ("read",), 403, query="?user_id=alice"),
    Row("POST", "/agui/{id}", ("start",), shape="detail", body=AGUI),
    Row(
        "GET",
        "/agui/{id}/threads/{session_id}/events",
        ("read",),
        403,
        shape="detail",
        query="?until=idle&user_id=alice",
    ),
    # approvals
    Row("GET", "/v1/approvals", ("read",)),
    Row("GET", "/v1/approvals/{approval_id}", ("read",), 404),
    Row(
        "POST",
        "/v1/approvals/{approval_id}/decision",
        ("decide",),
        404,
        body={"items": [{"item_id": "c1", "decision": "approve"}]},
    ),
    # credentials
    Row("POST", "/v1/login"),
    Row("POST", "/v1/logout", good=204, public=True),
    Row("GET", "/v1/csrf"),
    Row("POST", "/v1/tokens", ("read",), good=201, body=SUBJECTS),
    Row("GET", "/v1/tokens", ("read",)),
    Row("PATCH", "/v1/tokens/{token_id}", ("read",), 404, body={"lifetime_s": 60}),
    Row("DELETE", "/v1/tokens/{token_id}", ("read",), 404, 204),
]

# Static files: they hold nobody's data, and nobody is asked. They are no part of the API.
FILES = [
    Row("GET", route, public=True)
    for route in (
        "/",
        "/docs",
        "/openapi.json",
        "/favicon.ico",
        "/assets/icon.svg",
        "/assets/page.css",
        "/assets/page.js",
        "/assets/api.js",
        "/assets/text.js",
        "/assets/approval.js",
        "/assets/trial.js",
        "/assets/docs.js",
    )
]
