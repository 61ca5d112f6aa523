"""The clients behind an nginx that buffers, and asleep, over a real agent server."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from penstock_client import Client
from support.drive.repository import ROOT
from support.drive.waiting import eventually
from support.real import node, servers
from support.real.devtools import page_at
from support.real.ports import free_port
from support.real.up import Up
from support.real.upstreams import Upstream

pytestmark = [pytest.mark.real, pytest.mark.chaos, pytest.mark.timeout(240)]

ASLEEP_S = 61.0
# nginx buffers by itself, unless the server says for an answer that it must not.
OBEYS, IGNORES = "", "proxy_ignore_headers X-Accel-Buffering;"
# One process: its workers would be those of another user, who may not read the files of tests.
NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr;
events {{}}
http {{
  access_log off; default_type text/html; types {{ text/javascript js; }}
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location /v1/ {{
      proxy_pass {server}; proxy_http_version 1.1; proxy_read_timeout 300s;
      proxy_set_header Host $http_host; proxy_buffering on; {headers}
    }}
    location / {{ root {folder}/files; }}
  }}
}}
"""
# Each prints the run's id, a line when it has five events, and at last the numbers of all. A run
# that asks is approved.
PYTHON = """
import json, sys
from penstock_client import Client, Notice
with Client(sys.argv[1]) as client:
    run = client.run("assistant", sys.argv[2])
    print(run.start(), flush=True)
    seen = []
    for event in run:
        if isinstance(event, Notice):
            continue
        seen.append(event.sequence)
        if len(seen) == 5:
            print("five events", flush=True)
        if event.type == "lifecycle.paused":
            client.decide(client.approval(event.data["approval_id"]), True)
print(json.dumps(seen))
"""
FOLLOW = """
const follow = async (client, message, tell) => {
  const run = client.run("assistant", message);
  tell(await run.start());
  const seen = [];
  for await (const event of run) {
    if (isNotice(event)) continue;
    seen.push(event.sequence);
    if (seen.length === 5) tell("five events");
    if (isType(event, "lifecycle.paused")) {
      await client.decide(await client.approval(event.data.approval_id), true);
    }
  }
  return seen;
};
"""
JAVASCRIPT = f"""
import {{ Client, isNotice, isType }} from "@penstock/client";
{FOLLOW}
const seen = await follow(new Client(process.argv[2]), process.argv[3], console.log);
console.log(JSON.stringify(seen));
"""
PAGE = f"""(async () => {{
  const {{ Client, isNotice, isType }} = await import("/client/index.js");
  {FOLLOW}
  const told = [];
  const seen = await follow(new Client(), MESSAGE, (line) => told.push(line));
  return [told[0], seen];
}})()"""


@pytest.fixture(scope="module")
def penstock(tmp_path_factory: pytest.TempPathFactory, agno_server: Upstream) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("penstock")
    agent = {"id": "assistant", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"}
    config = folder / "penstock.yaml"
    config.write_text(yaml.safe_dump({"agents": [agent]}))
    up = Up(folder, "--config", str(config))
    up.start()
    try:
        yield up.url
    finally:
        up.signal(signal.SIGTERM)


@asynccontextmanager
async def nginx(folder: Path, server: str, url: str, headers: str = OBEYS) -> AsyncIterator[None]:
    """Run nginx at `url` in front of a server."""
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    if not Path(program).exists():
        pytest.skip("no nginx here (Debian's package `nginx-light`)")
    (folder / "files").mkdir(exist_ok=True)
    if not (client := folder / "files/client").exists():
        client.symlink_to(ROOT / "clients/javascript")
        (folder / "files/page.html").write_text("<!doctype html><title>A page</title>")
    config = folder / "nginx.conf"
    port = url.rpartition(":")[2]
    config.write_text(NGINX.format(folder=folder, server=server, port=port, headers=headers))
    command = [program, "-p", str(folder), "-c", str(config)]
    process = servers.start("nginx", command, log=folder / "nginx.log", owner_pid=os.getpid())
    try:
        async with httpx.AsyncClient() as http:

            async def answers() -> bool:
                try:
                    return (await http.get(f"{url}/v1/agents")).is_success
                except httpx.TransportError:
                    return False

            await eventually(answers, 30, "the answer of nginx")
        yield
    finally:
        process.stop()


async def begin(client: str, folder: Path, url: str, message: str) -> Process:
    """Start a program that follows a run with the client of this language."""
    command = [sys.executable, "-c", PYTHON]
    if client == "node":
        (program := folder / "program.mjs").write_text(JAVASCRIPT)
        folder = node.project(folder / "node", program)
        command = ["node", "tests/program.mjs"]
    return await asyncio.create_subprocess_exec(*command, url, message, cwd=folder, stdout=PIPE)


async def ended(process: Process) -> list[int]:
    assert process.stdout is not None
    try:
        lines = (await asyncio.wait_for(process.stdout.read(), 90)).splitlines()
        found: list[int] = json.loads(lines[-1])
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    return found


async def in_chromium(url: str, message: str) -> tuple[str, list[int]]:
    async with page_at(f"{url}/page.html") as page:
        run_id, seen = await page.value(PAGE.replace("MESSAGE", json.dumps(message)))
        return run_id, seen


@pytest.mark.parametrize("client", ["python", "node", "chromium"])
@pytest.mark.parametrize(
    ("headers", "message"),
    [
        # The client answers a question in the middle, so the events came as they happened.
        pytest.param(OBEYS, "confirm A note", id="as the server says"),
        pytest.param(IGNORES, "long", id="whatever the server says"),
    ],
)
async def test_a_run_is_whole_behind_an_nginx_that_buffers(
    penstock: str, tmp_path: Path, client: str, headers: str, message: str
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with nginx(tmp_path, penstock, url, headers):
        if client == "chromium":
            run_id, seen = await in_chromium(url, message)
        else:
            process = await begin(client, tmp_path, url, message)
            assert process.stdout is not None
            run_id = (await process.stdout.readline()).decode().strip()
            seen = await ended(process)
    with Client(penstock) as direct:
        record = direct.record(run_id)
    assert (record["status"], record["sequence"]) == ("completed", len(seen))
    assert seen == [*range(1, len(seen) + 1)]


@pytest.mark.parametrize("way", ["stays", "is lost"])
async def test_a_run_is_whole_for_clients_that_slept_for_a_minute_meanwhile(
    penstock: str, tmp_path: Path, way: str
) -> None:
    """The run ends while they sleep, and their connections stay or are lost."""
    url = f"http://127.0.0.1:{free_port()}"
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(AsyncExitStack())
        await running.enter_async_context(nginx(tmp_path, penstock, url))
        asleep: list[tuple[Process, str]] = []
        with Client(penstock) as direct:
            for client in ("python", "node"):
                process = await begin(client, tmp_path, url, "slow")
                assert process.stdout is not None
                run_id = (await process.stdout.readline()).decode().strip()
                assert await process.stdout.readline() == b"five events\n"
                process.send_signal(signal.SIGSTOP)
                asleep.append((process, run_id))
            if way == "is lost":
                await running.aclose()
                await stack.enter_async_context(nginx(tmp_path, penstock, url))
            await asyncio.sleep(ASLEEP_S)  # how long they sleep is what is tried
            for process, _ in asleep:
                process.send_signal(signal.SIGCONT)
            for process, run_id in asleep:
                seen = await ended(process)
                record = direct.record(run_id)
                assert (record["status"], record["sequence"]) == ("completed", len(seen))
                assert seen == [*range(1, len(seen) + 1)]
