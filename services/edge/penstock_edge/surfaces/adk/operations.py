"""Constants and checks that the handlers of the ADK surface share."""

from __future__ import annotations

from functools import partial
from typing import Final

from penstock.web.operation import Operation
from penstock.web.problems import DETAIL, Problem
from penstock_edge.edge import Edge
from penstock_edge.surfaces.adk.request import RunAgentRequest
from penstock_edge.surfaces.parameters import WHEN_BUSY

ADK: Final = "adk"
NOT_ENABLED: Final = (
    "ADK canonical streaming not enabled. "
    "Set ENABLE_ADK_CANONICAL_STREAM=true to use this endpoint."
)


# The statuses of errors with which the edge answers if it has asked an ADK server.
UPSTREAM: Final = (404, 409, 502, 504)
# Those of who reads what an ADK server has stored of a session: 410 after an erasure.
READING: Final = (*UPSTREAM, 410)
RAW: Final = "where the agent is an ADK agent, because its server's bytes are relayed"
operation = partial(Operation, tag="adk", errors=DETAIL, sometimes={"raw": RAW})
leg_operation = partial(
    operation,
    method="POST",
    scopes=(),
    any_scope=("start", "decide"),
    description="A new run needs the scope `start`, the answer to a pause `decide`.",
    parameters=(WHEN_BUSY,),
    body=RunAgentRequest,
    example={
        "appName": "assistant",
        "userId": "ada",
        "sessionId": "session-1",
        "newMessage": {"role": "user", "parts": [{"text": "Hello"}]},
    },
)


def require_enabled(edge: Edge) -> None:
    if not edge.settings.enable_adk_canonical_stream:
        raise Problem(501, NOT_ENABLED)
