"""Makes the span of a leg, and the headers of the leg's request to an agent server."""

from __future__ import annotations

import time
from typing import Final

from penstock.settings import ServerAgent
from penstock.tracing import spans
from penstock.tracing.spans import Span
from penstock_connector.legs.outcome import Outcome
from penstock_connector.upstreams.base import Call, leg_key

# The steps that a leg has reached, such as the first bytes of the answer. Each step has its time,
# in nanoseconds since 1970.
Milestones = tuple[tuple[str, int], ...]
MAX_MILESTONES: Final = 32  # the most milestones of one leg, which may reattach any number of times


def with_milestone(milestones: Milestones, reached: str) -> Milestones:
    """Return the milestones and the new one; unchanged while tracing is off, or if they are
    full."""
    if not spans.is_on() or len(milestones) >= MAX_MILESTONES:
        return milestones
    return (*milestones, (reached, time.time_ns()))


def headers_of(
    agent: ServerAgent, call: Call, opening: Call | None, *, run_id: str, leg: int
) -> dict[str, str]:
    """Return the headers of a request; `opening` is the call that has the leg's trace context."""
    traceparent = opening.traceparent if opening is not None else None
    traced = {"traceparent": traceparent} if traceparent is not None else {}
    # The agent server must not compress the body. The body is stored byte for byte, and the readers
    # of RAW parse the stored bytes as an event stream.
    return {
        "accept-encoding": "identity",
        **traced,
        **agent.headers,
        **call.headers,
        "idempotency-key": leg_key(run_id, leg),
    }


def span_of(
    *,
    run_id: str,
    number: int,
    agent: ServerAgent,
    session_id: str,
    traceparent: str | None,
    outcome: Outcome,
    began_ns: int,
    milestones: Milestones = (),
) -> Span | None:
    """Return the span of a leg that ends now; None if the run has no trace.

    `traceparent` is the trace context of the leg; it is None if the leg's request was not made.
    Another connector records the span of a leg that it has taken over.
    """
    parent = spans.of_run(traceparent, run_id)
    if parent is None or traceparent is None or not outcome.is_ours:
        return None
    return Span(
        name=f"leg {agent.id}",
        kind="client",
        context=traceparent,
        parent=parent,
        began_ns=began_ns,
        ended_ns=time.time_ns(),
        attributes={
            "gen_ai.agent.id": agent.id,
            "gen_ai.agent.name": agent.id,
            "gen_ai.conversation.id": session_id,
            "penstock.run.id": run_id,
            "penstock.leg": number,
            "penstock.leg.outcome": outcome.label,
            "penstock.protocol": agent.protocol,
        },
        error=outcome.code,
        events=milestones,
    )
