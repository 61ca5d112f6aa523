"""OpenAI's clients have the same state wherever the stream of a response was cut, over the
recordings of all upstreams."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.bus import Bus
from penstock.bus.subjects import shard_of
from support.drive.agui_out import recorded
from support.drive.clients import Client
from support.fakes.pretend import PretendRun
from support.real.openai_client import LANGUAGES, running
from support.recorded.canonical import type_of

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]


async def published(bus: Bus, events: list[dict[str, Any]]) -> PretendRun:
    """Publish a recorded run again, as a run of its own."""
    run = PretendRun(bus)
    assert shard_of(run.run_id) == 0
    await run.record()
    for each in events:
        run.envelope = {"leg": each["leg"], "subrun": each.get("subrun")}
        run.envelope |= {"source": each["source"]}
        await run.say(type_of(each), **each["data"])
    return run


@pytest.mark.parametrize("language", LANGUAGES)
async def test_each_recording_is_continued_exactly_after_each_frame(
    edge: Client, bus: Bus, language: str
) -> None:
    cuts = 0
    with running(language, str(edge.base_url)) as openai:
        for name, events in recorded().items():
            run = await published(bus, events)
            for leg in range(1, max(each["leg"] for each in events) + 1):
                response_id = f"resp_{run.run_id}" + (f".{leg}" if leg > 1 else "")
                whole = await openai.call("resume", id=response_id)
                assert [each["sequence_number"] for each in whole] == [*range(len(whole))]
                last = whole[-1]["response"]
                assert last["status"] in ("completed", "failed", "cancelled")
                for after in range(len(whole)):
                    rest = await openai.call("resume", id=response_id, after=after)
                    assert rest == whole[after + 1 :], (name, leg, after)
                    cuts += 1
                if last["status"] == "completed":
                    final = await openai.call("final", id=response_id, after=len(whole) // 2)
                    assert [item["id"] for item in final["output"]] == [
                        item["id"] for item in last["output"]
                    ]
    assert cuts > 1000
