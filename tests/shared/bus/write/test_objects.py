"""Payloads that are too large for one message are stored as objects."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from penstock.bus import Bus, BusUnavailable, ObjectGone, Stored
from penstock.bus.read import direct
from penstock.bus.write import objects
from penstock.bus.write.fence import MAX_MESSAGE_BYTES
from penstock.bus.write.objects import unwrap, wrap

LARGE = random.Random(1).randbytes(MAX_MESSAGE_BYTES + 1)


async def chunks(bus: Bus) -> int:
    info = await bus.api("STREAM.INFO.OBJ_payloads", {"subjects_filter": "$O.payloads.C.>"})
    return sum(info["state"].get("subjects", {}).values())


@pytest.mark.parametrize("size", [0, 1, MAX_MESSAGE_BYTES])
async def test_what_fits_into_a_message_stays_in_it(bus: Bus, run_id: str, size: int) -> None:
    payload = bytes(size)
    assert await wrap(bus, f"{run_id}.1", payload, run_id) is payload
    assert await unwrap(bus, payload) is payload


@pytest.mark.parametrize("size", [MAX_MESSAGE_BYTES + 1, 5_000_000])
async def test_a_larger_value_is_read_back_complete(bus: Bus, run_id: str, size: int) -> None:
    payload = random.Random(size).randbytes(size)
    reference = await wrap(bus, f"{run_id}.1", payload, run_id)
    assert len(reference) < 200
    assert await unwrap(bus, reference) == payload


async def test_a_repeat_is_the_same_reference_and_stores_nothing(own_bus: Bus, run_id: str) -> None:
    first = await wrap(own_bus, f"{run_id}.1", LARGE, run_id)
    stored = await chunks(own_bus)
    assert await wrap(own_bus, f"{run_id}.1", LARGE, run_id) == first
    assert await chunks(own_bus) == stored
    assert await unwrap(own_bus, first) == LARGE


async def test_other_content_of_the_same_name_replaces_it(own_bus: Bus, run_id: str) -> None:
    await wrap(own_bus, f"{run_id}.1", LARGE, run_id)
    before = await chunks(own_bus)
    reference = await wrap(own_bus, f"{run_id}.1", LARGE[::-1], run_id)
    assert await unwrap(own_bus, reference) == LARGE[::-1]
    assert await chunks(own_bus) == before


async def test_two_writers_of_one_object_do_not_harm_each_other(bus: Bus, run_id: str) -> None:
    references = await asyncio.gather(*(wrap(bus, f"{run_id}.1", LARGE, run_id) for _ in range(3)))
    assert await unwrap(bus, references[0]) == LARGE


async def test_an_object_that_is_gone_cannot_be_read(own_bus: Bus, run_id: str) -> None:
    reference = await wrap(own_bus, f"{run_id}.1", LARGE, run_id)
    await own_bus.api("STREAM.PURGE.OBJ_payloads")
    with pytest.raises(ObjectGone, match=f"no object {run_id}"):
        await unwrap(own_bus, reference)


async def test_an_object_that_lost_a_chunk_is_not_read_as_a_shorter_one(
    own_bus: Bus, run_id: str
) -> None:
    reference = await wrap(own_bus, f"{run_id}.1", LARGE, run_id)
    await own_bus.api("STREAM.PURGE.OBJ_payloads", {"seq": 3})
    with pytest.raises(ObjectGone, match="not complete"):
        await unwrap(own_bus, reference)


async def test_the_object_stores_own_client_can_read_it(bus: Bus, run_id: str) -> None:
    await wrap(bus, f"{run_id}.1", LARGE, run_id)
    store = await bus.jetstream.nats.object_store("payloads")
    assert (await store.get_info(f"{run_id}.1")).size == len(LARGE)


async def test_reading_leaves_no_consumer_behind(own_bus: Bus, run_id: str) -> None:
    await unwrap(own_bus, await wrap(own_bus, f"{run_id}.1", LARGE, run_id))
    info = await own_bus.api("STREAM.INFO.OBJ_payloads")
    assert info["state"]["consumer_count"] == 0


async def test_an_object_that_a_replica_has_not_got_yet_is_not_gone(
    own_bus: Bus, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def behind(bus: Bus, stream: str, pattern: str) -> AsyncIterator[Stored]:
        async for stored in direct.replay(bus, stream, pattern):
            yield stored
            return

    reference = await wrap(own_bus, f"{run_id}.1", LARGE, run_id)
    monkeypatch.setattr(objects, "replay", behind)
    with pytest.raises(BusUnavailable, match="could not be read completely"):
        await unwrap(own_bus, reference)
