"""The clients follow runs over HTTP/2, through a real proxy that is restarted meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from penstock_client import Client
from penstock_client.testing import ReplayServer
from support.drive.repository import ROOT
from support.drive.waiting import eventually
from support.real import node
from support.real.authority import Authority
from support.real.caddy import caddy
from support.real.devtools import page_at
from support.real.ports import free_port
from support.recorded.asking import ASKING

pytestmark = [pytest.mark.real, pytest.mark.chaos, pytest.mark.timeout(180)]

CADDYFILE = """
{
	admin off
	auto_https disable_redirects
	skip_install_trust
	grace_period 1s
	servers {
		protocols h1 h2
	}
}
https://127.0.0.1:{$PORT} {
	tls {$CERT} {$KEY}
	log {
		output file {$ACCESS}
	}
	handle /v1/* {
		reverse_proxy {$SERVER}
	}
	handle {
		root * {$FILES}
		file_server
	}
}
"""
PYTHON = """
import json, sys
from penstock_client import Client, Notice
with Client(sys.argv[1]) as client:
    seen = [each.sequence for each in client.run("a", "b") if not isinstance(each, Notice)]
print(json.dumps(seen))
"""
JAVASCRIPT = """
import { Agent, fetch } from "undici";
import { Client, isNotice } from "@penstock/client";
const dispatcher = new Agent({ allowH2: true });
const follow = async (client) => {
  const seen = [];
  for await (const each of client.run("a", "b")) if (!isNotice(each)) seen.push(each.sequence);
  return seen;
};
const over = (url, init) => fetch(url, { ...init, dispatcher });
console.log(JSON.stringify(await follow(new Client(process.argv[2], { fetch: over }))));
process.exit();
"""
PAGE = """(async () => {
  const { Client, isNotice } = await import("/client/index.js");
  const seen = [];
  const run = new Client().run("a", "b");
  for await (const each of run) if (!isNotice(each)) seen.push(each.sequence);
  return seen;
})()"""


async def printed(*command: str, cwd: Path, **environment: str) -> list[int]:
    program = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, stdout=subprocess.PIPE, env={**os.environ, **environment}
    )
    try:
        out, _ = await program.communicate()
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    found: list[int] = json.loads(out)
    return found


async def in_python(url: str, folder: Path, authority: Path) -> list[int]:
    """In a process with the packages of the extra `http2`, which nothing else here needs."""
    extra = folder / "extra"
    install = ["pip", "install", "-q", "--target", str(extra), "h2"]
    await asyncio.to_thread(subprocess.run, [sys.executable, "-m", *install], check=True)
    program = (sys.executable, "-c", PYTHON, url)
    trust = {"SSL_CERT_FILE": str(authority), "PYTHONPATH": str(extra)}
    return await printed(*program, cwd=folder, **trust)


async def in_node(url: str, folder: Path, authority: Path) -> list[int]:
    program = folder / "program.mjs"
    program.write_text(JAVASCRIPT)
    project = folder / "node"
    project.mkdir()
    node.project(project, program)
    (project / "node_modules/undici").symlink_to(node.packages("copilotkit") / "undici")
    trust = {"NODE_EXTRA_CA_CERTS": str(authority)}
    return await printed("node", "tests/program.mjs", url, cwd=project, **trust)


async def in_chromium(url: str, folder: Path, authority: Path) -> list[int]:
    async with page_at("about:blank") as page:
        await page.send("Security.enable")
        await page.send("Security.setIgnoreCertificateErrors", ignore=True)
        await page.go(f"{url}/page.html")
        found: list[int] = await page.value(PAGE)
        return found


@pytest.mark.parametrize("follow", [in_python, in_node, in_chromium])
async def test_a_run_is_whole_over_http_2_while_connections_break_and_the_proxy_is_restarted(
    follow: Callable[[str, Path, Path], Coroutine[None, None, list[int]]],
    penstock_replay: ReplayServer,
    tmp_path: Path,
) -> None:
    penstock_replay.add(ASKING)
    penstock_replay.cut_after = [0, 3, 0, 1]
    authority = Authority(tmp_path, "authority")
    cert, key = authority.certify("proxy")
    (tmp_path / "files").mkdir()
    (tmp_path / "files/client").symlink_to(ROOT / "clients/javascript")
    (tmp_path / "files/page.html").write_text("<!doctype html><title>A page</title>")
    config, access = tmp_path / "Caddyfile", tmp_path / "access.log"
    config.write_text(CADDYFILE)
    url = f"https://127.0.0.1:{free_port()}"
    places = {"CERT": cert, "KEY": key, "ACCESS": str(access), "FILES": str(tmp_path / "files")}
    server = penstock_replay.url.removeprefix("http://")
    proxy = partial(caddy, tmp_path, config, "/v1/runs", url, SERVER=server, **places)

    async def asked() -> bool:
        streams = [path for path, _ in penstock_replay.requests if path.endswith("/events")]
        return len(streams) == 5  # the last one waits for the decision

    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(AsyncExitStack())
        await running.enter_async_context(proxy())
        following = asyncio.create_task(follow(url, tmp_path, authority.file))
        await eventually(asked, 60, "that the run has come to its question")
        await running.aclose()
        await stack.enter_async_context(proxy())
        with Client(penstock_replay.url) as decider:
            [approval] = decider.approvals()
            decider.decide(approval, True)
        assert await asyncio.wait_for(following, 60) == [*range(1, len(ASKING) + 1)]
    lines = [json.loads(line)["request"] for line in access.read_text().splitlines()]
    over = {each["proto"] for each in lines if each["uri"].endswith("/events?dialect=canonical")}
    assert over == {"HTTP/2.0"}
