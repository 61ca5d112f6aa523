"""Frames are fed to a run's fold, and the events that are not published yet are collected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from penstock.bus import Stored
from penstock.bus.messages import RawFrame
from penstock.dialects.decoders import DECODERS
from penstock_normalizer.fold.run_fold import RunFold
from penstock_normalizer.runs.context import RunContext
from penstock_normalizer.runs.feeder import Feeder
from penstock_normalizer.runs.run_output import ReadyEvents, RunOutput
from support.fakes.raw import RUN_ID, Frames, agno


@dataclass
class Output:
    """The part of a run's output that the feeder reads: what EVENTS has of the run."""

    sequence: int = 0
    raw_position: int = 0
    last_type: str = ""
    run_id: str = RUN_ID


class Context:
    """The part of a run's context that the feeder uses."""

    async def give_up(self, stored: Stored, error: Exception) -> None:
        raise error


async def fed(feeder: Feeder, fold: RunFold, frame: RawFrame, ready: ReadyEvents) -> None:
    stored = Stored(f"rawp.0.{RUN_ID}.{frame.writer}", frame.sequence, {}, frame.payload)
    await feeder.feed(fold, frame, stored, ready)


async def test_no_event_is_left_out_after_one_that_a_newer_version_made_of_a_frame() -> None:
    """The frames that follow come in one batch with the frame of which this version makes none."""
    frames, output, fold = Frames(), Output(), RunFold(RUN_ID, DECODERS)
    feeder = Feeder(cast("RunContext", Context()), cast("RunOutput", output))
    begin = ReadyEvents()
    await fed(feeder, fold, frames.open(), begin)
    body = agno("RunStarted") + agno("RunContent", content="one")
    await fed(feeder, fold, frames.bytes(body), begin)
    unknown = frames.frame("telepathy", b"{}", "oracle")
    made_of_it = fold.sequence + 1
    output.sequence, output.raw_position = made_of_it, unknown.sequence
    output.last_type = "llm.sparkled"
    ready = ReadyEvents()
    await fed(feeder, fold, unknown, ready)
    await fed(feeder, fold, frames.bytes(agno("RunContent", content="two")), ready)
    await fed(feeder, fold, frames.bytes(agno("RunContent", content="three")), ready)
    found: list[Any] = [(event.sequence, event.data["content"]) for event, _ in ready.events]
    assert found == [(made_of_it + 1, "two"), (made_of_it + 2, "three")]
