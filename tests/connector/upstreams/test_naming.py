"""The session names that the connector sends to a server."""

from __future__ import annotations

import uuid

import pytest

from penstock.bus.records.runs import StartCommand
from penstock.settings import WorkflowAgent, agent_config
from penstock_connector.upstreams.base import thread_id


@pytest.mark.parametrize(
    ("agent", "said", "known", "same"),
    [
        ({}, True, False, False),
        ({}, None, True, False),
        ({}, None, False, True),
        ({}, False, True, True),
        ({"protocol": "agno"}, True, True, False),
        ({"thread_ids": "verbatim"}, True, True, True),
        ({"protocol": "adk"}, True, True, True),
    ],
)
def test_a_session_is_called_otherwise_where_callers_are_known(
    agent: dict[str, str], said: bool | None, known: bool, same: bool
) -> None:
    """`said` is the mark in the command. Without the mark, the connector's own settings count."""
    config = agent_config({"id": "a", "protocol": "agui", "url": "http://127.0.0.1:9", **agent})

    def name(user_id: str) -> str:
        command = StartCommand(
            run_id="r",
            agent="a",
            session_id="s",
            user_id=user_id,
            callers_known=said,
            created_at="now",
        )
        assert not isinstance(config, WorkflowAgent)
        return thread_id(config, command, callers_known=known)

    assert (name("alice") == "s") is same
    assert (name("alice") == name("bob")) is same
    if not same:
        assert str(uuid.UUID(name("alice"))) == name("alice")  # some servers accept only UUIDs
