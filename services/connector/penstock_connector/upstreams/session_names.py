"""Chooses the id of a session at its agent server. Pure.

Some servers do not check users: any caller who knows the id of a thread can use the thread. So if
callers are authenticated, the server's id is made of owner, agent and session. A client chooses
only the session, so no client can name another user's thread.
"""

from __future__ import annotations

import uuid

from penstock.bus.records import ContinueCommand, StartCommand
from penstock.bus.subjects import session_key
from penstock.settings import ServerAgent


def thread_id(
    agent: ServerAgent, command: StartCommand | ContinueCommand, *, callers_known: bool
) -> str:
    """Return the id of a new session; `callers_known` counts for a command without this field."""
    of_command = getattr(command, "callers_known", None)
    known = callers_known if of_command is None else of_command
    if not known or agent.thread_ids == "verbatim":
        return command.session_id
    key = session_key(command.user_id, agent.id, command.session_id)
    return str(uuid.UUID(hex=key[:32], version=5))
