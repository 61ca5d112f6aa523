"""What an agent server calls a session. Pure.

Some servers look at nobody's user: whoever knows the id of a thread is in it. So where callers are
known, the id that goes upstream is made of owner, agent and session. Nobody gets another user's by
naming it, since what a client names is only the session.
"""

from __future__ import annotations

import uuid

from penstock.bus.records import ContinueCommand, StartCommand
from penstock.bus.subjects import session_key
from penstock.settings import AgentConfig

BY_USER = frozenset({"adk"})  # their servers keep a user's sessions apart by themselves


def thread_id(
    agent: AgentConfig, command: StartCommand | ContinueCommand, *, callers_known: bool
) -> str:
    """The id of a new session; `callers_known` counts where the command does not say it."""
    said = getattr(command, "callers_known", None)
    known = callers_known if said is None else said
    if not known or agent.thread_ids == "verbatim" or agent.protocol in BY_USER:
        return command.session_id
    key = session_key(command.user_id, agent.id, command.session_id)
    return str(uuid.UUID(hex=key[:32], version=5))
