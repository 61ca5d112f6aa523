"""`penstock up` with a file of rules sends a signed webhook for a run that fails."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from penstock.bus import messages
from support.fakes.receiver import SECRET, answers, receiver
from support.real.up import Up

CONFIG = """
agents:
  - {{id: assistant, protocol: agno, url: "{url}", agent: demo-agent}}
"""
RULES = """
rules:
  - id: failures
    subjects: [lifecycle.*]
    where: 'event.type == "lifecycle.failed" && event.data.code != "timeout"'
    action: {{webhook: {{url: "{url}", secrets: ["${{HOOK_SECRET}}"]}}}}
  - id: unwanted
    subjects: [lifecycle.failed]
    action: {{webhook: {{url: "{gone}", secrets: ["${{HOOK_SECRET}}"]}}}}
"""


async def test_a_rule_of_a_file_sends_a_webhook_and_its_outcome_is_in_the_events_and_at_the_run(
    tmp_path: Path,
) -> None:
    """A second rule sends the same run to a receiver that wants no more."""
    config, rules = tmp_path / "penstock.yaml", tmp_path / "rules.yaml"
    config.write_text(CONFIG.format(url="http://127.0.0.1:9"))  # nothing listens at this address
    up = Up(tmp_path, "--config", str(config))
    async with receiver() as made:
        made.usual["/gone"] = answers(410)
        rules.write_text(RULES.format(url=made.url(), gone=made.url("/gone")))
        environment = {
            "PENSTOCK_RULES": str(rules),
            "PENSTOCK_WEBHOOK_ALLOW_HOSTS": "127.0.0.1",
            "HOOK_SECRET": SECRET,
        }
        await asyncio.to_thread(lambda: up.start(**environment))
        try:
            async with httpx.AsyncClient(base_url=up.url, timeout=30) as http:
                since = messages.now()
                body = {"agent": "assistant", "message": "Hello"}
                run_id = (await http.post("/v1/runs", json=body)).json()["run_id"]
                [request] = await made.count(1)
                assert request.json["type"] == "lifecycle.failed"
                assert request.json["data"]["run_id"] == run_id
                # A run's own stream ends at its terminal event; a stream of many runs continues.
                query = {"subjects": "automation.*", "since": since, "dialect": "canonical"}
                said: list[dict[str, Any]] = []
                async with (
                    asyncio.timeout(20),
                    http.stream("GET", "/v1/events", params=query) as stream,
                ):
                    async for line in stream.aiter_lines():
                        if line.startswith("data: "):
                            said.append(orjson.loads(line.removeprefix("data: ")))
                        if len(said) == 4:
                            break
                assert {each["run_id"] for each in said} == {run_id}
                outcomes = {each["data"]["automation"]: each for each in said}
                assert outcomes["failures"]["event"]["action"] == "completed"
                assert outcomes["failures"]["data"]["status_code"] == 200
                assert outcomes["unwanted"]["event"]["action"] == "failed"
                shown = (await http.get(f"/v1/runs/{run_id}")).json()["deliveries"]
                deliveries = {each["automation"]: each for each in shown}
                facts = ("id", "status", "status_code", "attempts", "trigger")
                assert {
                    rule: tuple(each[fact] for fact in facts) for rule, each in deliveries.items()
                } == {
                    "failures": (request.id, "delivered", 200, 1, "lifecycle.failed"),
                    "unwanted": (made.got("/gone")[0].id, "failed", 410, 1, "lifecycle.failed"),
                }
                assert deliveries["unwanted"]["error"]["code"] == "http_410"
            assert made.bad_signatures == []
        finally:
            code = await asyncio.to_thread(up.signal, signal.SIGTERM)
        assert code == 0, up.log()


@pytest.mark.parametrize("text", ["rules: [", "rules: [{id: x}]"])
def test_a_wrong_file_of_rules_is_told_and_nothing_starts(tmp_path: Path, text: str) -> None:
    config, rules = tmp_path / "penstock.yaml", tmp_path / "rules.yaml"
    config.write_text(CONFIG.format(url="http://127.0.0.1:9"))
    rules.write_text(text)
    up = Up(tmp_path, "--config", str(config))
    up.begin(PENSTOCK_RULES=str(rules))
    assert up.process is not None
    assert up.process.wait(60) == 2
    assert "penstock: the rules in" in up.log() or "rule 1 is wrong" in up.log()
    assert "Traceback" not in up.log()
