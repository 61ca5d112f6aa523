"""Finds out whether a session has a run that waits for a decision, and that a new run would
disturb.

An AG-UI server may run a graph that has only one current place for a whole thread. While an earlier
run of the thread waits at this place for a person, a new run may move the graph to another place.
The person's answer would then continue the graph at the wrong place. So the new run is not sent
before the earlier run is decided or cancelled. An answer that names a tool call, as AG-UI servers
of Agno expect it, always reaches the call that was decided. So a run that waits for such an answer
does not hold back a new run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from penstock.bus import Bus
from penstock.bus.records import ENDED, PauseRecord
from penstock.bus.write import objects
from penstock.start_fields import NotAccepted, Refusal
from penstock_connector.state.retries import with_retries
from penstock_connector.state.run_state import CLOSED, Runs, kind_of

# the most seconds to wait until the normalizer has found out whether the run of an ended leg is
# paused
SETTLES_S: Final = 20.0
CHECK_S: Final = 0.1  # seconds between two reads of such a run's record
BY_CALL: Final = "tool"  # the style of an answer that names its tool call


async def require_at_rest(bus: Bus, runs: Runs, run_ids: Sequence[str]) -> list[str]:
    """Return the runs that have ended; raise if a new run would disturb a run that has not ended.

    Raises:
        NotAccepted: a run waits for an answer that names no tool call, or it is not yet known
            whether a run waits.
    """
    ended = []
    for run_id in run_ids:
        if await with_retries(partial(_has_ended, bus, runs, run_id)):
            ended.append(run_id)
        elif await with_retries(partial(_waits_as_a_thread, bus, run_id)):
            raise _refused(f"run {run_id} of it waits for a decision; decide it, or cancel it")
    return ended


async def _has_ended(bus: Bus, runs: Runs, run_id: str) -> bool:
    """Return whether the run has ended; False if it waits for a decision, or has not begun."""
    deadline = asyncio.get_running_loop().time() + SETTLES_S
    while True:
        record = await runs.record(run_id)
        if record is None:
            # A run's record is kept for 30 days, but its pause is kept as long as the run waits. So
            # a run without a record and without a pause has ended.
            return await bus.bucket("pauses").get(run_id) is None
        if record.status in ENDED:
            return True
        if record.status == "paused":
            return False
        last = await runs.tail(run_id)
        if last is None or kind_of(last) not in CLOSED:
            return False  # the run waits for its turn in the session
        if asyncio.get_running_loop().time() >= deadline:
            raise _refused(f"it is not known whether run {run_id} of it waits for a decision")
        await asyncio.sleep(CHECK_S)


async def _waits_as_a_thread(bus: Bus, run_id: str) -> bool:
    entry = await bus.bucket("pauses").get(run_id)
    if entry is None:
        return False
    pause = PauseRecord.model_validate_json(await objects.unwrap(bus, entry.value))
    items = pause.resume.get("items", {}).values()
    return any(item.get("style") != BY_CALL for item in items)


def _refused(reason: str) -> NotAccepted:
    return NotAccepted([Refusal(("session_id",), reason)])
