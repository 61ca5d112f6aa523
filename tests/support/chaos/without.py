"""`python -m support.chaos.without <fix> <module>`: a service from which a fix was taken out.

A round with this service shows that the checks find what the fix prevents. No setting of the
product does this.
"""

from __future__ import annotations

import runpy
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any

from penstock.bus import Stored
from penstock.bus.messages import STORED_AT
from penstock.bus.state.losses import Snapshot
from penstock_automations.matching.matcher import Matcher
from penstock_connector.legs.orders import Order
from penstock_connector.legs.progress import LegHistory
from penstock_connector.state.run_state import CLOSED, Runs, holder_of, kind_of
from penstock_connector.state.session_queue import SessionQueue
from penstock_connector.succession.reaper import Reaper
from penstock_connector.succession.takeover import DIED
from support.chaos import hurt_at

CLOCKS_DIFFER_S = 60.0


def _passing_over() -> None:
    """Take out the fix that removes the session turn of an ended connector from its queue.

    Without the fix, the turn stays in the queue if the run has continued since then. An
    ended connector is found by its lease alone, so a decision can come before that.
    """

    async def is_abandoned(self: Any, turn: Any) -> bool:
        if await self._connectors.is_alive(turn.pod):
            return False
        return not await self._leg_records.exists(turn.run_id, turn.pod)

    async def settle(self: Any, pod: str, run_id: str) -> None:
        last = await self._stores.runs.tail(run_id)
        if last is not None and kind_of(last) not in CLOSED:
            if holder_of(last) != pod and await self._takeover.is_held(run_id, last):
                return
            if await self._takeover.take_over(run_id, last, DIED.format(holder_of(last))):
                return
            last = await self._stores.runs.tail(run_id)
        if last is None or kind_of(last) in CLOSED:
            await self._clear(pod, run_id)

    def nobody_answers(self: Any, pod: str) -> None:
        pass

    _replace(SessionQueue, "_is_abandoned", is_abandoned)
    _replace(Reaper, "mark_silent", nobody_answers)
    _replace(Reaper, "_settle", settle)


def _sequences() -> None:
    """Take out the fix that finds a leg's begin in RAW by its sequence, not by a clock.

    Without the fix, the begin depends on the connector's clock, and a leg without an `open` counts
    as not called.
    """
    after, frames = Order.after, Runs.frames

    def noted_now(self: Order, sequence: int) -> Order:
        return after(self, int(time.time()))

    async def since(self: Runs, run_id: str, noted_at: int, last: Stored) -> AsyncIterator[Stored]:
        async for stored in frames(self, run_id, 0, last):
            stored_at = datetime.fromisoformat(stored.headers[STORED_AT]).timestamp()
            if stored_at >= noted_at - CLOCKS_DIFFER_S:
                yield stored

    _replace(Order, "after", noted_now)
    _replace(Runs, "frames", since)
    _replace(LegHistory, "may_have_called_server", property(lambda self: self.claimed_to_call))


def _continuity() -> None:
    """Take out the fix that notices when a stream came back shorter."""

    _replace(Snapshot, "known_ends_of_short_streams", property(lambda self: {}))


def _between() -> None:
    """Take out the fix that reads the run's events before it extends a queue of deliveries.

    Without the fix, jobs have the order in which processes report the events, and an event that is
    reported late counts as done.
    """

    async def between(self: Any, job: Any, after: int, upto: int) -> list[Any]:
        return []

    for name in ("_between_quickly", "_between_in_turns"):
        _replace(Matcher, name, between)


def _replace(owner: type, name: str, value: object) -> None:
    assert hasattr(owner, name), f"{owner.__name__}.{name} has another name now"
    setattr(owner, name, value)


FIXES: dict[str, Callable[[], None]] = {
    "passing-over": _passing_over,
    "sequences": _sequences,
    "continuity": _continuity,
    "between": _between,
}


def main() -> None:
    """Take the fix out, then run the service."""
    FIXES[sys.argv.pop(1)]()
    hurt_at.told()
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
