"""Lists each run in the record of its session, in KV `sessions`."""

from __future__ import annotations

from typing import Final

from penstock.bus import Bus
from penstock.bus.records import SessionRecord, StartCommand
from penstock.bus.subjects import session_key

# The greatest number of runs in a session's record. When there are more, the oldest runs are
# dropped.
MAX_SESSION_RUNS: Final = 1000


async def list_run(bus: Bus, command: StartCommand, agent: str) -> None:
    """Add a run to the record that its session has for this agent; a repeat changes nothing.

    Raises:
        BusError: KV cannot be read or written now.
    """
    user_id, session_id = command.user_id, command.session_id
    bucket, key = bus.bucket("sessions"), session_key(user_id, agent, session_id)
    while True:
        entry = await bucket.get(key)
        record = (
            SessionRecord.model_validate_json(entry.value)
            if entry is not None
            # The thread id is the session's id at the agent server. A connector sets the thread id
            # when the connector claims a run.
            else SessionRecord(agent=agent, session_id=session_id)
        )
        if command.run_id in record.runs:
            return
        record.user_id = user_id
        record.runs = [*record.runs, command.run_id][-MAX_SESSION_RUNS:]
        revision = entry.revision if entry is not None else 0
        if await bucket.update(key, record.dump(), revision) is not None:
            return
