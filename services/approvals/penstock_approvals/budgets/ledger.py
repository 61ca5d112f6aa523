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
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

import orjson

from penstock import telemetry
from penstock.budgets.account import (
    account_key,
    drop,
    forget,
    new_account,
    put,
    settle,
)
from penstock.budgets.accounts import BUCKET, KEPT_S, Accounts
from penstock.budgets.admission import ABANDONED_S, CurrentBudgets
from penstock.budgets.document import RunFacts
from penstock.bus import Bus, Consumer, Retry, Stored, messages, streams, subjects
from penstock.bus.read.direct import between
from penstock.bus.records.budgets import BudgetAccount, RunSpending
from penstock.bus.records.runs import ENDED, RunRecord
from penstock.bus.subjects import WORKFLOWS, event, run_id_of
from penstock.bus.write import objects
from penstock.bus.write.schedules import schedule
from penstock.events import TERMINAL
from penstock_approvals.budgets.actions import BudgetActions
from penstock_approvals.budgets.listing import AccountList
from penstock_approvals.budgets.reached import reached, seconds_to_next_step
from penstock_approvals.budgets.spending import Charge, add_events, tick

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
SERVICE: Final = "approvals"
BUDGET: Final = "budget"  # begins the keys of the schedules of budgets
DUE_TTL_S: Final = 86_400.0
REMEMBERED: Final = 10_000  # the most runs whose facts are remembered
STALE_S: Final = 30.0  # the most seconds between reading a run and entering it in accounts
FORGET_S: Final = 120.0
SWEEP_S: Final = 30.0  # seconds between two searches for entries that nothing else would remove


class BudgetLedger:
    """Adds events to the spending of their runs, and to accounts."""

    def __init__(self, bus: Bus, budgets: CurrentBudgets, actions: BudgetActions) -> None:
        self._bus = bus
        self._budgets = budgets
        self._actions = actions
        self._bucket = bus.bucket(BUCKET)
        self._accounts = Accounts(bus)
        self.list = AccountList(bus)
        # By run: its record if it or a workflow around it has budgets, else None.
        self._runs: OrderedDict[str, RunRecord | None] = OrderedDict()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def on_event(self, stored: Stored) -> None:
        """Add an event, unless it was added before. Raises BusError, ValueError for an unreadable
        record."""
        run_id, type_ = run_id_of(stored.subject), stored.headers.get("ce-type", "")
        if not self._budgets.current.by_id or (run := await self._run(run_id)) is None:
            return
        # A workflow uses nothing itself, since the runs of its steps count for it.
        types = TERMINAL if run.target == WORKFLOWS else TYPES
        if type_ not in types:
            return
        charges = await self._charges(run)
        if not charges:
            return
        async with self._locks.setdefault(run_id, asyncio.Lock()):
            with_events = partial(self._with_events, stored, charges, types)
            spending = await self._changed(run_id, with_events)
            await self._follow(spending, run, charges)
            if _begins_time(type_):
                await self._schedule(spending, charges)

    async def on_due(self, run_id: str) -> None:
        """Count the time of a run that is under way, and act if a step of a budget is reached. A
        repeat changes nothing. Raises as `on_event`."""
        run = await self._run(run_id)
        charges = await self._charges(run) if run is not None else []
        if run is None or not charges:
            return
        await self._bus.clock.refresh()

        async def ticked(spending: RunSpending) -> RunSpending:
            return tick(spending, self._bus.clock.now(), charges)

        async with self._locks.setdefault(run_id, asyncio.Lock()):
            spending = await self._changed(run_id, ticked)
            await self._follow(spending, run, charges)
            if not spending.ended:
                await self._schedule(spending, charges)

    async def _follow(self, spending: RunSpending, run: RunRecord, charges: list[Charge]) -> None:
        """Write the run's amounts into its accounts, and act where a step is reached."""
        accounts = await self._enter(spending, charges)
        now = self._bus.clock.now()
        for charge in charges:
            key = account_key(charge.budget, charge.facts, now)
            if (account := accounts.get(key)) is None:
                continue
            is_own = charge.budget.per == "run" and charge.facts.run_id == run.run_id
            for step in reached(charge.budget, key, account, spending, is_own=is_own):
                mark = step.mark(spending.leg)
                # A run that has ended may still be the one that has used up what others use, too.
                if mark in spending.done or (spending.ended and step.step.do != "stop"):
                    continue
                await self._actions.carry_out(step, run, charge.facts, spending.leg)
                await self._changed(run.run_id, partial(_with_mark, mark))
        if spending.ended and not spending.settled:
            # The last write: what comes before is done again if the process ends meanwhile.
            await self._changed(run.run_id, _as_settled)

    async def _changed(
        self, run_id: str, change: Callable[[RunSpending], Awaitable[RunSpending]]
    ) -> RunSpending:
        """Let `change` change the run's record; return the record."""
        key = f"run.{run_id}"
        while True:
            entry = await self._bucket.get(key)
            before = (
                RunSpending.model_validate_json(entry.value)
                if entry is not None
                else RunSpending(run_id=run_id)
            )
            after = await change(before)
            if after == before:
                return after
            revision = entry.revision if entry is not None else 0
            # Nobody needs the record of a run after its last event, and events are kept shorter.
            ttl_s = KEPT_S if after.ended else None
            if await self._bucket.update(key, after.dump(), revision, ttl_s) is not None:
                return after

    async def _with_events(
        self, stored: Stored, charges: list[Charge], types: Iterable[str], spending: RunSpending
    ) -> RunSpending:
        if spending.last >= stored.sequence:
            return spending
        run_id = spending.run_id
        patterns = [event(type_, run_id) for type_ in types]
        after = spending.last or int(stored.headers.get(messages.FIRST, stored.sequence)) - 1
        stream = streams.events_for(run_id)
        found = await between(self._bus, stream, patterns, after, stored.sequence)
        bodies = [await self._body(each) for each in found or [stored]]
        return add_events(spending, bodies, stored.sequence, charges)

    async def _schedule(self, spending: RunSpending, charges: list[Charge]) -> None:
        """Schedule a look at the run for when the next step by time may be reached."""
        if spending.counted_to is None:
            return
        now, waits = self._bus.clock.now(), []
        for charge in charges:
            if charge.budget.limit.time is None:
                continue
            account = await self._accounts.read(account_key(charge.budget, charge.facts, now))
            account = account or new_account(charge.budget, charge.facts, now)
            waits.append(seconds_to_next_step(charge.budget, account, spending.run_id))
        soonest = min((each for each in waits if each is not None), default=None)
        if soonest is not None:
            key = f"{BUDGET}.{spending.run_id}-0"
            subject, target = subjects.schedule(SERVICE, key), subjects.due(SERVICE, key)
            payload = orjson.dumps({"run_id": spending.run_id})
            at = now.timestamp() + soonest
            await schedule(self._bus, subject, target, at, payload, DUE_TTL_S)

    async def _enter(
        self, spending: RunSpending, charges: list[Charge]
    ) -> dict[str, BudgetAccount]:
        """Write the run's amounts into its accounts; return the accounts by key. Raises Retry if
        the process was too slow."""
        accounts: dict[str, BudgetAccount] = {}
        if spending.settled:
            return accounts
        new, read_s = self._new_accounts(charges), time.monotonic()
        run_id, at = spending.run_id, self._bus.clock.stamp()
        write = settle if spending.ended else put

        def enter(account: BudgetAccount, amounts: Mapping[str, int]) -> BudgetAccount | None:
            if time.monotonic() - read_s > STALE_S:
                return None
            write(account, run_id, at, amounts)
            return account

        for key, amounts in spending.accounts.items():
            account = new.get(key) or BudgetAccount(budget="", per="", subject="")
            entered = await self._accounts.change(key, account, partial(enter, amounts=amounts))
            if entered is None:
                raise Retry(0)
            accounts[key] = entered
        return accounts

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
        async for entry in self.list.busy():
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
        shares = await self.list.shares(self._budgets.current.by_id)
        telemetry.BUDGET_SHARE.clear()
        for budget_id, share in shares.items():
            telemetry.BUDGET_SHARE.labels(budget_id).set(share)

    async def _sweep_run(self, key: str, account: BudgetAccount, run_id: str) -> None:
        record = await self._bus.bucket("runs").load(run_id, RunRecord)
        if record is None:
            text = "run %s: it has no record, and leaves the account of budget %s"
            log.warning(text, run_id, account.budget)
            if not (spent := account.runs[run_id].used):  # its start was interrupted
                await self._accounts.change(key, account, partial(drop, run_id=run_id))
                return
            # Its record is lost: a backup has the account of a later moment.
            at = self._bus.clock.stamp()
            lost = partial(settle, run_id=run_id, at=at, amounts=spent)
            await self._accounts.change(key, account, lost)
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


def _begins_time(type_: str) -> bool:
    return type_ in ("lifecycle.started", "lifecycle.resumed")


async def _as_settled(spending: RunSpending) -> RunSpending:
    return spending.model_copy(update={"settled": True})


async def _with_mark(mark: str, spending: RunSpending) -> RunSpending:
    return spending.model_copy(update={"done": [*spending.done, mark]})
