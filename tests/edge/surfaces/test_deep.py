"""Every surface refuses deeply nested JSON, because it could not always be encoded again."""

from __future__ import annotations

import pytest

from support.drive.clients import MakeEdge

DEEP = b"[" * 500 + b"]" * 500
BODIES = {
    "/v1/runs": b'{"agent": "assistant", "message": "hi", "input": {"x": %s}}',
    "/api/service/v1/executions/trigger": b'{"topologyId": 123, "userMessage": "hi", "x": %s}',
    "/run_sse": b'{"appName": "vana", "userId": "u", "sessionId": "s", "stateDelta": {"x": %s}, '
    b'"newMessage": {"role": "user", "parts": [{"text": "hi"}]}}',
    "/agui/assistant": b'{"threadId": "t", "runId": "r", "state": %s, '
    b'"messages": [{"id": "1", "role": "user", "content": "hi"}]}',
    "/agents/assistant/runs": b'{"message": "hi", "dependencies": %s}',
}


@pytest.mark.parametrize("path", BODIES)
async def test_a_body_that_is_nested_too_deeply_is_422(make_edge: MakeEdge, path: str) -> None:
    edge = await make_edge(enable_adk_canonical_stream=True)
    answer = await edge.post(
        path, content=BODIES[path] % DEEP, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 422, answer.text
