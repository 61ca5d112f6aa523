"""The state of a decoder that waits is stored in one form, which later versions read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.dialects.base import AgentFacts
from penstock.dialects.decoders import DECODERS
from support.recorded import agno, agui, canonical
from support.recorded.goldens import Scenario, check, stream

GOLDEN = Path(__file__).parents[2] / "golden/snapshots"
SCENARIOS = {
    "agno": agno.scenarios,
    "adk": lambda: list(canonical.adk_scenarios()),
    "agui": agui.scenarios,
}


def states(protocol: str) -> Iterator[dict[str, Any]]:
    """Yield the stored state of each recorded run before each of its later legs."""
    for scenario in SCENARIOS[protocol]():
        if len(scenario.legs) > 1:
            for leg, state in enumerate(after_legs(protocol, scenario), 1):
                yield {"run": scenario.name, "leg": leg, "state": state}


def after_legs(protocol: str, scenario: Scenario) -> Iterator[dict[str, Any]]:
    decoder = DECODERS[protocol](AgentFacts("assistant", kind=canonical.kind_of(scenario)))
    for leg, path in enumerate(scenario.legs, 1):
        decoder.open(leg)
        if leg > 1:
            decoder.decided(scenario.decided(leg))
        stream(decoder, path.read_bytes())
        decoder.end()
        yield json.loads(json.dumps(decoder.snapshot()))


@pytest.mark.parametrize("protocol", SCENARIOS)
def test_what_is_stored_has_its_form(protocol: str) -> None:
    """`UPDATE_GOLDENS=1` writes it anew: a key may be added, and older ones must be read."""
    lines = [json.dumps(each, ensure_ascii=False) for each in states(protocol)]
    check(GOLDEN / f"{protocol}.jsonl", lines)


@pytest.mark.parametrize("protocol", SCENARIOS)
def test_what_is_stored_is_read_back(protocol: str) -> None:
    lines = (GOLDEN / f"{protocol}.jsonl").read_text("utf-8").removesuffix("\n").split("\n")
    assert lines
    for line in lines:
        state = json.loads(line)["state"]
        decoder = DECODERS[protocol](AgentFacts("assistant"))
        decoder.restore(state)
        assert json.loads(json.dumps(decoder.snapshot())) == state
