"""Journals on a real server: commits are whole, fenced and read in order; large ones are cut."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.bus import Bus, FenceConflict, subjects
from penstock.bus.errors import ContentErased, ContentRefused
from penstock.bus.read import direct
from penstock.bus.streams import JOURNAL
from penstock.bus.write.fence import MAX_MESSAGE_BYTES
from penstock_workflows.engine.records import Ended, Record, Started
from penstock_workflows.journal.journal import EMPTY, Incomplete, Journals, Position
from support.drive.bus import connected, new_run_id
from support.real.nats import NatsServer


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    async with connected(nats_server.url) as made:
        yield made


def started(run_id: str) -> Record:
    return Started(1, run_id, {}, {})


def ended(step: str, output: Any = None) -> Record:
    return Ended(2, step, "completed", output=output)


async def test_a_journal_is_read_as_it_was_written(bus: Bus) -> None:
    journals, run_id = Journals(bus), new_run_id()
    first: list[Record] = [started(run_id), ended("a")]
    end = await journals.append(run_id, EMPTY, first)
    second: list[Record] = [ended("b")]
    last = await journals.append(run_id, end, second)
    assert (end.records, last.records) == (2, 3)

    assert await journals.read(run_id) == (first + second, last)
    assert await journals.read(run_id, end) == (second, last)
    assert await journals.read(run_id, last) == ([], last)
    assert await journals.read(new_run_id()) == ([], EMPTY)


async def test_of_two_writers_one_appends_and_the_other_is_refused(bus: Bus) -> None:
    journals, run_id = Journals(bus), new_run_id()
    end = await journals.append(run_id, EMPTY, [started(run_id)])

    async def append(step: str) -> Position | FenceConflict:
        try:
            return await journals.append(run_id, end, [ended(step)])
        except FenceConflict as error:
            return error

    outcomes = await asyncio.gather(*(append(step) for step in "abc"))
    assert sum(isinstance(each, Position) for each in outcomes) == 1
    records, _ = await journals.read(run_id)
    assert len(records) == 2


async def test_records_that_are_too_large_for_a_message_are_stored_as_one_batch(bus: Bus) -> None:
    journals, run_id = Journals(bus), new_run_id()
    large: list[Record] = [started(run_id), ended("a", "x" * (2 * MAX_MESSAGE_BYTES))]
    end = await journals.append(run_id, EMPTY, large)
    more: list[Record] = [ended("b", "y" * MAX_MESSAGE_BYTES)]
    last = await journals.append(run_id, end, more)

    assert await journals.read(run_id) == (large + more, last)
    assert await journals.read(run_id, end) == (more, last)


async def test_a_missing_commit_is_noticed(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_workflows.journal.journal.TRIES", 1)
    journals, run_id = Journals(bus), new_run_id()
    end = EMPTY
    for record in (started(run_id), ended("a"), ended("b")):
        end = await journals.append(run_id, end, [record])
    [_, second, _] = [
        stored async for stored in direct.replay(bus, JOURNAL, subjects.journal(run_id))
    ]
    assert await bus.delete(JOURNAL, second.sequence)
    with pytest.raises(Incomplete, match="record 2 is missing"):
        await journals.read(run_id)


async def test_what_cannot_be_opened_is_no_value_and_no_record(fresh_nats: NatsServer) -> None:
    async with connected(fresh_nats.url, content_keys=("k" * 32,)) as bus:
        journals, run_id, other = Journals(bus), new_run_id(), new_run_id()
        for each in (run_id, other):
            await journals.append(each, EMPTY, [started(each)])
            await journals.store_value(each, "aa", b'"of %b"' % each.encode())
        # Somebody copies what is sealed for one run into another one.
        third = new_run_id()
        for subject in (subjects.journal(run_id), subjects.journal_value(run_id, "aa")):
            found = await bus.api(f"STREAM.MSG.GET.{JOURNAL}", {"last_by_subj": subject})
            await bus.request(
                subject.replace(run_id, third),
                b64decode(found["message"]["data"]),
                headers={"Penstock-Record": "1"},
            )
        with pytest.raises(ContentRefused):
            await journals.value(third, "aa")
        with pytest.raises(ContentRefused):
            await journals.read(third)
        await bus.content.destroy(other)
        with pytest.raises(ContentErased):
            await journals.value(other, "aa")


async def test_a_value_in_clear_may_look_like_a_sealed_event(bus: Bus) -> None:
    journals, run_id, value = Journals(bus), new_run_id(), b'{"sealed":1,"data":"of a workflow"}'
    await journals.store_value(run_id, "aa", value)
    assert await journals.value(run_id, "aa") == value


async def test_a_large_value_is_stored_once_and_removed_with_its_journal(bus: Bus) -> None:
    journals, run_id = Journals(bus), new_run_id()
    await journals.append(run_id, EMPTY, [started(run_id)])
    small, large = b'"small"', b'"' + b"x" * (2 * MAX_MESSAGE_BYTES) + b'"'
    for digest, payload in (("aa", small), ("bb", large), ("bb", large)):
        await journals.store_value(run_id, digest, payload)
    assert [await journals.value(run_id, digest) for digest in ("aa", "bb")] == [small, large]
    # The values do not count as records.
    assert (await journals.read(run_id))[1].records == 1

    other = new_run_id()
    await journals.append(other, EMPTY, [started(other)])
    await journals.purge(run_id)
    assert await journals.read(run_id) == ([], EMPTY)
    with pytest.raises(Incomplete, match="gone"):
        await journals.value(run_id, "bb")
    assert (await journals.read(other))[1].records == 1
