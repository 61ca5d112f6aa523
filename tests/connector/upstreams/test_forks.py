"""Where a fork's conversation ends in the one that the agent server or Penstock has stored."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.bus.records.runs import TakenOver
from penstock.dialects.adk.vocabulary import IDEMPOTENCY_KEY
from penstock.start_fields import NotAccepted
from penstock_connector.upstreams.adk import kept_events, restored, state_after
from penstock_connector.upstreams.agno import messages_kept
from penstock_connector.upstreams.forks import Entry, kept_entries

RUN = "0193a5c0-0000-7000-8000-000000000001"


def calls(*ids: str, says: bool = False) -> Entry:
    return Entry(frozenset(ids), says=says)


def answers(*ids: str) -> Entry:
    return Entry(answers=frozenset(ids))


SAYS = Entry(says=True)
# It says something and calls two tools at once, then one, then it answers.
CONVERSATION = [
    calls("a", "b", says=True),
    answers("a"),
    answers("b"),
    calls("c"),
    answers("c"),
    SAYS,
]


@pytest.mark.parametrize(
    ("messages", "tool_calls", "kept"),
    [(0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 2, 3), (1, 3, 5), (2, 3, 6), (0, 3, 0)],
)
def test_a_message_with_calls_is_kept_when_all_of_them_have_a_result(
    messages: int, tool_calls: int, kept: int
) -> None:
    taken = TakenOver(messages=messages, tool_calls=tool_calls)
    assert kept_entries(CONVERSATION, taken) == kept


def test_agnos_instructions_and_history_are_always_kept() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "before", "from_history": True},
        {"role": "assistant", "content": "earlier", "from_history": True},
        {"role": "user", "content": "now"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "t"}]},
        {"role": "tool", "tool_call_id": "t", "content": "21"},
        {"role": "assistant", "content": "21 degrees"},
    ]
    assert messages_kept(messages, TakenOver()) == 4
    assert messages_kept(messages, TakenOver(tool_calls=1)) == 6
    assert messages_kept(messages, TakenOver(tool_calls=1, messages=1)) == 7
    assert messages_kept(messages[:4], TakenOver(messages=9)) == 4


def event(author: str, *parts: dict[str, Any], run_id: str = RUN, **fields: Any) -> dict[str, Any]:
    key = {IDEMPOTENCY_KEY: f"{run_id}-1"}
    content = {"role": author, "parts": list(parts)}
    return {"author": author, "content": content, "customMetadata": key, **fields}


CALL = {"functionCall": {"id": "t", "name": "delete_file"}}
ANSWER = {"functionResponse": {"id": "t", "name": "delete_file"}}
ASKED = {"functionCall": {"id": "q", "name": "adk_request_confirmation"}}
SESSION = [
    event("user", {"text": "earlier"}, run_id="another"),
    event("agent", {"text": "before"}, run_id="another"),
    event("user", {"text": "delete it"}),
    event("agent", {"text": "hm", "thought": True}, CALL),
    event("agent", ASKED, longRunningToolIds=["q"]),
    event("agent", ANSWER, actions={"stateDelta": {"n": 1, "user:u": 2, "temp:t": 3}}),
    event("agent", {"text": "done"}, actions={"stateDelta": {"n": 2, "gone": None}}),
    event("user", {"text": "later"}, run_id="later"),
]


@pytest.mark.parametrize(
    ("taken", "kept"),
    [
        (TakenOver(), 3),
        (TakenOver(tool_calls=1), 6),
        (TakenOver(tool_calls=1, messages=1), 7),
        (TakenOver(tool_calls=9, messages=9), 7),
    ],
)
def test_of_an_adk_session_earlier_runs_are_kept_and_later_ones_are_not(
    taken: TakenOver, kept: int
) -> None:
    assert kept_events(SESSION, RUN, taken) == SESSION[:kept]


def test_a_session_that_does_not_name_the_run_is_not_forked() -> None:
    with pytest.raises(NotAccepted, match="does not say which events"):
        kept_events(SESSION, "0193a5c0-0000-7000-8000-000000000009", TakenOver())


def test_an_adk_session_begins_with_the_state_of_its_own_and_with_plain_events() -> None:
    assert state_after(SESSION[:6]) == {"n": 1}
    assert state_after(SESSION) == {"n": 2}
    assert restored(SESSION[4]).keys() == {"author", "content"}
