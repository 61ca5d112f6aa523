"""A reader of a thread keeps encoders for open runs only."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from penstock.bus import Stored, subjects
from penstock_edge.runs.agui_leg_ids import AguiLegIds
from penstock_edge.views import agui
from penstock_edge.views.agui import Audience, RunEncoders, RunsInTurn
from support.drive.agui_out import Event, Run

RUNS = 300


async def _thread_of(run_id: str) -> str:
    return "thread-1"


async def _name(run_id: str, leg: int) -> str:
    return f"{run_id}-{leg}"


@dataclass
class Reading:
    """A reader of a thread that keeps all events that it has sent."""

    encoders: RunEncoders = field(
        default_factory=lambda: RunEncoders(
            cast(AguiLegIds, SimpleNamespace(thread_of=_thread_of, agui_run_id=_name)),
            Audience(protocol_version="1.0"),
        )
    )
    told: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.turns = RunsInTurn(self.encoders)

    async def read(self, run_id: str, *events: Event) -> None:
        for each in events:
            event = each | {"run_id": run_id}
            type = f"{event['event']['category']}.{event['event']['action']}"
            stored: Any = SimpleNamespace(
                subject=subjects.event(type, run_id), payload=orjson.dumps(event)
            )
            await self.encoders.prepare(cast(Stored, stored))
            frames = self.turns.feed(run_id, event)
            self.told += [orjson.loads(frame.data) for frame in frames]


async def test_a_thread_of_many_runs_keeps_encoders_of_open_runs_only() -> None:
    reading, kept = Reading(), []
    finished = Run().start().text("x").complete().events
    for number in range(RUNS):
        await reading.read(f"{number:036}", *finished)
        kept.append(len(reading.encoders))
    assert set(kept) == {0}
    assert [each["type"] for each in reading.told].count("RUN_FINISHED") == RUNS
    assert reading.encoders._leg_ids == {}


async def test_a_run_that_waits_keeps_its_encoder_while_others_come_and_go() -> None:
    reading = Reading()
    waits = Run().start().call(pending=True).pause({"tool_call_id": "c1"})
    await reading.read("a" * 36, *waits.events)
    for number in range(3):
        await reading.read(f"{number:036}", *Run().start().text("x").complete().events)
    assert len(reading.encoders) == 1
    before = len(waits.events)
    await reading.read("a" * 36, *waits.resume().result().complete().events[before:])
    last = [each for each in reading.told if each["type"] == "TOOL_CALL_RESULT"]
    assert [each["toolCallId"] for each in last] == [f"{'a' * 12}.c1"]
    assert len(reading.encoders) == 0


async def test_an_event_after_the_end_of_its_run_says_nothing() -> None:
    reading = Reading()
    events = Run().start().text("x").complete().events
    await reading.read("a" * 36, *events)
    told = len(reading.told)
    late = Run().say("telemetry.tokens", input_tokens=1).events
    await reading.read("a" * 36, *late)
    await reading.read("b" * 36, *events[:1])
    await reading.read("a" * 36, *late)
    assert [each["type"] for each in reading.told[told:]] == ["RUN_STARTED"]
    assert len(reading.encoders) == 1


async def test_the_ids_of_ended_runs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agui, "ENDED_RUNS", 5)
    reading = Reading()
    for number in range(20):
        await reading.read(f"{number:036}", *Run().start().complete().events)
    assert len(reading.encoders._ended) == 5
