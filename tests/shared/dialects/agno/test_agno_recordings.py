"""Agno's recorded streams, 2.3 and 3.1, give their golden drafts in any chunking."""

from __future__ import annotations

import json
from typing import Any

from penstock.dialects.base import Draft
from penstock.events import CATALOGUE, TERMINAL, typed_data
from penstock.sse import Parser
from support.drive.for_each import for_each
from support.recorded.agno import GOLDEN, decoder, decoder_for, scenarios
from support.recorded.goldens import Scenario, check, replay, stream

each_scenario = for_each("scenario", scenarios(), lambda each: each.name)


def replayed(scenario: Scenario, *, chunk_bytes: int = 1 << 16, restart: bool = False) -> list[str]:
    return replay(lambda: decoder_for(scenario), scenario, chunk_bytes=chunk_bytes, restart=restart)


@each_scenario
def test_a_recorded_stream_gives_its_golden_drafts(scenario: Scenario) -> None:
    check(GOLDEN / f"{scenario.name}.golden.jsonl", replayed(scenario))


@each_scenario
@for_each("chunk_bytes", [1, 7, 997])
def test_the_chunking_changes_nothing(scenario: Scenario, chunk_bytes: int) -> None:
    assert replayed(scenario, chunk_bytes=chunk_bytes) == replayed(scenario)


@each_scenario
def test_a_new_decoder_for_each_leg_continues_from_the_snapshot(scenario: Scenario) -> None:
    assert replayed(scenario, restart=True) == replayed(scenario)


@each_scenario
def test_every_draft_is_an_event_of_the_contract(scenario: Scenario) -> None:
    for draft in drafts_of(scenario):
        assert draft["type"] in CATALOGUE
        typed_data(draft["type"], draft["data"])


@each_scenario
def test_a_run_ends_once_and_last(scenario: Scenario) -> None:
    types = [draft["type"] for draft in drafts_of(scenario)]
    assert [name for name in types if name in TERMINAL] == types[-1:]


@each_scenario
def test_what_was_begun_is_ended_and_nothing_is_ended_twice(scenario: Scenario) -> None:
    begun: dict[str, list[str]] = {"message": [], "call": [], "subrun": []}
    ended: dict[str, list[str]] = {"message": [], "call": [], "subrun": []}
    for draft in drafts_of(scenario):
        data = draft["data"]
        match draft["type"]:
            case "llm.message_started":
                begun["message"].append(data["message_id"])
            case "llm.message_completed":
                ended["message"].append(data["message_id"])
            case "llm.tool_call":
                begun["call"].append(data["tool_call_id"])
            case "llm.tool_result":
                ended["call"].append(data["tool_call_id"])
            case "dispatch.worker":
                begun["subrun"].append(data["subrun_id"])
            case "dispatch.finished":
                ended["subrun"].append(data["subrun_id"])
    assert sorted(begun["message"]) == sorted(set(ended["message"])) == sorted(ended["message"])
    assert sorted(begun["subrun"]) == sorted(set(ended["subrun"])) == sorted(ended["subrun"])
    # A cancelled or failed run leaves calls without a result, because their outcome is unknown.
    assert set(ended["call"]) <= set(begun["call"])
    assert len(set(begun["call"])) == len(begun["call"])
    assert len(set(ended["call"])) == len(ended["call"])


@each_scenario
def test_a_message_is_the_sum_of_its_pieces(scenario: Scenario) -> None:
    pieces: dict[str, str] = {}
    for draft in drafts_of(scenario):
        data = draft["data"]
        if draft["type"] == "llm.stream":
            assert data["content"]
            pieces[data["message_id"]] = pieces.get(data["message_id"], "") + data["content"]
        if draft["type"] == "llm.message_completed" and "value" not in data:
            assert data["content"] == pieces[data["message_id"]]


def test_a_stream_that_is_taken_up_again_reads_like_one() -> None:
    folder = GOLDEN / "3.1.10"
    whole = (folder / "bg_stream.sse").read_bytes()
    frames = Parser().feed(whole)
    resumed = (folder / "bg_stream__resume_from3.sse").read_bytes()
    made = decoder()
    first = [draft for frame in frames[:4] for draft in made.feed(frame)]
    again = [*first, *stream(made, resumed), *made.end()]
    assert again == [*stream(decoder(), whole)]
    assert isinstance(again[-1], Draft)


def drafts_of(scenario: Scenario) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in replayed(scenario)]
    return [line for line in lines if "type" in line]
