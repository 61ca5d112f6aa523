"""The requests with which tests call each operation.

The scopes, error shapes and paths come from the operations' declarations. This module adds what the
declarations do not say: the query or body of a successful request, and the status that another user
gets. A path's `{names}` are replaced by the ids of Alice's runs, sessions and approvals, which
`Secured.given` makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from penstock.web.operation import Operation
from penstock_cli.openapi import OPERATIONS


@dataclass(frozen=True, slots=True)
class How:
    """One way to request an operation.

    `foreign`: the status that Bob gets for Alice's resource; 0 if the resource belongs to nobody.
    `good`: the status that Alice gets. It is a 4xx only if her request passes all checks of
    authentication and fails afterwards. `also`: scopes that this request needs in addition to those
    that the operation always needs. `body`: the body, if it is not the operation's example. `bob`:
    Bob's body, if the body names Alice. `later`: the status that Alice gets some time later.
    """

    foreign: int = 0
    good: int = 200
    also: tuple[str, ...] = ()
    query: str = ""
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    bob: Any = None
    later: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """An operation, and one way to request it."""

    operation: Operation
    how: How

    @property
    def method(self) -> str:
        """The HTTP method."""
        return self.operation.method

    @property
    def route(self) -> str:
        """The path with its parameters in braces."""
        return self.operation.template

    @property
    def needs(self) -> tuple[str, ...]:
        """The scopes that this request needs. Without one of them, it gets a refusal."""
        return (*self.operation.scopes, *self.operation.any_scope[:1], *self.how.also)

    @property
    def body(self) -> Any:
        """The body of a request that succeeds."""
        return self.operation.example if self.how.body is None else self.how.body

    def __str__(self) -> str:
        return f"{self.method} {self.route}{self.how.query}"


PAGE = {"accept": "application/json"}
ALICE = "?user_id=alice"
IDLE = "?until=idle&user_id=alice"
RUN_AGAIN = {"agent": "assistant", "message": "Hi", "forked_from": {"run_id": "{run_id}"}}
RUN_BY_BOB = {"agent": "assistant", "message": "Hello", "user_id": "alice"}
AGUI = {
    "threadId": "t-{new}",
    "runId": "{new}",
    "messages": [{"id": "m1", "role": "user", "content": "Hello"}],
    "tools": [],
    "context": [],
    "state": {},
    "forwardedProps": {},
}
VERCEL = {
    "id": "c-{new}",
    "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}],
}
A2A = {"a2a-version": "1.0"}
A2A_MESSAGE = {"messageId": "{new}", "role": "ROLE_USER", "parts": [{"text": "Hello"}]}
A2A_RPC = {
    **{"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage"},
    "params": {"message": A2A_MESSAGE},
}
RULE = {
    "id": "{new}",
    "subjects": ["lifecycle.completed"],
    "action": {"webhook": {"url": "https://hooks.example.com/penstock"}},
}
DECISION = {"items": [{"item_id": "c1", "decision": "approve"}], "digest": "d"}
ANSWER = {"tools": [{"tool_call_id": "c1", "confirmed": True}], "stream": True}
STARTED_BY_BOB = {"message": "Hello", "stream": True, "user_id": "alice"}


PREVIOUS = {"model": "assistant", "input": "Hi", "previous_response_id": "resp_{run_id}"}


def _adk(app: str) -> dict[str, Any]:
    return {
        "appName": app,
        "userId": "alice",
        "sessionId": "s-{new}",
        "newMessage": {"role": "user", "parts": [{"text": "Hello"}]},
    }


def _agno(kind: str) -> dict[str, list[How]]:
    one = f"/{kind}s/{{id}}"
    # The run has ended, so an agent's run gives 409. The body has another form for teams and
    # workflows, so these give 422.
    late = 409 if kind == "agent" else 422
    return {
        f"GET /{kind}s": [How()],
        f"GET {one}": [How()],
        f"POST {one}/runs": [How(403, also=("raw",), bob=STARTED_BY_BOB)],
        f"POST {one}/runs/{{run_id}}/continue": [How(404, late, ("raw",), body=ANSWER)],
        f"POST {one}/runs/{{run_id}}/resume": [How(404, also=("raw",))],
        f"POST {one}/runs/{{run_id}}/cancel": [How(404, 409)],
    }


_SESSION = "/apps/{app}/users/{user}/sessions"
_TASK = "/a2a/{agent}/tasks/{task}"
_THREAD = "/api/v1/agent/runs/{thread_id}"
HOW: dict[str, list[How]] = {
    # Penstock's own API
    "POST /v1/runs": [How(403, 202, bob=RUN_BY_BOB), How(404, 202, body=RUN_AGAIN)],
    "GET /v1/runs": [How()],
    "GET /v1/runs/{run_id}": [How(404)],
    "GET /v1/runs/{run_id}/events": [
        How(404),
        How(404, headers=PAGE),
        How(404, also=("raw",), query="?dialect=raw"),
    ],
    "GET /v1/runs/{run_id}/state": [How(404), How(404, query="?at=1")],
    "POST /v1/runs/{run_id}/cancel": [How(404, 409)],
    "GET /v1/runs/{run_id}/fork": [How(404), How(404, query="?sequence=1")],
    # The run has no such event. A fork would keep the session busy, since no agent runs.
    "POST /v1/runs/{run_id}/fork": [How(404, 422, body={"sequence": 49_999})],
    # No normalizer runs, so the record says that the run is queued.
    "DELETE /v1/runs/{run_id}/content": [How(404, 409)],
    "GET /v1/runs/{run_id}/erasure": [How(404, 404)],
    "POST /v1/erasures": [How(good=202)],
    "GET /v1/erasures/{erasure_id}": [How(good=404)],  # no run was erased
    "PUT /v1/runs/{run_id}/hold": [How(good=422, body={"reason": 1})],
    "DELETE /v1/runs/{run_id}/hold": [How()],
    "GET /v1/agents": [How()],
    "GET /v1/costs": [How()],
    "GET /v1/health": [How()],
    "GET /v1/system": [How()],
    "GET /v1/dead-letters": [How()],
    "POST /v1/dead-letters/{number}/replay": [How(good=404)],  # there is none
    "GET /v1/events": [How(headers=PAGE)],
    "GET /v1/sessions/{session_id}/events": [How(403, query=ALICE, headers=PAGE)],
    "GET /v1/sessions/{session_id}/queue": [How(403, query=ALICE)],
    # The run has ended, so it does not wait.
    "POST /v1/sessions/{session_id}/queue/{run_id}/move": [How(404, 409)],
    "DELETE /v1/sessions/{session_id}/queue/{run_id}": [How(404, 409)],
    # executions-sse.md
    "POST /api/service/v1/executions/trigger": [How()],
    "POST /api/service/v1/executions/cancel": [How(404, 409, body={"runId": "{run_id}"})],
    # adk-streaming.md
    "POST /run_sse": [
        How(403, also=("raw",), body=_adk("vana")),
        How(403, body=_adk("assistant")),
    ],
    "POST /run": [How(403, also=("raw",), body=_adk("vana"))],
    f"GET {_SESSION}": [How(403)],
    f"POST {_SESSION}": [How(403)],
    f"GET {_SESSION}/{{session}}": [How(403)],
    f"POST {_SESSION}/{{session}}": [How(403, 409)],
    f"PATCH {_SESSION}/{{session}}": [How(403, 422)],  # only sessions of ADK agents have a state
    f"DELETE {_SESSION}/{{session}}": [How(403)],
    f"GET {_SESSION}/{{session}}/artifacts": [How(403)],
    # Only ADK agents have them.
    f"GET {_SESSION}/{{session}}/artifacts/{{artifact}}": [How(403, 404)],
    f"GET {_SESSION}/{{session}}/run": [How(403)],
    f"POST {_SESSION}/{{session}}/run": [How(403)],
    "GET /list-apps": [How()],
    "GET /version": [How()],
    # agno-events.md
    **_agno("agent"),
    **_agno("team"),
    **_agno("workflow"),
    "GET /config": [How()],
    "GET /health": [How()],
    "GET /sessions": [How()],
    "GET /sessions/{session_id}": [How(403, query=ALICE)],
    "GET /sessions/{session_id}/runs": [How(403, query=ALICE)],
    "GET /sessions/{session_id}/run-previews": [How(403, query=ALICE)],
    "GET /sessions/{session_id}/runs/{run_id}": [How(403, query=ALICE)],
    "POST /sessions": [How(403, 201, body={"agent_id": "assistant", "user_id": "alice"})],
    # Nobody may write these resources.
    "DELETE /sessions": [How(good=405, body={})],
    "PATCH /sessions/{session_id}": [How(good=405, body={})],
    "DELETE /sessions/{session_id}": [How(good=405, body={})],
    "POST /sessions/{session_id}/rename": [How(good=405, body={})],
    # agent-runs-sse.md and AG-UI
    f"GET {_THREAD}/events": [How(403, query=IDLE)],
    f"GET {_THREAD}/history": [How(403, query=ALICE)],
    "POST /agui/{agent}": [How(body=AGUI)],
    "GET /agui/{agent}/threads/{thread_id}/events": [How(403, query=IDLE)],
    # the Vercel AI SDK
    "POST /vercel/{agent}": [How(body=VERCEL)],
    "GET /vercel/{agent}/{chat}/stream": [How(403, query=ALICE)],
    "POST /vercel/{agent}/{chat}/stop": [How(403, 409, query=ALICE)],
    # OpenAI's API
    "GET /openai/v1/models": [How()],
    "GET /openai/v1/models/{model}": [How()],
    "POST /openai/v1/chat/completions": [How()],
    "POST /openai/v1/responses": [
        How(),
        How(404, body=PREVIOUS),
    ],
    "GET /openai/v1/responses/{response_id}": [How(404), How(404, query="?stream=true")],
    "GET /openai/v1/responses/{response_id}/input_items": [How(404)],
    "POST /openai/v1/responses/{response_id}/cancel": [How(404, 409)],
    # A2A
    "GET /a2a/{agent}/.well-known/agent-card.json": [How()],
    "GET /a2a/{agent}/0.3/.well-known/agent-card.json": [How()],
    "POST /a2a/{agent}": [How(body=A2A_RPC, headers=A2A)],
    "POST /a2a/{agent}/message:send": [
        How(
            headers=A2A,
            body={"message": A2A_MESSAGE, "configuration": {"returnImmediately": True}},
        )
    ],
    "POST /a2a/{agent}/message:stream": [How(headers=A2A, body={"message": A2A_MESSAGE})],
    f"POST {_TASK}:cancel": [How(404, 400, headers=A2A)],  # the run has ended
    f"POST {_TASK}:subscribe": [How(404, 400, headers=A2A)],  # the run has ended
    f"GET {_TASK}:subscribe": [How(404, 400, headers=A2A)],
    f"GET {_TASK}": [How(404, headers=A2A)],
    "GET /a2a/{agent}/tasks": [How(headers=A2A)],
    f"POST {_TASK}/pushNotificationConfigs": [How(404, headers=A2A)],
    f"GET {_TASK}/pushNotificationConfigs": [How(404, headers=A2A)],
    f"GET {_TASK}/pushNotificationConfigs/{{config}}": [How(404, 404, headers=A2A)],
    f"DELETE {_TASK}/pushNotificationConfigs/{{config}}": [How(404, headers=A2A)],
    "GET /a2a/{agent}/extendedAgentCard": [How(good=400)],
    # approvals
    "GET /v1/approvals": [How()],
    "GET /v1/approvals/count": [How()],
    "GET /v1/approvals/events": [How(headers=PAGE)],
    "GET /v1/approvals/{approval_id}": [How(404)],
    "GET /v1/approvals/{approval_id}/audit": [How(404)],
    "POST /v1/approvals/{approval_id}/decision": [How(404, body=DECISION)],
    "DELETE /v1/approvals/{approval_id}/decision": [How(404, 409)],  # Alice has not voted
    "POST /v1/approvals/{approval_id}/remarks": [How(404)],
    "GET /v1/policy": [How()],
    "GET /v1/budgets": [How()],
    "GET /v1/redactions": [How()],
    "GET /v1/budgets/accounts": [How()],
    "POST /v1/policy/try": [How()],
    # Alice's policy has a mistake, so it changes nothing for the tests that follow.
    "PUT /v1/policy": [How(good=422, body={"version": 0})],
    "PUT /v1/budgets": [How(good=422, body={"version": 0})],
    "PUT /v1/redactions": [How(good=422, body={"version": 0})],
    # automations
    "GET /v1/automations": [How()],
    "POST /v1/automations": [How(good=201, body=RULE)],
    "GET /v1/automations/endpoints": [How()],
    "GET /v1/automations/deliveries": [How()],
    "POST /v1/automations/dry-run": [How()],
    "POST /v1/automations/replay": [How(good=202)],
    "POST /v1/automations/retry-now": [How(good=202)],
    "GET /v1/automations/{rule_id}": [How(404)],
    "PUT /v1/automations/{rule_id}": [How(404, body={**RULE, "id": "{rule_id}"})],
    "PATCH /v1/automations/{rule_id}": [How(404)],
    "DELETE /v1/automations/{rule_id}": [How(404)],
    "POST /v1/automations/{rule_id}/pause": [How(404)],
    "POST /v1/automations/{rule_id}/resume": [How(404)],
    "POST /v1/automations/{rule_id}/secrets": [How(404)],
    "DELETE /v1/automations/{rule_id}/secrets/previous": [How(404)],
    "POST /v1/automations/{rule_id}/test": [How(404)],
    "POST /v1/automations/{rule_id}/dry-run": [How(404)],
    "POST /v1/automations/{rule_id}/backfill": [How(404, 202)],
    "GET /v1/automations/{rule_id}/deliveries": [How(404)],
    "GET /v1/automations/{rule_id}/deliveries/{delivery_id}": [How(404)],
    "POST /v1/automations/{rule_id}/deliveries/{delivery_id}/replay": [How(404, 202)],
    "POST /v1/automations/{rule_id}/replay": [How(404, 202)],
    "POST /v1/automations/{rule_id}/deliveries/{delivery_id}/retry-now": [How(404, 202, later=409)],
    "POST /v1/automations/{rule_id}/retry-now": [How(404, 202)],
    # workflows
    "GET /v1/workflows": [How()],
    "GET /v1/workflows/{name}": [How()],
    "GET /v1/workflows/{name}/versions": [How()],
    "GET /v1/workflows/{name}/versions/{version}": [How()],
    "PUT /v1/workflows/{name}/versions/{version}": [How()],
    "PUT /v1/workflows/{name}/latest": [How()],
    "DELETE /v1/workflows/{name}": [How(good=204)],
    "POST /v1/workflows/validate": [How()],
    # The run waits for no turn.
    "GET /v1/workflows/{name}/runs/{run_id}/turn": [How(404, 404)],
    "POST /v1/workflows/{name}/runs": [
        How(good=202),
        How(good=202, also=("act-as",), body={"user_id": "carol"}),
        How(404, 202, body={"forked_from": {"run_id": "{run_id}"}}),
    ],
    # Anybody may call a hook. This rule has none, so the answer is that of a wrong signature.
    "POST /v1/hooks/{rule_id}": [How(good=404)],
    "GET /v1/approvals/{approval_id}/lines": [How(404)],
    "POST /v1/approvals/{approval_id}/links": [How(good=201)],
    "DELETE /v1/approvals/{approval_id}/links/{link_id}": [How(good=204)],
    # one-time links
    "GET /d/{secret}": [How()],
    "POST /d/{secret}": [How(good=415)],  # the body must be a form
    # credentials
    "POST /v1/login": [How()],
    "POST /v1/logout": [How(good=204)],
    "GET /v1/csrf": [How()],
    "GET /v1/login": [How()],
    "GET /v1/me": [How()],
    "GET /v1/oidc/login": [How(good=404)],
    "GET /v1/oidc/callback": [How(good=404)],
    "POST /v1/tokens": [How(good=201)],
    "GET /v1/tokens": [How()],
    "PATCH /v1/tokens/{token_id}": [How(404)],
    "DELETE /v1/tokens/{token_id}": [How(404, 204)],
    "POST /v1/service-tokens": [How(good=201)],
    "GET /v1/service-tokens": [How()],
    "DELETE /v1/service-tokens/{service_token_id}": [How(good=204)],
}


def name_of(operation: Operation) -> str:
    """Return the operation's key in `HOW`."""
    return f"{operation.method} {operation.template}"


def _rows() -> Iterator[Row]:
    for operation in PUBLISHED:
        if not operation.websocket:
            yield from (Row(operation, how) for how in HOW[name_of(operation)])


PUBLISHED = [operation for operation in OPERATIONS if operation.published]
ROWS = list(_rows())
# Static files belong to no user and are not part of the API.
FILES = [
    Row(operation, How())
    for operation in OPERATIONS
    if not operation.published and operation.method == "GET"
]
