"""The official clients have the same state wherever their stream was cut, for every recording.

A face is a row of `FACES`: its client reads the run of a recording, cut off after so many frames,
and comes back as it does by itself. `make faults` tries every frame of every recording.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.bus import Bus
from penstock.events import TERMINAL
from penstock.settings import Config
from support.drive.agno_surface import CONFIG
from support.drive.clients import Client, Stream
from support.fakes.pretend import PretendRun, play, playing
from support.real.a2a_client import INTERFACES, Json, normal, official
from support.real.openai_client import running
from support.real.vercel_client import chat
from support.real.vercel_docs import transport
from support.recorded.canonical import Recorded, every_recorded_run, type_of

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

# Checks all cuts, or each `step`th, of a run of the recording, and returns how many it has made.
Check = Callable[[Bus, Recorded, int], Awaitable[int]]
Face = Callable[[Client, Path], AbstractAsyncContextManager[Check]]


async def played(bus: Bus, recording: Recorded) -> PretendRun:
    run = PretendRun(bus)
    await play(run, recording, f"chat {uuid.uuid4()}")
    return run


@asynccontextmanager
async def vercel(version: str, edge: Client, folder: Path, *, exact: bool) -> AsyncIterator[Check]:
    """Let the chat class resume: with a replay of its message, or exactly, by the transport of the
    documents. Version 5 shows a replay twice, so it needs the transport."""
    options: Any = {"transport": str(transport(folder, version))} if exact else {}
    api = f"{str(edge.base_url).rstrip('/')}/vercel/assistant?sdk={version}"
    async with chat(version) as client:

        async def check(bus: Bus, recording: Recorded, step: int) -> int:
            run = await played(bus, recording)
            path = f"/vercel/assistant/{run.session_id}/stream"
            async with Stream(edge, "GET", path, params={"sdk": version}) as stream:
                count = len(await stream.rest())
            fixed = {"chat": run.session_id, "api": api, "automatic": False, **options}
            await client("open", **fixed)
            whole = await client("resume")
            for cut in range(1, count, step):
                await client("open", cut=cut, **fixed)
                await client("resume")
                state = await client("resume")
                for name in ("messages", "status"):
                    assert state[name] == whole[name], (recording.name, cut)
            return len(range(1, count, step))

        yield check


@asynccontextmanager
async def openai(language: str, edge: Client, folder: Path) -> AsyncIterator[Check]:
    """Let the client retrieve each response of the run after each number."""
    with running(language, str(edge.base_url)) as client:

        async def check(bus: Bus, recording: Recorded, step: int) -> int:
            run, cuts = await played(bus, recording), 0
            for leg in range(1, max(each["leg"] for each in recording.events) + 1):
                response_id = f"resp_{run.run_id}" + (f".{leg}" if leg > 1 else "")
                whole = await client.call("resume", id=response_id)
                assert [each["sequence_number"] for each in whole] == [*range(len(whole))]
                last = whole[-1]["response"]
                assert last["status"] in ("completed", "failed", "cancelled")
                for after in range(0, len(whole), step):
                    rest = await client.call("resume", id=response_id, after=after)
                    assert rest == whole[after + 1 :], (recording.name, leg, after)
                    cuts += 1
                if last["status"] == "completed":
                    final = await client.call("final", id=response_id, after=len(whole) // 2)
                    ids = [[item["id"] for item in each["output"]] for each in (final, last)]
                    assert ids[0] == ids[1]
            return cuts

        yield check


WAITING: Final = ("TASK_STATE_INPUT_REQUIRED", "TASK_STATE_AUTH_REQUIRED")
CLIENTS_AT_ONCE: Final = 40


@asynccontextmanager
async def a2a(interface: tuple[str, str], edge: Client, folder: Path) -> AsyncIterator[Check]:
    """Let a client leave after each event, and subscribe again while the rest comes. It folds what
    it gets with the SDK's own functions. A task that has ended has no stream, and is got whole."""
    async with official(str(edge.base_url).rstrip("/")) as client:
        at: dict[str, Any] = {"interface": interface}

        async def follow(asked: Json) -> Json:
            task = await client.call("subscribe", asked, **at)
            while task.get("status", {}).get("state") in WAITING:
                task = await client.call("subscribe", asked, **at)
            if task.get("raised") == "UnsupportedOperationError":
                task = await client.call("get_task", asked, **at)
            return task

        async def check(bus: Bus, recording: Recorded, step: int) -> int:
            every = range(1, len(recording.events), step)
            stride = len(every) // CLIENTS_AT_ONCE + 1
            for first in range(stride):
                run, cuts, following = PretendRun(bus), every[first::stride], []
                asked = {"id": run.run_id}
                async for number in playing(run, recording, f"context {uuid.uuid4()}"):
                    if number in cuts:
                        left = await client.call("subscribe", asked, cut=1, **at)
                        assert "raised" not in left, left
                        following.append(asyncio.create_task(follow(asked)))
                if type_of(recording.events[-1]) not in TERMINAL:
                    run.envelope = {}
                    await run.say("lifecycle.cancelled", reason="user_stop", confirmed=True)
                tasks = await asyncio.gather(*following)
                whole = normal(await client.call("get_task", asked, **at))
                assert whole["status"]["state"] not in WAITING
                for cut, task in zip(cuts, tasks, strict=True):
                    assert normal(task) == whole, (recording.name, cut)
            return len(every)

        yield check


FACES: Final[Mapping[str, Face]] = {
    "ai 5, exactly": partial(vercel, "5", exact=True),
    "ai 6": partial(vercel, "6", exact=False),
    "ai 6, exactly": partial(vercel, "6", exact=True),
    "ai 7": partial(vercel, "7", exact=False),
    "ai 7, exactly": partial(vercel, "7", exact=True),
    "openai for Python": partial(openai, "python"),
    "openai for JavaScript": partial(openai, "javascript"),
    **{f"a2a, {' '.join(each)}": partial(a2a, each) for each in INTERFACES},
}
PROTOCOLS: Final = ("agno", "adk", "agui")
CASES = [(face, protocol) for face in FACES for protocol in PROTOCOLS]
# `make test` cuts one client in one recording of each protocol, at some frames.
SHORT: Final = {
    "agno": "agno/3.1.10/confirm_reject_note",
    "adk": "adk/2.13.0/confirm_stream",
    "agui": "agui/pydantic_ai/frontend_tool",
}


@pytest.fixture(scope="module")
def config() -> Config:
    return CONFIG


async def check_cuts(
    face: str, edge: Client, bus: Bus, folder: Path, recordings: list[Recorded], step: int
) -> int:
    cuts = 0
    async with FACES[face](edge, folder) as check:
        for recording in recordings:
            cuts += await check(bus, recording, step)
    return cuts


async def test_the_client_has_the_same_state_wherever_its_stream_was_cut(
    edge: Client, bus: Bus, tmp_path: Path
) -> None:
    recordings = [each for each in every_recorded_run() if each.name in SHORT.values()]
    assert len(recordings) == len(SHORT)
    assert await check_cuts("ai 6", edge, bus, tmp_path, recordings, 6) > 5


@pytest.mark.chaos
@pytest.mark.parametrize(("face", "protocol"), CASES)
async def test_each_client_has_the_same_state_at_every_frame_of_every_recording(
    edge: Client, bus: Bus, tmp_path: Path, face: str, protocol: str
) -> None:
    recordings = [each for each in every_recorded_run() if each.protocol == protocol]
    assert await check_cuts(face, edge, bus, tmp_path, recordings, 1) > 100
