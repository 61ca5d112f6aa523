"""Count the normalizer's calls for each event, and its memory for each open run.

The counts are the same on every machine. They differ by some calls between versions of Python. A
limit is the count of Python 3.11, rounded up. If a change exceeds a limit, first look for a way
without more calls. If the change is worth its cost, measure the normalizer before and after it
(`python -m bench` with the piece of the normalizer, several rounds), name both figures in the
commit, and raise the limit to the new count.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from penstock.bus.messages import RawFrame
from penstock.dialects.decoders import DECODERS
from penstock_normalizer.fold.envelope import CanonicalEvent
from penstock_normalizer.fold.run_fold import RunFold
from penstock_normalizer.runs.run_output import EventHeaders
from support.fakes.raw import RUN_ID, Frames, agno

GOLDEN = Path(__file__).parent.parent / "golden"


def text(frames: Frames) -> Iterator[RawFrame]:
    """Yield the frames of a text of 200 pieces, one piece in each frame."""
    yield frames.open()
    yield frames.bytes(agno("RunStarted"))
    for number in range(200):
        content = f"word {number} of a sentence of about the usual length "
        yield frames.bytes(agno("RunContent", content=content, pad="x" * 120))


def recorded(protocol: str, name: str) -> Iterator[RawFrame]:
    """Yield a recording as frames that each hold one frame of the upstream's stream."""
    frames = Frames(protocol)
    yield frames.open()
    for piece in (GOLDEN / protocol / name).read_bytes().split(b"\n\n"):
        yield frames.bytes(piece + b"\n\n")
    yield frames.end()


def work(source: list[RawFrame]) -> int:
    """Fold the frames, encode the events and their headers; return the number of events."""
    fold, headers, count = RunFold(RUN_ID, DECODERS), EventHeaders(RUN_ID), 0
    for frame in source:
        for event in fold.events(frame):
            assert type(event) is CanonicalEvent
            headers.lines(fold, event, frame.sequence, 1)
            count += 1
    return count


def calls_of(do: Callable[[], int]) -> tuple[int, int]:
    """Return the number of calls, of Python functions and of others, and what `do` returned."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    do()  # the first call fills caches
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        result = do()
    finally:
        sys.setprofile(before)
    return calls, result


@pytest.mark.parametrize(
    ("source", "limit"),
    [
        pytest.param(lambda: text(Frames()), 75, id="text"),
        pytest.param(lambda: recorded("agno", "3.1.10/simple_text.sse"), 85, id="agno"),
        pytest.param(lambda: recorded("adk", "2.13.0/weather_stream.sse"), 118, id="adk"),
        pytest.param(lambda: recorded("agui", "agno/tool.sse"), 86, id="agui"),
    ],
)
def test_an_event_takes_no_more_calls_than_before(
    source: Callable[[], Iterator[RawFrame]], limit: float
) -> None:
    frames = list(source())
    calls, events = calls_of(lambda: work(frames))
    assert events >= 3
    assert calls / events <= limit


def test_an_open_run_takes_no_more_objects_than_before() -> None:
    frames = list(text(Frames()))[:4]

    def opened() -> RunFold:
        fold = RunFold(RUN_ID, DECODERS)
        for frame in frames:
            fold.feed(frame)
        return fold

    opened()
    gc.collect()
    before = len(gc.get_objects())
    runs = [opened() for _ in range(100)]
    gc.collect()
    assert (len(gc.get_objects()) - before) / len(runs) <= 30


@pytest.mark.parametrize(
    ("protocol", "name"),
    [
        ("agno", "3.1.10/simple_text.sse"),
        ("adk", "2.13.0/weather_stream.sse"),
        ("agui", "agno/tool.sse"),
    ],
)
def test_the_fold_of_a_run_is_freed_without_the_collector_of_cycles(
    protocol: str, name: str
) -> None:
    """The garbage collector seldom looks at old objects, so cycles would stay in memory for long.

    Full collections are rare on purpose: they would stop a process that has many runs.
    """
    frames = list(recorded(protocol, name))
    work(frames)
    gc.collect()
    gc.disable()
    try:
        work(frames)
        assert gc.collect() == 0
    finally:
        gc.enable()
