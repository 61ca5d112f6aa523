"""A disk is really full: the server cannot write, and a publisher gets no answer."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.bus import RawWriter, streams, subjects
from penstock.bus.read.direct import replay
from support.drive.bus import connected, new_run_id
from support.drive.waiting import eventually
from support.real.nats import NatsServer

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system"),
]

FRAMES, FRAME_BYTES = 400, 100_000  # 40 MB in total


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 24 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


async def test_a_writer_is_held_back_until_there_is_room_and_loses_nothing(disk: Path) -> None:
    run_id = new_run_id()
    nats = NatsServer(
        disk / "nats", name="full nats", jetstream="max_file_store: 1GB", on_disk=True
    )
    nats.start()
    try:
        async with connected(nats.url) as bus:
            writer = await RawWriter.resume(bus, run_id, "upstream", "pod/1")

            async def write() -> None:
                for number in range(FRAMES):
                    payload = f"{number:06d}".encode().ljust(FRAME_BYTES, b"x")
                    await writer.write("bytes", payload, leg=1)

            async def says_so() -> bool:
                return "RAW has not answered for" in str(bus.not_ready)

            writing = asyncio.create_task(write())
            await eventually(says_so, 60, "the bus says that RAW does not answer")
            assert "room on their disks" in str(bus.not_ready)
            assert not writing.done()
            assert 0 < writer.index < FRAMES
            subprocess.run(["mount", "-o", "remount,size=200m", disk], check=True)
            await asyncio.to_thread(nats.restart)  # else the server never writes again
            async with asyncio.timeout(60):
                await writing
            pattern = subjects.raw_of_run(run_id)
            found = [int(each.payload[:6]) async for each in replay(bus, streams.RAW, pattern)]
            assert found == [*range(FRAMES)]
            assert bus.not_ready == []
    finally:
        nats.remove()
