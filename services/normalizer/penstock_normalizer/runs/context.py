"""Holds the objects that all runs of a partition share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from penstock.bus import Bus
from penstock.bus.budget import Budget
from penstock.bus.read.work_queue import GiveUp
from penstock_normalizer.fold.run_fold import CostOf, DecoderFor, RunFold
from penstock_normalizer.runs.pauses import Pauses
from penstock_normalizer.runs.run_index import RunIndex


@dataclass(frozen=True, slots=True)
class RunContext:
    """The objects and limits that all runs of a partition share.

    A run keeps one reference to this object. If a run kept a reference to each of the fields,
    10,000 open runs would take 1 MiB more.
    """

    bus: Bus
    decoders: DecoderFor
    max_frame_bytes: int
    index: RunIndex
    pauses: Pauses
    budget: Budget
    give_up: GiveUp
    max_blocked_s: float
    loop: asyncio.AbstractEventLoop
    cost_of: CostOf

    def new_fold(self, run_id: str) -> RunFold:
        return RunFold(run_id, self.decoders, self.max_frame_bytes, self.cost_of)
