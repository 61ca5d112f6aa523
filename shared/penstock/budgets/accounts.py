"""Changes accounts in KV `budgets`, each change once and in one order for all processes.

An account is one record, which is written under its revision. So a limit holds however many
processes admit runs at the same moment. Changes of one process that come while it writes are
written together next: a thousand starts at once need a few writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from penstock.bus import Bus
from penstock.bus.records.budgets import BudgetAccount

BUCKET: Final = "budgets"
# Seconds for which the account and the spending of an ended run are kept: longer than its events,
# which may be delivered again.
KEPT_S: Final = 30 * 86_400.0
T = TypeVar("T")


class Accounts:
    """Reads and changes accounts. Every method raises BusError if the bus does not answer."""

    def __init__(self, bus: Bus) -> None:
        self._bucket = bus.bucket(BUCKET)
        # By key: the changes that wait, while the key has a writer.
        self._waiting: dict[str, list[tuple[Callable[[BudgetAccount], Any], Any]]] = {}
        self._writers: set[asyncio.Task[None]] = set()

    async def change(self, key: str, new: BudgetAccount, change: Callable[[BudgetAccount], T]) -> T:
        """Let `change` change the account under a key, or else the account `new`; return its
        result. `change` may be called more than once, and must not raise."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append((change, done))
        else:
            self._waiting[key] = [(change, done)]
            writer = asyncio.create_task(self._write(key, new))
            self._writers.add(writer)
            writer.add_done_callback(self._writers.discard)
        return await done

    async def read(self, key: str) -> BudgetAccount | None:
        return await self._bucket.load(key, BudgetAccount)

    async def _write(self, key: str, new: BudgetAccount) -> None:
        while batch := self._waiting[key]:
            self._waiting[key] = []
            try:
                results = await self._written(key, new, [change for change, _ in batch])
            except Exception as error:
                for _, done in batch:
                    if not done.done():
                        done.set_exception(error)
            else:
                for (_, done), result in zip(batch, results, strict=True):
                    if not done.done():
                        done.set_result(result)
        del self._waiting[key]

    async def _written(
        self, key: str, new: BudgetAccount, changes: Sequence[Callable[[BudgetAccount], Any]]
    ) -> list[Any]:
        while True:
            entry = await self._bucket.get(key)
            account = (
                BudgetAccount.model_validate_json(entry.value)
                if entry is not None
                else new.model_copy(deep=True)
            )
            before = account.dump()
            results = [change(account) for change in changes]
            after = account.dump()
            if entry is not None and after == before:
                return results
            # Nobody needs the account of one run after the run's last event.
            ttl_s = KEPT_S if account.per == "run" and not account.runs else None
            revision = entry.revision if entry is not None else 0
            if await self._bucket.update(key, after, revision, ttl_s) is not None:
                return results
