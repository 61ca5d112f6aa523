"""Keeps KV `budgets` in step with the events of runs that have budgets.

What a run has used is one record, which names the last event in it. Whoever handles an event adds
all events from there up to this one, in their order. The accounts then get the run's whole amounts,
so neither a repeat nor another order of events changes them.

When the run has ended, its accounts add its amounts up and name it as settled; then its own record
says so, and an event that is delivered again changes nothing. Accounts forget settled runs only
after that, and only after `FORGET_S` seconds. So a process that has read an earlier state of the
run, and was slow, cannot enter the run again: after `STALE_S` seconds it must read the run again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

import orjson

from penstock.budgets.account import account_key, drop, forget, new_account, put, settle
from penstock.budgets.accounts import BUCKET, KEPT_S, Accounts
from penstock.budgets.admission import ABANDONED_S, CurrentBudgets
from penstock.budgets.document import RunFacts
from penstock.bus import Bus, Consumer, Retry, Stored, messages, streams
from penstock.bus.read.direct import between
from penstock.bus.records import ENDED, BudgetAccount, RunRecord, RunSpending
from penstock.bus.subjects import event, run_id_of
from penstock.bus.write import objects
from penstock.events import TERMINAL
from penstock_approvals.budgets.spending import Charge, add_events

log = logging.getLogger(__name__)

TYPES: Final = (
    *("llm.usage", "llm.tool_call"),
    *("lifecycle.started", "lifecycle.paused", "lifecycle.resumed", *sorted(TERMINAL)),
)
CONSUMER: Final = Consumer(
    stream=streams.EVENTS,
    durable="approvals-budgets",
    subjects=tuple(f"{type_}.*" for type_ in TYPES),
)
REMEMBERED: Final = 10_000  # the most runs whose facts are remembered
STALE_S: Final = 30.0  # the most seconds between reading a run and entering it in accounts
FORGET_S: Final = 120.0
SWEEP_S: Final = 30.0  # seconds between two searches for entries that nothing else would remove


class BudgetLedger:
    """Adds events to the spending of their runs, and to accounts."""

    def __init__(self, bus: Bus, budgets: CurrentBudgets) -> None:
        self._bus = bus
        self._budgets = budgets
        self._bucket = bus.bucket(BUCKET)
        self._accounts = Accounts(bus)
        # By run: its record if it or a workflow around it has budgets, else None.
        self._runs: OrderedDict[str, RunRecord | None] = OrderedDict()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def on_event(self, stored: Stored) -> None:
        """Add an event, unless it was added before. Raises BusError, ValueError for an unreadable
        record."""
        run_id = run_id_of(stored.subject)
        if not self._budgets.current.by_id or (run := await self._run(run_id)) is None:
            return
        charges = await self._charges(run)
        if not charges:
            return
        async with self._locks.setdefault(run_id, asyncio.Lock()):
            spending = await self._add(run_id, stored, charges)
            await self._enter(spending, charges)

    async def _add(self, run_id: str, stored: Stored, charges: list[Charge]) -> RunSpending:
        while True:
            entry = await self._bucket.get(f"run.{run_id}")
            spending = (
                RunSpending.model_validate_json(entry.value)
                if entry is not None
                else RunSpending(run_id=run_id)
            )
            if spending.last >= stored.sequence:
                return spending
            stream = streams.events_for(run_id)
            patterns = [event(type_, run_id) for type_ in TYPES]
            after = spending.last or int(stored.headers.get(messages.FIRST, stored.sequence)) - 1
            found = await between(self._bus, stream, patterns, after, stored.sequence)
            bodies = [await self._body(each) for each in found or [stored]]
            spending = add_events(spending, bodies, stored.sequence, charges)
            revision = entry.revision if entry is not None else 0
            # Nobody needs the record of a run after its last event, and events are kept shorter.
            ttl_s = KEPT_S if spending.ended else None
            key = f"run.{run_id}"
            if await self._bucket.update(key, spending.dump(), revision, ttl_s) is not None:
                return spending

    async def _enter(self, spending: RunSpending, charges: list[Charge]) -> None:
        """Write the run's amounts into its accounts. Raises Retry if the process was too slow."""
        if spending.settled:
            return
        new, read_s = self._new_accounts(charges), time.monotonic()
        run_id, at = spending.run_id, self._bus.clock.stamp()
        write = settle if spending.ended else put

        def enter(account: BudgetAccount, amounts: Mapping[str, int]) -> bool:
            if time.monotonic() - read_s > STALE_S:
                return False
            write(account, run_id, at, amounts)
            return True

        for key, amounts in spending.accounts.items():
            account = new.get(key) or BudgetAccount(budget="", per="", subject="")
            if not await self._accounts.change(key, account, partial(enter, amounts=amounts)):
                raise Retry(0)
        if spending.ended:
            key = f"run.{run_id}"
            await self._bucket.change(key, RunSpending, _mark_settled, ttl_s=KEPT_S)

    def _new_accounts(self, charges: list[Charge]) -> Mapping[str, BudgetAccount]:
        now = self._bus.clock.now()
        return {
            account_key(each.budget, each.facts, now): new_account(each.budget, each.facts, now)
            for each in charges
        }

    async def _run(self, run_id: str) -> RunRecord | None:
        if run_id in self._runs:
            self._runs.move_to_end(run_id)
            return self._runs[run_id]
        record = await self._bus.bucket("runs").load(run_id, RunRecord)
        if record is None:
            return None
        if not (record.budgets or record.ancestors):
            record = None
        self._runs[run_id] = record
        if len(self._runs) > REMEMBERED:
            self._runs.popitem(last=False)
        return record

    async def _charges(self, run: RunRecord) -> list[Charge]:
        """Return the budgets in which a run counts: its own, and those per run of the workflows
        around it."""
        by_id = self._budgets.current.by_id
        charges = [
            Charge(by_id[name], facts_of(run)) for name in run.budgets or () if name in by_id
        ]
        for ancestor in run.ancestors or ():
            around = await self._run(ancestor)
            for name in (around.budgets or ()) if around is not None else ():
                if name in by_id and by_id[name].per == "run" and around is not None:
                    charges.append(Charge(by_id[name], facts_of(around)))
        return charges

    async def _body(self, stored: Stored) -> dict[str, Any]:
        body: dict[str, Any] = orjson.loads(await objects.unwrap(self._bus, stored.payload))
        return body

    async def sweep(self) -> None:
        """Remove entries of runs that were never started, settle entries of runs that have ended
        without an event that did so, and forget settled runs. Raises BusError.

        A run has an entry that no event settles if its window ended before the run began, or if its
        budget was deleted.
        """
        for entry in await self._bucket.entries("account.*"):
            account = BudgetAccount.model_validate_json(entry.value)
            age_s = self._bus.clock.age_s
            old = [run_id for run_id, run in account.runs.items() if age_s(run.at) > ABANDONED_S]
            for run_id in old:
                await self._sweep_run(entry.key, account, run_id)
            ended = [run_id for run_id, at in account.settled.items() if age_s(at) > FORGET_S]
            found = await self._bucket.many([f"run.{run_id}" for run_id in ended])
            records = [RunSpending.model_validate_json(each.value) for each in found.values()]
            if settled := [each.run_id for each in records if each.settled]:
                await self._accounts.change(entry.key, account, partial(forget, run_ids=settled))

    async def _sweep_run(self, key: str, account: BudgetAccount, run_id: str) -> None:
        record = await self._bus.bucket("runs").load(run_id, RunRecord)
        if record is None:
            text = "run %s: it was never started, and leaves the account of budget %s"
            log.warning(text, run_id, account.budget)
            await self._accounts.change(key, account, partial(drop, run_id=run_id))
        elif record.status in ENDED and self._bus.clock.age_s(record.updated_at) > FORGET_S:
            spending = await self._bucket.load(f"run.{run_id}", RunSpending)
            used = spending.accounts if spending is not None and not spending.settled else {}
            at = self._bus.clock.stamp()
            change = partial(settle, run_id=run_id, at=at, amounts=used.get(key, {}))
            await self._accounts.change(key, account, change)


def facts_of(run: RunRecord) -> RunFacts:
    return RunFacts(
        run.run_id,
        agent=run.agent,
        user=run.user_id,
        session_id=run.session_id,
        tenant=run.tenant or "",
    )


def _mark_settled(spending: RunSpending) -> None:
    spending.settled = True
