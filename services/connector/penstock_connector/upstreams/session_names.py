"""The id of a session at its agent server. Pure.

Some servers do not check users: a caller who knows the id of a thread can use it. So where callers
are known, the id that goes upstream is made of owner, agent and session. Clients name sessions
only, so no client can name another user's thread.
"""

from __future__ import annotations

import uuid

from penstock.bus.records import ContinueCommand, StartCommand
from penstock.bus.subjects import session_key
from penstock.settings import ServerAgent


def thread_id(
    agent: ServerAgent, command: StartCommand | ContinueCommand, *, callers_known: bool
) -> str:
    """The id of a new session. `callers_known` counts if the command does not say it."""
    of_command = getattr(command, "callers_known", None)
    known = callers_known if of_command is None else of_command
    # an ADK server keeps the sessions of users apart by itself
    if not known or agent.protocol == "adk" or agent.thread_ids == "verbatim":
        return command.session_id
    key = session_key(command.user_id, agent.id, command.session_id)
    return str(uuid.UUID(hex=key[:32], version=5))
