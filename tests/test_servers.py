"""The servers that the tests use are real ones, and they answer."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import httpx
import nats
import pytest

from support.drive.repository import ROOT
from support.drive.waiting import wait_for
from support.real.forked import Forked
from support.real.nats import NatsServer
from support.real.upstreams import Upstream

TESTS = str(ROOT / "tests")


async def test_the_nats_server_has_jetstream(nats_server: NatsServer) -> None:
    client = await nats.connect(nats_server.url)
    try:
        assert (await client.jetstream().account_info()).streams >= 0
    finally:
        await client.close()


async def test_a_killed_nats_server_comes_back_with_its_messages(fresh_nats: NatsServer) -> None:
    client = await nats.connect(fresh_nats.url)
    await client.jetstream().add_stream(name="S", subjects=["s"])
    await client.jetstream().publish("s", b"kept")
    await client.close()
    url = fresh_nats.url
    fresh_nats.kill()
    fresh_nats.start()
    assert fresh_nats.url == url
    client = await nats.connect(url)
    assert (await client.jetstream().get_msg("S", 1)).data == b"kept"
    await client.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the test reads /proc")
def test_a_killed_test_process_leaves_no_nats_server_behind(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys, time\n"
        "from support.real.nats import NatsServer\n"
        "for name in ('stopped', 'left', 'paused'):\n"
        "    server = NatsServer(pathlib.Path(sys.argv[1], name), name=name)\n"
        "    server.start()\n"
        "    print(server.pid, flush=True)\n"
        "    if name == 'stopped': server.stop()\n"
        "server.pause()\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    log = tmp_path / "log"
    log.touch()
    process = Forked(["-c", code, str(tmp_path)], {**os.environ, "PYTHONPATH": TESTS}, log)
    try:
        wait_for(lambda: "ready" in log.read_text(), 60, "three servers")
    finally:
        process.kill()
    pids = [int(line) for line in log.read_text().split()[:3]]
    wait_for(lambda: not any(map(runs, pids)), 30, "the end of all servers")


def runs(pid: int) -> bool:
    """Return whether the process exists and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.real
def test_the_agno_server_streams(agno_server: Upstream) -> None:
    with httpx.Client(base_url=agno_server.url) as client:
        assert client.get("/health").status_code == 200
        run = client.post(
            "/agents/demo-agent/runs", data={"message": "text", "stream": "true", "session_id": "t"}
        )
    assert "event: RunStarted" in run.text
    assert "event: RunCompleted" in run.text


@pytest.mark.real
def test_the_adk_server_streams(adk_server: Upstream) -> None:
    with httpx.Client(base_url=adk_server.url) as client:
        client.post("/apps/demo/users/u/sessions", json={"sessionId": "t"}).raise_for_status()
        run = client.post(
            "/run_sse",
            json={
                "appName": "demo",
                "userId": "u",
                "sessionId": "t",
                "newMessage": {"role": "user", "parts": [{"text": "hi"}]},
                "streaming": True,
            },
        )
    assert '"partial":true' in run.text
    assert run.text.endswith("\n\n")
