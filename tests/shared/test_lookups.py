"""A lookup waits for a record that is about to be written, and never keeps the bus busy."""

from __future__ import annotations

import asyncio

import pytest

from penstock import lookups
from penstock.lookups import look_until


class Shelf:
    """Has a record from the third lookup on."""

    def __init__(self, written_at: int = 3) -> None:
        self.looks = 0
        self._written_at = written_at

    async def look(self) -> str | None:
        self.looks += 1
        return "record" if self.looks >= self._written_at else None

    async def found(self, owner: str) -> str | None:
        return await look_until(owner, self.look, lambda found: found is not None)


async def test_a_record_is_found_as_soon_as_it_is_written() -> None:
    shelf = Shelf()
    assert await asyncio.wait_for(shelf.found("ada"), 1) == "record"
    assert shelf.looks == 3


async def test_a_record_that_never_comes_is_looked_for_until_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lookups, "LOOKUP_S", 0.3)
    shelf = Shelf(10**6)
    begun = asyncio.get_running_loop().time()
    assert await shelf.found("ada") is None
    assert asyncio.get_running_loop().time() - begun >= 0.3
    assert shelf.looks <= 7  # each pause is twice as long as the one before it


async def test_an_owner_with_many_lookups_reads_each_further_record_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lookups, "LOOKUP_S", 1.0)
    first = [Shelf(10**6) for _ in range(lookups.MAX_REPEATING)]
    further = [Shelf(2) for _ in range(100)]
    async with asyncio.TaskGroup() as group:
        for shelf in first:
            group.create_task(shelf.found("mallory"))
        await asyncio.sleep(0)
        crowd = [group.create_task(shelf.found("mallory")) for shelf in further]
        await asyncio.sleep(0)
        alone = Shelf()
        assert await asyncio.wait_for(alone.found("ada"), 0.9) == "record"
        assert not any(each.done() for each in crowd)
    assert {each.result() for each in crowd} == {"record"}
    assert {shelf.looks for shelf in further} == {2}
    assert not lookups._repeating
