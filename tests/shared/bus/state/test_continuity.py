"""A stream that has lost messages is reported, and none of its sequences is used twice."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import orjson
import pytest

from penstock.bus import Bus, BusUnavailable, Loss, Message, NotThereYet, streams, subjects
from penstock.bus.state import continuity, recovery
from penstock.bus.state.losses import MARGIN
from support.drive.bus import connected, event, new_run_id, publish_events
from support.drive.waiting import eventually
from support.real.nats import NatsServer
from support.recorded.older_store import copied, put_back


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the intervals of the recovery, so that its periodic work is done at once."""
    monkeypatch.setattr(recovery, "NOTE_S", 0.2)
    monkeypatch.setattr(recovery, "LEARN_S", 0.3)
    monkeypatch.setattr(recovery, "ORDER_WAIT_S", 1.0)


async def state(bus: Bus, stream: str) -> dict[str, Any]:
    found: dict[str, Any] = (await bus.api(f"STREAM.INFO.{stream}"))["state"]
    return found


async def noted(bus: Bus, stream: str, sequence: int) -> None:
    """Wait until the record `marks` says that the stream has reached this sequence."""

    async def probe() -> bool:
        entry = await bus.bucket("checkpoints").get("marks")
        return entry is not None and f'"{stream}":{sequence}' in entry.value.decode()

    await eventually(probe, 30, f"the note of {stream}")


async def is_ready(bus: Bus) -> None:
    async def probe() -> bool:
        return bus.is_ready

    await eventually(probe, 30, "the bus is ready")


async def test_an_older_store_is_reported_for_an_hour_and_its_sequences_are_not_used_again(
    fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = new_run_id()
    async with (
        connected(fresh_nats.url, repairs=True) as normalizer,
        connected(fresh_nats.url) as edge,
    ):
        learned: list[Loss] = []
        edge.continuity.on_loss(learned.append)
        await publish_events(normalizer, run_id, 1, 5)
        kept = copied(fresh_nats, streams.EVENTS)
        await publish_events(normalizer, run_id, 6, 20)
        await asyncio.to_thread(put_back, fresh_nats, kept, streams.EVENTS)
        await is_ready(normalizer)
        await eventually(lambda: asyncio.sleep(0, bool(learned)), 30, "the edge learns of it")
        next_one = await normalizer.publisher.publish(event(run_id, 6))
        loss = learned[0]
        assert (loss.stream, loss.last_left, loss.last_known) == (streams.EVENTS, 5, 20)
        assert next_one > loss.skipped_to == 20 + MARGIN[streams.EVENTS]
        assert (await state(edge, streams.EVENTS))["messages"] == 6, "what filled it is deleted"
        assert not loss.covers(5)
        assert loss.covers(6)
        assert edge.continuity.covers(streams.EVENTS, 15) == loss
        assert edge.continuity.covers(streams.EVENTS, next_one) is None
        assert "messages up to 5 only, of at least 20" in edge.continuity.notices[0]
        assert edge.not_ready == normalizer.not_ready == []
        assert edge.continuity.count(streams.EVENTS) == loss.last_known - loss.last_left
        monkeypatch.setattr(continuity, "NOTICED", timedelta(0))  # an hour later
        assert edge.continuity.count(streams.EVENTS) == 0
        assert edge.continuity.notices == []


async def test_what_was_noted_is_enough_when_everybody_was_restarted(
    fresh_nats: NatsServer,
) -> None:
    async with connected(fresh_nats.url, repairs=True) as normalizer:
        await publish_events(normalizer, new_run_id(), 1, 5)
        kept = copied(fresh_nats, streams.EVENTS)
        await publish_events(normalizer, new_run_id(), 1, 5)
        await noted(normalizer, streams.EVENTS, 10)
    await asyncio.to_thread(put_back, fresh_nats, kept, streams.EVENTS)
    with pytest.raises(NotThereYet, match="lost the end of EVENTS: nothing is sent or read until"):
        async with connected(fresh_nats.url):
            pass
    async with connected(fresh_nats.url, repairs=True) as normalizer:
        assert normalizer.continuity.of(streams.EVENTS)[0].last_known == 10
        assert (await state(normalizer, streams.EVENTS))["last_seq"] > 10
    async with connected(fresh_nats.url) as edge:
        assert edge.continuity.of(streams.EVENTS) == normalizer.continuity.of(streams.EVENTS)


async def test_the_only_process_that_knows_a_sequence_reports_it(fresh_nats: NatsServer) -> None:
    """The normalizer started after the lost message, so only the connector knows this message."""
    async with connected(fresh_nats.url) as connector:
        subject = subjects.raw(new_run_id(), "upstream")
        await connector.publisher.publish(Message(subject, b"", {}))
        kept = copied(fresh_nats, streams.RAW)
        await connector.publisher.publish(Message(subject, b"", {}))
        await asyncio.to_thread(put_back, fresh_nats, kept, streams.RAW)

        async def said() -> bool:
            return "has lost the end of RAW" in str(connector.not_ready)

        await eventually(said, 30, "the connector says what is wrong")
        with pytest.raises(BusUnavailable, match="Is a normalizer running"):
            await connector.bucket("runs").get("x")
        async with connected(fresh_nats.url, repairs=True) as normalizer:
            await is_ready(connector)
            assert normalizer.continuity.of(streams.RAW)[0].last_known == 2


async def test_an_older_bucket_is_reported_and_still_used(fresh_nats: NatsServer) -> None:
    async with connected(fresh_nats.url, repairs=True) as normalizer:
        await normalizer.bucket("runs").put("a", b"1")
        kept = copied(fresh_nats, "KV_runs")
        last = await normalizer.bucket("runs").put("a", b"2")
        await noted(normalizer, "KV_runs", last)
        learned: list[Loss] = []
        normalizer.continuity.on_loss(learned.append)
        await asyncio.to_thread(put_back, fresh_nats, kept, "KV_runs")
        await is_ready(normalizer)
        await eventually(lambda: asyncio.sleep(0, bool(learned)), 30, "the loss")
        assert await normalizer.bucket("runs").put("a", b"3") == last
        await noted(normalizer, "KV_runs", last)
        assert len(normalizer.continuity.of("KV_runs")) == 1


async def test_two_that_repair_at_once_find_one_loss(fresh_nats: NatsServer) -> None:
    async with (
        connected(fresh_nats.url, repairs=True) as one,
        connected(fresh_nats.url, repairs=True) as other,
    ):
        subject = subjects.command("nobody", "start", new_run_id())
        await one.publisher.publish(Message(subject, b"", {}))
        kept = copied(fresh_nats, streams.COMMANDS)
        await one.publisher.publish(Message(subject, b"", {}))
        await other.publisher.publish(Message(subject, b"", {}))
        await asyncio.to_thread(put_back, fresh_nats, kept, streams.COMMANDS)
        await is_ready(one)
        await is_ready(other)
        await eventually(lambda: asyncio.sleep(0, one.continuity.all), 30, "the loss")
        await eventually(lambda: asyncio.sleep(0, other.continuity.all), 30, "the loss")
        assert one.continuity.all == other.continuity.all
        assert len(one.continuity.all) == 1
        next_one = await one.publisher.publish(Message(subject, b"", {}))
        assert next_one > one.continuity.all[0].skipped_to >= 2 + MARGIN["COMMANDS"]
        assert (await state(one, streams.COMMANDS))["messages"] == 2


async def test_unreadable_records_of_losses_block_nobody(
    fresh_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """One record has an unknown field of a later version; the others are no valid records."""
    loss = Loss(streams.EVENTS, 1, 2, 0, "2026-01-01T00:00:00Z")
    async with connected(fresh_nats.url, repairs=True) as normalizer:
        checkpoints = normalizer.bucket("checkpoints")
        later = [
            {
                **{"stream": streams.EVENTS, "last_left": 1, "last_known": 2, "skipped_to": 0},
                **{"found_at": "2026-01-01T00:00:00Z", "severity": "high"},
            }
        ]
        await checkpoints.put(f"lost.{streams.EVENTS}", orjson.dumps(later))
        await checkpoints.put(f"lost.{streams.RAW}", b"{}}")
        await checkpoints.put("marks", b'{"RAW": "many"}')
        async with connected(fresh_nats.url) as edge:
            assert edge.continuity.of(streams.EVENTS) == (loss,)
            assert edge.not_ready == []
        assert f"checkpoints, lost.{streams.RAW}: cannot be read" in caplog.text
        await publish_events(normalizer, new_run_id(), 1, 5)
        await noted(normalizer, streams.EVENTS, 5)
