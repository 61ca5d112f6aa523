"""The history of a checkpoint leads back to a frame before the events that EVENTS has lost."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.bus.state.losses import Loss
from penstock.bus.streams import EVENTS
from penstock_normalizer.partitions import checkpoint as checkpoint_module
from penstock_normalizer.partitions.checkpoint import Checkpoint


class Bucket:
    """Takes every write."""

    async def get(self, key: str) -> None:
        return None

    async def update(self, key: str, value: bytes, revision: int) -> int:
        return revision + 1


async def test_a_point_that_is_added_before_a_loss_is_noticed_does_not_hide_the_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint_module, "REMEMBER_S", 0)
    last, known = 140, 140

    async def api(call: str) -> dict[str, Any]:
        return {"state": {"last_seq": last}}

    continuity = SimpleNamespace(all=(), highest=lambda stream: known)
    bus: Any = SimpleNamespace(bucket=lambda name: Bucket(), api=api, continuity=continuity)
    checkpoint = Checkpoint(bus, 0, 5)
    await checkpoint.go_back()
    await checkpoint.write(90)
    await checkpoint.remember_periodically(90)
    # The events up to 441 are written; then EVENTS comes back with those up to 143.
    last, known = 143, 441
    await checkpoint.write(452)
    await checkpoint.remember_periodically(452)
    continuity.all = (Loss(EVENTS, 143, 441, 1000, "2026-11-26T19:41:27Z"),)
    await checkpoint.go_back()
    assert checkpoint.position == 90


async def test_a_checkpoint_of_few_frames_is_written_later_than_one_of_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    bus: Any = SimpleNamespace(bucket=lambda name: Bucket())
    checkpoint = Checkpoint(bus, 0, 5)
    written = []
    for after_s, done_up_to in ((0, 1), (1, 2), (1, 600), (1, 601), (4, 602), (9, 602)):
        now_s += after_s
        await checkpoint.write_if_far(done_up_to, every_s=1.0)
        written.append(checkpoint.position)
    assert written == [1, 1, 600, 600, 602, 602]
