"""Each defect that the fuzz tests have found, as a test of its own."""

from __future__ import annotations

import orjson
import pytest

from fuzz import folded
from fuzz.test_growth import adk, agui, run_of
from penstock.bus.messages import RawFrame
from penstock.dialects.base import AgentFacts, Draft
from penstock_normalizer.fold.envelope import CanonicalEvent
from penstock_normalizer.fold.run_fold import RunFold
from support.fakes.raw import RUN_ID, Frames

HUGE = 2**63


def told(protocol: str, body: bytes) -> list[CanonicalEvent]:
    """Return the events of a response that comes in one piece."""
    fold = run_of(protocol)
    received = folded.RECEIVED
    events = [
        placed
        for number, (kind, payload) in enumerate((("bytes", body), ("end", b"{}")), 2)
        for placed in fold.feed(
            RawFrame(RUN_ID, "upstream", number, kind, 1, "pod/1", received, payload)
        )
    ]
    assert fold.error is None
    return events


@pytest.mark.parametrize(
    ("protocol", "body"),
    [
        ("agui", agui("RUN_FINISHED", usage=[{"inputTokens": HUGE, "outputTokens": 2}] * 2)),
        ("adk", adk({"text": "x"}, usageMetadata={"promptTokenCount": HUGE}) * 2),
    ],
)
def test_counts_whose_sum_json_cannot_hold_are_not_summed(protocol: str, body: bytes) -> None:
    *_, end = told(protocol, body)
    assert end.type == "lifecycle.completed"
    assert "input_tokens" not in end.data.get("usage", {})


class Unwritable:
    """A decoder whose final event cannot be written as JSON."""

    def __init__(self, agent: AgentFacts) -> None:
        pass

    def open(self, leg: int) -> list[Draft]:
        return [Draft("lifecycle.completed", {"summary": "x", "value": 2**64})]


def test_an_end_that_cannot_be_written_is_a_failure_with_all_that_one_has() -> None:
    fold = RunFold(RUN_ID, {"agno": Unwritable})  # type: ignore[dict-item]  # only `open` is called
    events = fold.feed(Frames("agno").open())
    folded.check(events)
    body = orjson.loads(events[-1].body)
    assert (events[-1].type, body["data"]["code"]) == ("lifecycle.failed", "internal")
    assert "lifecycle.completed cannot be written" in body["data"]["error"]
    assert fold.ended == "lifecycle.failed"
