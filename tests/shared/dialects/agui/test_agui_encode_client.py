"""The real AG-UI clients, 1.0.0 and 0.0.59, read the streams of the encoder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.dialects.agui.encode import RUNS, STRICT, prelude
from support.drive.agui_out import AUDIENCES, THREAD, Audience, Event, Run, frames, recorded, wire
from support.drive.short import in_short
from support.fakes.raw import RUN_ID
from support.real.agui_client import SCRIPTS, VERSIONS, Client, Verdict, running

INPUT = {"threadId": THREAD, "runId": "run-1"}
each_audience = pytest.mark.parametrize("audience", AUDIENCES, ids=str)


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, Client]]:
    with running("1.0.0") as modern, running("0.0.59") as old:
        yield {"1.0.0": modern, "0.0.59": old}


def seen(client: Client, body: bytes, **more: Any) -> Verdict:
    return client.check(body, input=INPUT | more)


def agents_words(verdict: Verdict) -> list[dict[str, Any]]:
    """Return the messages without the user's, which a client that stayed has under other ids."""
    return [message for message in verdict.messages if message["role"] != "user"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_installed_client_gives_the_verdicts_that_the_rules_are_made_of(
    clients: dict[str, Client], version: str
) -> None:
    for case in json.loads((SCRIPTS / "rules_cases.json").read_text()):
        body = case.get("wire") or "".join(
            f"data: {json.dumps(event)}\n\n" for event in case["events"]
        )
        verdict = clients[version].check(body.encode(), input={"threadId": "t"})
        said = "reject" if verdict.errors else "warn" if verdict.warnings else "ok"
        assert said == case["verdict"][version], case["name"]


@each_audience
def test_every_recorded_run_is_accepted(clients: dict[str, Client], audience: Audience) -> None:
    for name, events in recorded().items():
        verdict = seen(clients[audience.client], wire(frames(audience, events)))
        assert verdict.errors == [], name
        assert verdict.terminals, name
        if audience.profile is STRICT:
            assert verdict.warnings == [], name


def test_a_client_that_declares_no_version_may_be_a_current_one(
    clients: dict[str, Client],
) -> None:
    old = Audience(STRICT, None, "1.0.0")
    for name, events in recorded().items():
        verdict = seen(clients["1.0.0"], wire(frames(old, events)))
        assert verdict.accepted, name
        assert verdict.warnings == [], name


@each_audience
def test_a_recorded_run_that_comes_again_in_a_thread_repeats_no_answer_into_another(
    clients: dict[str, Client], audience: Audience
) -> None:
    """Every upstream id repeats in the second run.

    With equal ids, a client would append the second answer to the first.
    """
    for name, events in recorded().items():
        if not name.startswith("agui/"):
            continue
        again = [event | {"run_id": f"{RUN_ID[:-1]}f"} for event in events]
        once = seen(clients[audience.client], wire(frames(audience, events)))
        both = wire(frames(audience, events)) + wire(frames(audience, again))
        twice = seen(clients[audience.client], both)
        assert twice.errors == [], name
        assert contents(twice) == contents(once) * 2, name
        ids = [message["id"] for message in twice.messages]
        assert len(ids) == len(set(ids)), name


def contents(verdict: Verdict) -> list[Any]:
    """Return the text and the calls of each message, without ids."""
    return [
        (
            each["role"],
            each.get("content"),
            [call["function"] for call in each.get("toolCalls", ())],
        )
        for each in verdict.messages
    ]


@pytest.mark.parametrize("chunk_bytes", [1, 17])
def test_the_chunking_changes_nothing(clients: dict[str, Client], chunk_bytes: int) -> None:
    audience = AUDIENCES[0]
    for name, events in list(recorded().items())[::10]:
        body = wire(frames(audience, events))
        client = clients[audience.client]
        assert client.check(body, input=INPUT, chunk_bytes=chunk_bytes) == seen(client, body), name


def check_joins(client: Client, audience: Audience, first: int, step: int) -> None:
    """Let a client join every recorded run after event `first`, and after every `step` more."""
    for name, events in recorded().items():
        stayed = seen(client, wire(frames(audience, events)))
        for cut in range(first, len(events) + 1, step):
            encoder = audience.encoder()
            told = prelude(encoder, events[:cut])
            told += [frame for event in events[cut:] for frame in encoder.feed(event)]
            joined = seen(client, wire(told))
            assert joined.errors == [], (name, cut)
            assert agents_words(joined) == agents_words(stayed), (name, cut)
            assert joined.state == stayed.state, (name, cut)
            # After an error, the client that stayed also has interrupts that were already answered.
            if stayed.terminals[-1] != "error":
                assert joined.pendingInterrupts == stayed.pendingInterrupts, (name, cut)


@pytest.mark.parametrize("audience", in_short(AUDIENCES, AUDIENCES[::3]), ids=str)
def test_a_client_that_joins_after_any_event_ends_with_the_same_state_as_one_that_stayed(
    clients: dict[str, Client], audience: Audience
) -> None:
    """Each audience has a client that joins after every eighth event, each after others."""
    check_joins(clients[audience.client], audience, 1 + 2 * AUDIENCES.index(audience), step=8)


@pytest.mark.chaos
@each_audience
@pytest.mark.timeout(600)
def test_both_clients_that_join_after_any_event_end_with_the_same_state_as_ones_that_stayed(
    clients: dict[str, Client], audience: Audience
) -> None:
    check_joins(clients[audience.client], audience, 1, step=1)


def test_several_runs_of_a_thread_are_one_stream_and_ids_that_repeat_stay_apart(
    clients: dict[str, Client],
) -> None:
    """Both runs have the ids `m1` and `c1`.

    A client would append the second run's text to the entity that it has under this id.
    """
    first = Run().start().text("one").call(q=1).result().complete().events
    second = [event | {"run_id": f"{RUN_ID[:-1]}f"} for event in first]
    for audience in AUDIENCES:
        both = wire(frames(audience, first)) + wire(frames(audience, second))
        verdict = seen(clients[audience.client], both)
        assert verdict.accepted
        said = [message["content"] for message in verdict.messages if message.get("content")]
        assert said == ["one", "found", "one", "found"]


def test_a_snapshot_of_the_whole_thread_keeps_its_order_and_glues_nothing(
    clients: dict[str, Client],
) -> None:
    """The server uses the same ids in each run, and sends a snapshot after the streamed answer."""
    runs, thread = [], []
    for number in (1, 2, 3):
        asked = {"id": f"u{number}", "role": "user", "content": f"question {number}"}
        said = {"id": "m1", "role": "assistant", "content": f"answer {number}"}
        thread += [asked, said]
        run = Run().start().text(f"answer {number}").say("state.messages", messages=list(thread))
        run_id = f"{RUN_ID[:-1]}{number}"
        runs.append((asked, [event | {"run_id": run_id} for event in run.complete().events]))
    for audience in AUDIENCES:
        client, messages = clients[audience.client], list[dict[str, Any]]()
        for asked, events in runs:
            verdict = seen(client, wire(frames(audience, events)), messages=[*messages, asked])
            assert verdict.accepted
            messages = verdict.messages
        assert [each["content"] for each in messages] == [each["content"] for each in thread]
        assert len({each["id"] for each in messages}) == 6


def test_a_client_that_waits_knows_what_for(clients: dict[str, Client]) -> None:
    events = Run().start().call(pending=True).pause({"tool_call_id": "c1"}).events
    for audience in AUDIENCES:
        verdict = seen(clients[audience.client], wire(frames(audience, events)))
        assert verdict.terminals == ["interrupt"]
        assert verdict.pendingInterrupts is not None
        assert [each["id"] for each in verdict.pendingInterrupts] == ["a1/i1"]


_EVENTS = st.sampled_from([event for events in recorded().values() for event in events])


@each_audience
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(events=st.lists(_EVENTS, min_size=1, max_size=30))
def test_recorded_events_in_any_order_are_accepted(
    clients: dict[str, Client], audience: Audience, events: list[Event]
) -> None:
    encoder = audience.encoder()
    told = [frame for event in events for frame in encoder.feed(event)]
    told += encoder.cut("the server goes away", "shutdown")
    verdict = seen(clients[audience.client], wire(told))
    assert verdict.accepted
    assert audience.profile is RUNS or not [
        said for said in verdict.warnings if "unknown" in said.lower()
    ]
