"""Every log line about a real run has its id and its trace, and nothing of its content."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.drive.waiting import eventually
from support.real.deployment import Deployment

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="session")]

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-00"
# Each is content or a credential of the runs below.
PROMPT, NOTE, HEADER, TOKEN = "zebra-4711", "okapi-4712", "quagga-4713", "gnu-4714"
ANSWER = "Document created"  # of the tool, and of the agent that repeats it


def lines(penstock: Deployment) -> list[dict[str, Any]]:
    """Return all log lines of all processes. Each line must be a JSON object."""
    texts = [instance.process.log.read_text() for instance in penstock.instances]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def service(line: dict[str, Any]) -> str:
    return str(line["logger"]).partition(".")[0]


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
            # The instance of approvals that takes a decision may not have read the run's events.
            may_lack_it = service(line) == "penstock_approvals"
            assert line.get("trace_id", TRACE if may_lack_it else None) == TRACE, line
