"""Each user's lists that read the records of all users are read one at a time."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.web.auth import StreamTokens
from penstock.web.auth.identity import Identity
from support.fakes.guarded_server import Kept, MemoryStore, StoreAway


class SlowStore(MemoryStore):
    """A store that counts how many pages are being read, now and at most."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = self.most = 0

    async def page(
        self, user_id: str | None, after: tuple[float, str], now: float, limit: int
    ) -> list[Kept]:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0.01)
        self.under_way -= 1
        return await super().page(user_id, after, now, limit)


def user(name: str) -> Identity:
    return Identity(name, frozenset({"read"}), "bearer")


async def test_a_users_lists_of_tokens_take_turns_and_other_users_do_not_wait() -> None:
    store = SlowStore()
    tokens = StreamTokens(store, StoreAway)

    async def lists(name: str) -> Any:
        return await tokens.listed(user(name))

    await asyncio.gather(*(lists("mallory") for _ in range(5)))
    assert store.most == 1
    store.most = 0
    await asyncio.gather(lists("mallory"), lists("alice"))
    assert store.most == 2
