"""`penstock up` is stopped and restarted while clients follow its streams."""

from __future__ import annotations

import json
import os
import shutil
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from support.drive.repository import ROOT
from support.drive.waiting import wait_for
from support.real import browser, servers
from support.real.up import Up
from support.real.upstreams import Upstream

PAGE = Path(__file__).parent.parent / "e2e" / "follow.html"
NODE_CLIENT = Path(__file__).with_name("follow.mjs")
PACKAGE = ROOT / ".penstock" / "node" / "restart" / "node_modules" / "eventsource"
GRACE_S = 3
TYPES = ["lifecycle.started", "lifecycle.completed"]

Look = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def config(tmp_path: Path, agno_server: Upstream) -> str:
    """Write a configuration with one agent."""
    path = tmp_path / "penstock.yaml"
    agent = {"id": "assistant", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"}
    path.write_text(json.dumps({"agents": [agent]}))
    return str(path)


def start_run(up: Up, session_id: str, message: str) -> str:
    body = {"agent": "assistant", "message": message, "session_id": session_id}
    answer = httpx.post(f"{up.url}/v1/runs", json=body, trust_env=False)
    run_id: str = answer.raise_for_status().json()["run_id"]
    return run_id


@contextmanager
def in_chromium(url: str, folder: Path, begin: Callable[[str], None]) -> Iterator[Look]:
    with browser.site(PAGE.read_bytes()) as site:
        begin(site.url)
        query = urlencode({"url": url, "types": ",".join(TYPES)})

        def look() -> list[dict[str, Any]]:
            reports = site.reports[:]
            assert not any(report["closed"] for report in reports), "the EventSource has given up"
            opened = max((report["opened"] for report in reports), default=0)
            seen: list[dict[str, Any]] = max(
                (report["seen"] for report in reports), key=len, default=[]
            )
            return [{"type": "open"}] * opened + seen

        with browser.opened(f"{site.url}/?{query}", folder):
            yield look


@contextmanager
def in_node(url: str, folder: Path, begin: Callable[[str], None]) -> Iterator[Look]:
    node = shutil.which("node")
    if node is None or not PACKAGE.exists():
        reason = "no Node on the PATH, or not the package eventsource: run `make node`"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    begin("")
    log = folder / "node.log"
    assert node is not None
    command: list[str | Path] = [node, NODE_CLIENT, PACKAGE, url, ",".join(TYPES)]
    process = servers.start("node", command, log=log, owner_pid=os.getpid())

    def look() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert {"type": "closed"} not in lines, "the EventSource has given up"
        return [line for line in lines if line["type"] != "error"]

    try:
        yield look
    finally:
        process.stop()


@pytest.mark.chaos
@pytest.mark.real
@pytest.mark.timeout(180)
@pytest.mark.parametrize("client", [in_chromium, in_node])
def test_an_eventsource_outlives_a_restart_and_misses_nothing(
    make_up: Callable[..., Up], config: str, tmp_path: Path, client: Any
) -> None:
    session = str(uuid.uuid4())
    up = make_up("--config", config)
    environment = {"PENSTOCK_DRAIN_S": str(GRACE_S)}

    def begin(origin: str) -> None:
        if origin:
            environment["PENSTOCK_AUTH_CORS_ORIGINS"] = origin
        up.start(**environment)

    with client(f"{up.url}/v1/sessions/{session}/events", tmp_path, begin) as look:
        runs = [start_run(up, session, "text")]
        wait_for(lambda: len(look()) >= 3, 30, "the first run is seen")
        # The second run keeps the process draining, while the client already tries to reconnect.
        runs.append(start_run(up, session, "slow"))
        wait_for(lambda: len(look()) >= 4, 30, "the second run has begun")
        assert up.signal(signal.SIGTERM) == 0
        up.start(**environment)
        runs.append(start_run(up, session, "text"))

        def last_is_over() -> bool:
            completed = [each for each in look() if each["type"] == "lifecycle.completed"]
            return any(json.loads(each["data"])["run_id"] == runs[-1] for each in completed)

        wait_for(last_is_over, 60, "the run after the restart is seen to its end")
        told = [each for each in look() if each["type"] != "open"]
    query = {"until": "idle"}
    whole = httpx.get(
        f"{up.url}/v1/sessions/{session}/events",
        params=query,
        headers={"accept": "application/json"},
        trust_env=False,
    ).json()["events"]
    expected = [
        (each["run_id"], f"{each['event']['category']}.{each['event']['action']}") for each in whole
    ]
    assert [(json.loads(each["data"])["run_id"], each["type"]) for each in told] == [
        each for each in expected if each[1] in TYPES
    ]
    up.signal(signal.SIGKILL)


@pytest.mark.real
def test_while_it_drains_connections_are_refused_and_kept_ones_are_closed(
    make_up: Callable[..., Up], config: str
) -> None:
    up = make_up("--config", config)
    up.start(PENSTOCK_DRAIN_S="60")
    assert up.process is not None
    body = {"agent": "assistant", "message": "slow"}
    with httpx.Client(base_url=up.url, trust_env=False) as kept:
        accept = {"accept": "text/event-stream"}
        with kept.stream("POST", "/v1/runs", json=body, headers=accept) as stream:
            pieces = stream.iter_raw()
            next(pieces)
            # The connection is idle after this request.
            assert kept.get("/v1/runs").status_code == 200
            up.process.send_signal(signal.SIGTERM)

            def refused() -> bool:
                try:
                    kept.get("/v1/runs")
                except httpx.TransportError:
                    return True
                return False

            wait_for(refused, 30, "connections are refused")
            for _ in range(3):
                next(pieces)  # while it drains, the open stream continues
                with pytest.raises(httpx.ConnectError):
                    kept.get("/v1/runs")
    up.process.send_signal(signal.SIGTERM)
    assert up.process.wait(30) == 0


@pytest.mark.real
def test_a_port_that_stays_open_answers_while_it_drains(
    make_up: Callable[..., Up], config: str
) -> None:
    up = make_up("--config", config)
    up.start(PENSTOCK_DRAIN_S=str(GRACE_S), PENSTOCK_DRAINING_PORT="open")
    assert up.process is not None
    start_run(up, str(uuid.uuid4()), "slow")
    up.process.send_signal(signal.SIGTERM)
    path = f"{up.url}/v1/events"

    def draining() -> bool:
        with httpx.stream("GET", path, trust_env=False) as answer:
            return answer.status_code == 503

    wait_for(draining, 30, "a new stream is refused")
    assert httpx.get(f"{up.url}/v1/runs", trust_env=False).status_code == 200
    assert up.process.wait(30) == 0
