"""The state of a pause is kept while the run may continue, and then as long as its events."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from penstock.bus import Bucket, RawWriter
from penstock.dialects.decoders import DECODERS
from penstock.settings import Config
from penstock_normalizer.fold.approval_request import PendingApproval
from penstock_normalizer.fold.run_fold import RunFold
from penstock_normalizer.runs.pauses import Pauses
from penstock_normalizer.service import NormalizerService
from support.drive.bus import connected, new_run_id
from support.drive.pipeline import pipeline
from support.drive.waiting import eventually
from support.fakes.raw import agno_pause
from support.real.nats import NatsServer

OPEN = orjson.dumps({"agent": "a", "protocol": "agno", "session_id": "s", "user_id": "u"})


async def test_a_pause_is_kept_for_ever_and_after_the_runs_end_as_long_as_its_events(
    nats_server: NatsServer,
) -> None:
    run_id = new_run_id()
    async with pipeline(nats_server.url, Config(), (NormalizerService,)) as penstock:

        async def ttl() -> str | None:
            stored = await penstock.bus.tail("KV_pauses", f"$KV.pauses.{run_id}")
            assert stored is not None
            return stored.headers.get("Nats-TTL")

        writer = RawWriter(penstock.bus, run_id, "upstream", "pod/1")
        await writer.write("open", OPEN, leg=1)
        await writer.write("bytes", agno_pause(), leg=1)
        await writer.write("end", b'{"outcome":"eof"}', leg=1)
        *_, requested = await penstock.events_until(run_id, "approval.requested")
        assert await ttl() is None
        cancelled = {"type": "lifecycle.cancelled", "data": {"by": "u", "reason": "user_stop"}}
        await writer.write("event", orjson.dumps(cancelled), leg=1)
        *_, last = await penstock.ended(run_id)
        assert last.type == "lifecycle.cancelled"
        assert await ttl() == f"{7 * 24 * 3600}s"
        kept = await penstock.bus.bucket("pauses").get(run_id)
        assert kept is not None
        assert orjson.loads(kept.value)["approval_id"] == requested.data["approval_id"]


async def test_a_pause_expires_and_a_missing_one_is_no_error(
    nats_server: NatsServer,
) -> None:
    run_id = new_run_id()
    async with connected(nats_server.url) as bus:
        pauses = Pauses(bus, kept_s=1)
        await pauses.expire(run_id)
        await bus.bucket("pauses").put(run_id, b"{}")
        await pauses.expire(run_id)

        async def gone() -> bool:
            return await bus.tail("KV_pauses", f"$KV.pauses.{run_id}") is None

        await eventually(gone)


def fold(run_id: str, sequence: int) -> RunFold:
    paused = RunFold(run_id, DECODERS, 2**20)
    paused.facts = {"agent": "a", "protocol": "agno"}
    paused._the_decoder()
    paused.pending = PendingApproval(f"{run_id}-1", {})
    paused.sequence, paused.leg = sequence, 1
    return paused


async def test_a_slow_normalizer_does_not_store_again_a_pause_that_expires(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = new_run_id()
    update = Bucket.update

    async def late(self: Bucket, *args: Any) -> int | None:
        monkeypatch.undo()
        await pauses.store(fold(run_id, 3))
        await pauses.expire(run_id)
        return await update(self, *args)

    async with connected(nats_server.url) as bus:
        pauses = Pauses(bus, kept_s=60)
        monkeypatch.setattr(Bucket, "update", late)
        await pauses.store(fold(run_id, 3))
        kept = await bus.tail("KV_pauses", f"$KV.pauses.{run_id}")
    assert kept is not None
    assert kept.headers.get("Nats-TTL") == "60s"


async def test_a_pause_that_is_written_meanwhile_expires_all_the_same(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = new_run_id()
    update = Bucket.update

    async def late(self: Bucket, *args: Any) -> int | None:
        monkeypatch.undo()
        await pauses.store(fold(run_id, 4))
        return await update(self, *args)

    async with connected(nats_server.url) as bus:
        pauses = Pauses(bus, kept_s=60)
        await pauses.store(fold(run_id, 3))
        monkeypatch.setattr(Bucket, "update", late)
        await pauses.expire(run_id)
        kept = await bus.tail("KV_pauses", f"$KV.pauses.{run_id}")
    assert kept is not None
    assert kept.headers.get("Nats-TTL") == "60s"


async def test_a_pause_replaces_one_that_has_lost_its_object(nats_server: NatsServer) -> None:
    run_id = new_run_id()
    async with connected(nats_server.url) as bus:
        await bus.bucket("pauses").put(run_id, b'{"penstock_object":"that-is-gone"}')
        await Pauses(bus, kept_s=60).store(fold(run_id, 3))
        kept = await bus.bucket("pauses").get(run_id)
    assert kept is not None
    assert orjson.loads(kept.value)["approval_id"] == f"{run_id}-1"
