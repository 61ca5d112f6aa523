"""`penstock replay-server`: a stored run is run anew, and no model and no tool of it runs."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from penstock_cli.operations.replays import Piece, Recording, Replays, server
from support.drive.waiting import eventually
from support.real.consoles import decided, has_status, started
from support.real.forked import Forked
from support.real.servers import SharedRun
from support.real.up import FORKED
from support.real.upstreams import Upstream

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]


async def state(http: httpx.AsyncClient, run_id: str) -> dict[str, Any]:
    """Return the run's state after its last event. The run's record has ended before this event is
    stored, so that who has read the event finds the record ended."""

    async def found() -> dict[str, Any] | None:
        read: dict[str, Any] = (await http.get(f"/v1/runs/{run_id}/state")).json()
        return read if read["status"] == "completed" else None

    await has_status(http, run_id, "completed")
    return await eventually(found, 60)


async def test_a_stored_run_is_run_anew_and_none_of_its_tools_runs(
    demo: str,
    http: httpx.AsyncClient,
    test_run: SharedRun,
    agno_server: Upstream,
    tmp_path: Path,
) -> None:
    first = {
        "replayed-agno": await started(http, "textconfirm only once", "tester"),
        "replayed-adk": await started(http, "Please delete report.txt", "vana"),
    }
    for run_id in first.values():
        await decided(http, run_id)
    before = {agent: await state(http, run_id) for agent, run_id in first.items()}
    # Tests of other files call the same server's tools meanwhile.
    tools = [each for each in agno_server.tool_runs() if "only once" in each["args"].values()]
    assert len(tools) == 1
    agents = yaml.safe_load((test_run.folder / "console.yaml").read_text())["agents"]
    port = agents[-1]["url"].rsplit(":", 1)[1]
    options = ["--data", str(test_run.folder / "demo/data"), "--port", port, "--speed", "0"]
    log = tmp_path / "replays.log"
    process = Forked(
        [*FORKED, "replay-server", *first.values(), *options, "--json"], os.environ, log
    )

    async def told() -> list[dict[str, Any]]:
        assert process.poll() is None, log.read_text()
        lines = log.read_text().splitlines() if log.exists() else []
        return [json.loads(each) for each in lines] if len(lines) == 2 else []

    try:
        assert {each["run"] for each in await eventually(told, 60)} == set(first.values())
        for agent, known in before.items():
            again = await started(http, "anything", agent)
            await decided(http, again)
            found = await state(http, again)
            for part in ("messages", "tool_calls"):
                assert found[part] == known[part], agent
            asked, asks = (
                [(item["tool"], item["args"]) for item in each["approvals"][0]["items"]]
                for each in (known, found)
            )
            assert asks == asked
        ran = [each for each in agno_server.tool_runs() if "only once" in each["args"].values()]
        assert ran == tools
    finally:
        process.terminate()
    assert await process.ended() == 0


async def test_a_run_that_is_not_kept_is_named(
    test_run: SharedRun, demo: str, tmp_path: Path
) -> None:
    data = test_run.folder / "demo/data"
    log = tmp_path / "replays.log"
    unknown = "01980000-0000-7000-8000-000000000001"
    process = Forked([*FORKED, "replay-server", unknown, "--data", str(data)], os.environ, log)
    assert await process.ended() == 2
    assert f"the source frames of run {unknown} are not kept" in log.read_text()


PIECES = [Piece(0.0, b"data: 1\n\n"), Piece(0.3, b"data: 2\n\n")]
TWO_LEGS = Recording("r1", "a", "agui", [PIECES, [Piece(0.0, b"data: 3\n\n")]])
ONE_LEG = Recording("r2", "a", "agui", [[Piece(0.0, b"data: 4\n\n")]])


@asynccontextmanager
async def replaying(speed: float) -> AsyncIterator[httpx.AsyncClient]:
    serving = server(Replays([TWO_LEGS, ONE_LEG], speed), 0)
    await serving.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{serving.port}") as http:
        yield http
    await serving.stop()


async def test_each_conversation_gets_the_legs_of_its_own_run() -> None:
    async def sent(http: httpx.AsyncClient, thread: str) -> str:
        return (await http.post("/agent", json={"threadId": thread})).text.replace("\n\n", " ")

    async with replaying(0) as http:
        one, other = await sent(http, "one"), await sent(http, "other")
        assert (one, other) == ("data: 1 data: 2 ", "data: 4 ")
        assert await sent(http, "one") == "data: 3 "
        # Both runs are over: the next ones begin with the first run again.
        assert await sent(http, "one") == one
        for path in ("/run_sse", "/agents/a/runs", "/agents/a/runs/r/cancel"):
            assert (await http.post(path, json={})).status_code == 404


@pytest.mark.parametrize(("speed", "least_s", "most_s"), [(1.0, 0.3, 20.0), (10.0, 0.0, 0.29)])
async def test_pauses_are_as_long_as_they_were_or_shorter(
    speed: float, least_s: float, most_s: float
) -> None:
    took_s = []
    async with replaying(speed) as http:
        for _ in range(3):
            async with http.stream("POST", "/", json={"threadId": "one"}) as answer:
                clock = asyncio.get_running_loop().time
                at = [clock() async for _ in answer.aiter_raw()]
                took_s.append(at[-1] - at[0])
            await http.post("/", json={"threadId": "one"})
            await http.post("/", json={"threadId": "one"})
    # Other work on the machine may only make a pause longer.
    assert least_s * 0.9 <= min(took_s) <= most_s
