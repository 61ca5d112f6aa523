"""Raises the limits of budgets as people have decided."""

from __future__ import annotations

import logging
from functools import partial

from penstock.budgets.account import raise_limit
from penstock.budgets.accounts import Accounts
from penstock.bus import Bus
from penstock.bus.records.approvals import ApprovalRecord
from penstock.bus.records.budgets import BudgetAccount
from penstock.bus.records.legs import PauseRecord

log = logging.getLogger(__name__)


class BudgetRaises:
    """Carries out decisions to let a run use more."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._accounts = Accounts(bus)

    async def carry_out(self, record: ApprovalRecord) -> None:
        """Raise the limit by the amount that was chosen, or by the first one that was offered. A
        repeat changes nothing. Raises BusError."""
        pause = await self._bus.bucket("pauses").load(record.run_id, PauseRecord)
        if pause is None or pause.approval_id != record.approval_id:
            log.warning("run %s: its pause is over, so no limit is raised", record.run_id)
            return
        asked, [item] = pause.resume, record.decided_items()
        offers: dict[str, int] = asked["offers"]
        value = offers.get(str(item.value), next(iter(offers.values())))
        change = partial(
            raise_limit,
            approval_id=record.approval_id,
            run_id=record.run_id,
            dimension=asked["dimension"],
            value=value,
        )
        unknown = BudgetAccount(budget=record.items[0]["args"]["budget"], per="", subject="")
        await self._accounts.change(asked["account"], unknown, change)
