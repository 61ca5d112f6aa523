"""The span of a leg is recorded by the connector that ended the leg, with the leg's own context."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.settings import AguiAgent
from penstock.tracing import spans
from penstock.tracing.spans import Span
from penstock_connector.legs.leg_span import (
    MAX_MILESTONES,
    Milestones,
    headers_of,
    span_of,
    with_milestone,
)
from penstock_connector.legs.outcome import EOF, RELEASED, TAKEN_OVER, Outcome, lost
from penstock_connector.upstreams.base import Call
from support.fakes.recorder import recording

CLIENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
AGENT = AguiAgent(
    id="a", protocol="agui", url="http://127.0.0.1:9", headers={"authorization": "Bearer x"}
)


@pytest.fixture
def tracing() -> Iterator[None]:
    with recording():
        yield


def of(outcome: Outcome, number: int = 1) -> Span | None:
    context = spans.of_leg(CLIENT, "r1", number)
    return span_of(
        run_id="r1",
        number=number,
        agent=AGENT,
        session_id="s1",
        traceparent=context,
        outcome=outcome,
        began_ns=1,
    )


@pytest.mark.usefixtures("tracing")
def test_a_connector_that_ends_a_leg_again_records_the_same_span() -> None:
    first, again, next_leg = (
        of(EOF),
        of(lost("timeout", "secret text")),
        of(EOF, 2),
    )
    assert first is not None
    assert again is not None
    assert next_leg is not None
    assert (first.context, first.parent) == (again.context, spans.of_run(CLIENT, "r1"))
    assert (next_leg.context != first.context, next_leg.parent) == (True, first.parent)
    assert (first.error, again.error) == (None, "timeout")
    assert "secret text" not in str(again)
    assert first.attributes["gen_ai.agent.id"] == "a"
    assert first.attributes["gen_ai.conversation.id"] == "s1"


@pytest.mark.usefixtures("tracing")
@pytest.mark.parametrize("outcome", [TAKEN_OVER, RELEASED])
def test_a_connector_that_has_lost_a_leg_records_no_span(outcome: Outcome) -> None:
    assert of(outcome) is None


def test_while_tracing_is_off_the_agent_server_gets_the_clients_context() -> None:
    assert spans.of_leg(CLIENT, "r1", 1) == CLIENT
    opening = Call("http://127.0.0.1:9", {}, b"", traceparent=CLIENT)
    reattaching = Call("http://127.0.0.1:9", {"accept": "text/event-stream"}, b"")
    headers = headers_of(AGENT, reattaching, opening, run_id="r1", leg=2)
    assert headers["traceparent"] == CLIENT
    assert headers["authorization"] == "Bearer x"
    assert headers["accept"] == "text/event-stream"
    assert headers["idempotency-key"] == "r1-2"
    assert "traceparent" not in headers_of(AGENT, reattaching, None, run_id="r1", leg=2)


def test_milestones_are_kept_only_while_tracing_is_on_and_are_bounded() -> None:
    milestones: Milestones = ()
    assert with_milestone(milestones, "request sent") == ()
    with recording():
        for _ in range(MAX_MILESTONES + 5):
            milestones = with_milestone(milestones, "reattached")
    assert len(milestones) == MAX_MILESTONES
