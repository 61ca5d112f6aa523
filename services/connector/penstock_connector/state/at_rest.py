"""Whether a session waits for a decision that a new run would get in the way of.

A graph behind AG-UI has one place where it waits, for the whole thread. A new run that moves it
there, while an earlier one waits for a person, would be what the person's answer lets run: so it is
not sent before the earlier run is decided or cancelled. Answers that name a tool call, as Agno's
interface takes them, cannot be mistaken so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from penstock.bus import Bus
from penstock.bus.records import ENDED, PauseRecord
from penstock.bus.write import objects
from penstock.starts import NotAccepted, Refusal
from penstock_connector.state.claims import patiently
from penstock_connector.state.run_state import CLOSED, Runs, kind_of

SETTLES_S = 20.0  # a leg that has ended is paused, or over, when the normalizer has read it
LOOK_S = 0.1
BY_CALL = "tool"  # the style of an answer that names its call


async def require_at_rest(bus: Bus, runs: Runs, run_ids: Sequence[str]) -> list[str]:
    """Those of the runs that have ended; the others wait for what names its call.

    Raises NotAccepted where one waits for anything else, or it cannot be known.
    """
    ended = []
    for run_id in run_ids:
        if await patiently(partial(_has_ended, bus, runs, run_id)):
            ended.append(run_id)
        elif await patiently(partial(_waits_as_a_thread, bus, run_id)):
            raise _refused(f"run {run_id} of it waits for a decision; decide it, or cancel it")
    return ended


async def _has_ended(bus: Bus, runs: Runs, run_id: str) -> bool:
    """False for one that waits, and for one that has not begun."""
    deadline = asyncio.get_running_loop().time() + SETTLES_S
    while True:
        record = await runs.record(run_id)
        if record is None:
            # records are kept for 30 days, a pause for as long as it waits
            return await bus.bucket("pauses").get(run_id) is None
        if record.status in ENDED:
            return True
        if record.status == "paused":
            return False
        last = await runs.tail(run_id)
        if last is None or kind_of(last) not in CLOSED:
            return False  # it waits for its turn
        if asyncio.get_running_loop().time() >= deadline:
            raise _refused(f"it is not known whether run {run_id} of it waits for a decision")
        await asyncio.sleep(LOOK_S)


async def _waits_as_a_thread(bus: Bus, run_id: str) -> bool:
    entry = await bus.bucket("pauses").get(run_id)
    if entry is None:
        return False
    pause = PauseRecord.model_validate_json(await objects.unwrap(bus, entry.value))
    items = pause.resume.get("items", {}).values()
    return any(item.get("style") != BY_CALL for item in items)


def _refused(why: str) -> NotAccepted:
    return NotAccepted([Refusal(("session_id",), why)])
