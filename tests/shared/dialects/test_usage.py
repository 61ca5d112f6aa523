"""The tokens of `llm.usage` are those that the agent servers count, each model call once.

The server's own sums are read from the recordings here, without the decoders.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from penstock.dialects.base import AgentFacts, Draft, Pause
from penstock.dialects.decoders import DECODERS
from penstock.events import typed_data
from penstock.sse import Frame, Parser
from support.drive.for_each import for_each
from support.drive.repository import ROOT
from support.recorded import agno, agui, canonical
from support.recorded.agno import frame, only
from support.recorded.goldens import Scenario, stream

Sums = tuple[int, int]  # input and output tokens

RECORDED: dict[str, tuple[str, Scenario]] = {
    f"{protocol}/{scenario.name}": (protocol, scenario)
    for protocol, scenarios in (
        ("agno", agno.scenarios()),
        ("adk", list(canonical.adk_scenarios())),
        ("agui", agui.scenarios()),
    )
    for scenario in scenarios
}

# What the server counts for the run (None: it tells nothing), what Penstock counts, and why the two
# differ. docs/costs.md has the same table.
DIFFERENCES: dict[str, tuple[Sums | None, Sums, str]] = {
    "agno/3.1.10/bg_stream__resume_from3": (
        (206, 21),
        (104, 10),
        "The recording begins after the first model call.",
    ),
    "agno/3.1.10/model_error_after_tool": (
        None,
        (102, 11),
        "RunError has no metrics; the call before the error was counted.",
    ),
    "adk/2.13.0/empty_stream": (None, (11, 7), "ADK stores no event of an empty answer."),
    "adk/2.13.0/midstream_stream": (
        None,
        (11, 1),
        "ADK stores no event of an answer that was cut off: `estimated`.",
    ),
}


def bodies(scenario: Scenario) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of the recorded frames."""
    for path in scenario.legs:
        for each in Parser().feed(path.read_bytes()):
            try:
                body = json.loads(each.data)
            except ValueError:
                continue
            if isinstance(body, dict):
                yield body


def counted_by_agno(scenario: Scenario) -> Sums | None:
    """Add the metrics of the last frame of each run; a team's do not contain its members'."""
    ends = {
        body["run_id"]: body["metrics"]
        for body in bodies(scenario)
        if body.get("event") in ("RunCompleted", "TeamRunCompleted") and body.get("metrics")
    }
    sums = [(each.get("input_tokens", 0), each.get("output_tokens", 0)) for each in ends.values()]
    return added(sums) if any(map(any, sums)) else None


def counted_by_adk(scenario: Scenario) -> Sums | None:
    """Add the counts of the stored events. ADK stores no partial event, and tells no sum."""
    found: dict[str, Sums] = {}
    for body in bodies(scenario):
        usage = body.get("usageMetadata")
        if usage and body.get("partial") is not True:
            written = usage["candidatesTokenCount"] + usage.get("thoughtsTokenCount", 0)
            found[body["id"]] = (usage["promptTokenCount"], written)
    return added(list(found.values())) if found else None


def counted_by_agui(scenario: Scenario) -> Sums | None:
    models = [each for body in bodies(scenario) for each in body.get("usage") or ()]
    return added([(each["inputTokens"], each["outputTokens"]) for each in models]) or None


SERVERS = {"agno": counted_by_agno, "adk": counted_by_adk, "agui": counted_by_agui}


def added(sums: list[Sums]) -> Sums | None:
    return (sum(read for read, _ in sums), sum(written for _, written in sums)) if sums else None


def drafts_of(protocol: str, scenario: Scenario) -> list[Draft | Pause]:
    decoder = DECODERS[protocol](AgentFacts("assistant", kind=canonical.kind_of(scenario)))
    drafts: list[Draft | Pause] = []
    for leg, path in enumerate(scenario.legs, 1):
        drafts += decoder.open(leg)
        if leg > 1:
            drafts += decoder.decided(scenario.decided(leg))
        drafts += stream(decoder, path.read_bytes())
        drafts += decoder.abort() if leg in scenario.cut else decoder.end()
    return drafts


def counted_by_penstock(protocol: str, scenario: Scenario) -> Sums | None:
    used = [draft.data for draft in only(drafts_of(protocol, scenario), "llm.usage")]
    return added([(each.get("input_tokens", 0), each.get("output_tokens", 0)) for each in used])


@cache
def counted(name: str) -> tuple[Sums | None, Sums | None]:
    """Return what the server counts in a recording, and what Penstock counts."""
    protocol, scenario = RECORDED[name]
    return SERVERS[protocol](scenario), counted_by_penstock(protocol, scenario)


@for_each("name", list(RECORDED))
def test_a_recorded_run_has_the_tokens_that_its_server_counts(name: str) -> None:
    server, ours = counted(name)
    assert (server, ours) == DIFFERENCES.get(name, (ours, ours))[:2]


def test_the_documents_table_has_the_sums_of_each_server_and_version() -> None:
    document = (ROOT / "docs/costs.md").read_text("utf-8")
    servers: dict[str, list[tuple[Sums | None, Sums]]] = {}
    for name in RECORDED:
        server, ours = counted(name)
        if ours is not None:
            servers.setdefault(name.rpartition("/")[0], []).append((server, ours))
    assert {"agno/2.3.18", "agno/3.1.10", "adk/1.16.0", "adk/2.13.0"} < servers.keys()
    for name, found in servers.items():
        told = added([server for server, _ in found if server is not None])
        ours = added([ours for _, ours in found])
        assert f"| {name} | {len(found)} | {shown(told)} | {shown(ours)} |" in document


@for_each("name", list(RECORDED))
def test_the_tokens_are_valid_events_before_the_end_of_the_run(name: str) -> None:
    drafts = drafts_of(*RECORDED[name])
    for used in only(drafts, "llm.usage"):
        typed_data("llm.usage", used.data)
    last = drafts[-1] if drafts else None
    assert not isinstance(last, Draft) or last.type != "llm.usage"


@for_each("name", [name for name in RECORDED if name.startswith("agno/2.3")])
def test_only_the_double_sum_of_a_continued_run_of_agno_2_3_is_an_estimate(name: str) -> None:
    _, scenario = RECORDED[name]
    used = only(drafts_of("agno", scenario), "llm.usage")
    assert [each.data["estimated"] for each in used] == [len(scenario.legs) > 1] * len(used)


def test_a_member_of_a_team_has_its_own_tokens() -> None:
    _, scenario = RECORDED["agno/3.1.10/team_delegate"]
    used = only(drafts_of("agno", scenario), "llm.usage")
    sums: Counter[str] = Counter()
    for each in used:
        assert each.source is not None
        sums[each.source["agent_name"]] += each.data["input_tokens"]
    assert sums == {"Demo Team": 206, "Researcher": 206}


def test_an_output_model_of_agno_which_has_no_frame_is_counted() -> None:
    _, scenario = RECORDED["agno/3.1.10/output_model"]
    used = [each.data for each in only(drafts_of("agno", scenario), "llm.usage")]
    assert [(each["model"], each["reported"]) for each in used] == [
        ("fake-1", "call"),
        ("fake-out", "run"),
    ]


def test_the_setting_drop_does_not_drop_tokens() -> None:
    decoder = agno.decoder(drop=frozenset({"ModelRequestCompleted"}))
    [used] = agno.feed(decoder, called(input_tokens=3, output_tokens=1))
    assert isinstance(used, Draft)
    assert used.type == "llm.usage"


CALL = {"input_tokens": 10, "output_tokens": 5}


@pytest.mark.parametrize(
    ("provider", "counts", "expected"),
    [
        ("OpenAI", {"cache_read_tokens": 4, "reasoning_tokens": 2}, (10, 5)),
        ("Anthropic", {"cache_read_tokens": 4, "cache_write_tokens": 3}, (17, 5)),
        ("AwsBedrock", {"cache_read_tokens": 4}, (14, 5)),
        ("Google", {"cache_read_tokens": 4, "reasoning_tokens": 2}, (10, 7)),
    ],
)
def test_input_contains_caches_and_output_contains_reasoning_for_every_provider_of_agno(
    provider: str, counts: dict[str, int], expected: Sums
) -> None:
    [used] = agno.feed(agno.decoder(), called(model_provider=provider, **CALL, **counts))
    assert isinstance(used, Draft)
    assert (used.data["input_tokens"], used.data["output_tokens"]) == expected


@pytest.mark.parametrize(
    ("total", "written"),
    [(18, 7), (16, 5)],  # Gemini counts thoughts apart; LiteLLM counts them within the answer
)
def test_output_contains_the_thoughts_for_every_model_of_adk(total: int, written: int) -> None:
    counts = {"promptTokenCount": 11, "candidatesTokenCount": 5, "thoughtsTokenCount": 2}
    drafts = adk_drafts({"usageMetadata": {**counts, "totalTokenCount": total}})
    [used] = only(drafts, "llm.usage")
    assert used.data["output_tokens"] == written
    assert used.data["reasoning_tokens"] == 2


def test_an_answer_of_adk_without_a_final_event_is_counted_once() -> None:
    counts = {"usageMetadata": {"promptTokenCount": 11, "candidatesTokenCount": 7}, "partial": True}
    drafts = adk_drafts(counts, counts | {"finishReason": "STOP"})
    [used] = only(drafts, "llm.usage")
    assert not used.data["estimated"]


def test_a_custom_event_of_an_agui_server_takes_the_place_of_the_sum_in_run_finished() -> None:
    told = {"model": "m", **CALL, "reported": "call", "estimated": False}
    counts = [{"model": "m", "inputTokens": 10, "outputTokens": 5}]
    end = {"type": "RUN_FINISHED", "threadId": "t", "runId": "r", "usage": counts}
    custom = {"type": "CUSTOM", "name": "llm.usage", "value": told}
    assert len(only(agui_drafts(end), "llm.usage")) == 1
    assert len(only(agui_drafts(custom, end), "llm.usage")) == 1


@pytest.mark.parametrize("count", [-1, 2**60, 1.5, True, "7", None])
def test_what_is_no_count_of_tokens_is_left_out(count: object) -> None:
    [used] = agno.feed(agno.decoder(), called(input_tokens=count, output_tokens=5))
    assert isinstance(used, Draft)
    assert "input_tokens" not in used.data
    assert used.data["output_tokens"] == 5


def test_a_custom_event_with_a_negative_count_is_no_usage() -> None:
    value = {"input_tokens": -5, "reported": "call", "estimated": False}
    drafts = agui_drafts({"type": "CUSTOM", "name": "llm.usage", "value": value})
    assert not only(drafts, "llm.usage")


def test_the_documents_table_has_every_difference() -> None:
    document = (ROOT / "docs/costs.md").read_text("utf-8")
    for name, (server, ours, reason) in DIFFERENCES.items():
        row = f"| `{name}` | {shown(server)} | {shown(ours)} | {reason} |"
        assert row in document


def shown(sums: Sums | None) -> str:
    return "none" if sums is None else f"{sums[0]} / {sums[1]}"


def called(**fields: Any) -> Frame:
    return frame("ModelRequestCompleted", model="m", **fields)


def adk_drafts(*events: dict[str, Any]) -> list[Draft | Pause]:
    decoder = DECODERS["adk"](AgentFacts("assistant"))
    body = {"author": "a", "invocationId": "i", "content": {"parts": [{"text": "Hi"}]}}
    frames = [
        Frame(json.dumps({"id": str(n), **body, **each}).encode()) for n, each in enumerate(events)
    ]
    decoder.open(1)
    return [*(draft for each in frames for draft in decoder.feed(each)), *decoder.end()]


def agui_drafts(*events: dict[str, Any]) -> list[Draft | Pause]:
    decoder = DECODERS["agui"](AgentFacts("assistant"))
    decoder.open(1)
    start = {"type": "RUN_STARTED", "threadId": "t", "runId": "r"}
    frames = [Frame(json.dumps(each).encode()) for each in (start, *events)]
    return [draft for each in frames for draft in decoder.feed(each)]
