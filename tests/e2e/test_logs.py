"""Every log line about a real run has its id and its trace, and nothing of its content."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import pytest

from support.drive.waiting import eventually
from support.real.deployment import Deployment

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-00"
# Each is content or a credential of the runs below.
PROMPT, NOTE, HEADER, TOKEN = "zebra-4711", "okapi-4712", "quagga-4713", "gnu-4714"
# What a client writes into ids and names to begin another line, or to hide one.
FORGED = (
    "\n2026-11-23T00:00:00Z [error] forged",
    "\r\x1b[2K\x1b[31mforged\x9b\u2028\x00",
    '","level":"error","event":"forged',
)
ANSWER = "Document created"  # of the tool, and of the agent that repeats it


def lines(penstock: Deployment) -> list[dict[str, Any]]:
    """Return all log lines of all processes. Each line must be a JSON object."""
    texts = [instance.process.log.read_text() for instance in penstock.instances]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def service(line: dict[str, Any]) -> str:
    return str(line["logger"]).partition(".")[0]


async def hang_up(port: int, path: str) -> None:
    """Begin a request with a body, and close the connection before the body is complete."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f'POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nlast-event-id: ","forged":"\\n\r\n'
    writer.write(f"{head}content-length: 100\r\n\r\n{{".encode())
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def start(penstock: Deployment, agent: str, message: str) -> str:
    answer = await penstock.http.post(
        f"{penstock.edge()}/v1/runs?token={TOKEN}-0123456789",
        json={"agent": agent, "message": message},
        headers={"traceparent": TRACEPARENT, "authorization": f"Bearer {HEADER}-0123456789"},
    )
    assert answer.status_code == 202, answer.text
    return str(answer.json()["run_id"])


async def test_no_line_has_content_or_credentials_and_each_names_its_run_and_trace(
    penstock: Deployment,
) -> None:
    approved = await start(penstock, "assistant", f"confirm {PROMPT}")
    *_, paused = await penstock.until(approved, "lifecycle.paused")
    answer = await penstock.decide(paused.data["approval_id"], "approve", note=NOTE)
    assert answer.is_success, answer.text
    said = json.dumps([event.body for event in await penstock.all(approved)])
    assert PROMPT in said  # so the assertions below are not vacuous
    erring = await start(penstock, "assistant", f"toolerr {PROMPT}")
    assert (await penstock.all(erring))[-1].type == "lifecycle.completed"
    failed = await start(penstock, "nobody", PROMPT)
    assert (await penstock.all(failed))[-1].type == "lifecycle.failed"

    # The last lines are written after a run's last event.
    async def has_all_lines() -> bool:
        found = {(service(line), line.get("run_id")) for line in lines(penstock)}
        legs = {("penstock_connector", run_id) for run_id in (approved, erring, failed)}
        return found >= legs | {
            ("penstock_approvals", approved),
            ("penstock_normalizer", failed),
        }

    await eventually(has_all_lines, 30, "each service has written about its runs")
    written = lines(penstock)
    for secret in (PROMPT, NOTE, HEADER, TOKEN, ANSWER):
        assert not [line for line in written if secret in json.dumps(line)], secret
    for run_id in (approved, erring, failed):
        about = [line for line in written if run_id in json.dumps(line)]
        for line in about:
            assert line.get("run_id") == run_id, line
            assert line.get("trace_id") == TRACE, line


async def test_what_a_client_writes_cannot_forge_a_line(penstock: Deployment) -> None:
    """The edge writes a line with the path of a client that leaves while it sends its body."""
    text = await penstock.start("edge", before=["env", "PENSTOCK_LOG_FORMAT=text"])
    penstock.instances.remove(text)  # the lines of this edge are no JSON

    def of_text() -> list[str]:
        return text.process.log.read_text().split("\n")[:-1]

    def about(written: Sequence[object]) -> list[str]:
        return [line for each in written if "forged" in (line := json.dumps(each))]

    try:
        for edge in (text, penstock.of("edge")[0]):
            for forged in FORGED:
                await hang_up(edge.port, f"/v1/runs/{quote(forged)}/cancel")
                run = {"agent": forged, "message": "hello", "session_id": forged}
                answer = await penstock.http.post(f"{edge.url}/v1/runs", json=run)
                assert answer.is_client_error, answer.text

        async def all_are_written() -> bool:
            return len(about(of_text())) == len(about(lines(penstock))) == len(FORGED)

        await eventually(all_are_written, 30, "the edges have written about the clients")
    finally:
        await asyncio.to_thread(text.process.stop)
    for line in of_text():
        assert re.match(r"\d{4}-\d\d-\d\dT\S+ \[(info|warning) +\] ", line), line
        assert line.isprintable(), line
    for entry in lines(penstock):
        assert entry["level"] != "error", entry
