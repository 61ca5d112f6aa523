"""Reads the facts about a run that matching needs: its owner, and the rules that led to the run."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from pydantic import ValidationError

from penstock.bus import Bus
from penstock.bus.records.runs import RunRecord
from penstock.turns import TenantUser

MAX_KNOWN = 10_000


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The owner of a run, the rules that led to the run (the earliest first), and their number.
    `depth` is at least the number of `rules`; it is greater if some are not known by name."""

    owner: str
    rules: tuple[str, ...] = ()
    depth: int = 0
    tenant: str = ""

    @property
    def user(self) -> TenantUser:
        return TenantUser(self.tenant, self.owner)


class Facts:
    """Reads the facts of runs from KV `runs`, once for each run. A run's facts never change."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._known: OrderedDict[str, RunFacts] = OrderedDict()

    def known(self, run_id: str) -> RunFacts | None:
        """Return the run's facts; None if they were not read yet, or too long ago."""
        if (known := self._known.get(run_id)) is not None:
            self._known.move_to_end(run_id)
        return known

    async def of(self, run_id: str) -> RunFacts | None:
        """Return the run's facts; None if the run's record is missing, expired or unreadable.
        Raises BusError."""
        if (known := self.known(run_id)) is not None:
            return known
        try:
            record = await self._bus.bucket("runs").load(run_id, RunRecord)
        except ValidationError:
            return None
        if record is None:
            return None
        rules = tuple(record.automations or ())
        depth = max(record.depth or 0, len(rules))
        facts = RunFacts(record.user_id, rules, depth, record.tenant or "")
        self._known[run_id] = facts
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return facts
