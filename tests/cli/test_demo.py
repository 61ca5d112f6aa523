"""The demo agents: their scripts. `test_up.py` has the real agent servers play them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import yaml

from penstock_automations.actions.webhook.preparing import signed
from penstock_automations.rules.secrets import new_secret
from penstock_cli import demo
from penstock_cli.demo import RECIPES, DemoServer, script
from penstock_cli.demo.automations import Receiver, are_wanted
from penstock_cli.demo.script import Call, Fail, Say, Think
from penstock_cli.local.child import StartFailed
from penstock_workflows.definition import Definition, compile
from penstock_workflows.definition.compiled import Run, SubWorkflow
from support.real.up import AS_A_COMMAND, Up
from support.real.upstreams import AGNO

WORKFLOWS = Path(demo.__file__).parent / "workflows"
AGNO_DEMO, _ = RECIPES


def played(message: str, *results: str) -> tuple[str, list[script.Step]]:
    steps = list(script.steps(message, results))
    said = "".join(step.text for step in steps if isinstance(step, Say))
    return said, [step for step in steps if not isinstance(step, Say)]


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("What is the weather in New York?", Call("get_weather", {"city": "New York"})),
        ("weather", Call("get_weather", {"city": "Paris"})),
        ("Please delete report.txt.", Call("delete_file", {"path": "report.txt"})),
        ("Delete the file /tmp/a.b!", Call("delete_file", {"path": "/tmp/a.b"})),
        ("Research quantum computing", Call("search", {"topic": "quantum computing"})),
    ],
)
def test_a_keyword_calls_its_tool(message: str, call: Call) -> None:
    assert played(message)[1] == [call]


def test_the_example_of_the_executions_contract_reasons_calls_and_answers() -> None:
    said, steps = played("Analyze system state and health status.")
    assert said
    assert [type(step) for step in steps] == [Think, Think, Call]
    assert "one warning" in played("Analyze it", "{}")[0]


@pytest.mark.parametrize(
    ("result", "says"), [('{"deleted": "a"}', "Done"), ('{"error": "rejected"}', "stays")]
)
def test_a_deletion_ends_as_it_was_decided(result: str, says: str) -> None:
    assert says in played("delete a", result)[0]


def test_it_fails_on_purpose_in_the_middle_of_a_sentence() -> None:
    said, [failure] = played("fail please")
    assert said
    assert isinstance(failure, Fail)


def test_anything_else_is_told_what_there_is_to_try() -> None:
    assert "delete report.txt" in played("hi")[0]


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        ("Lint this change:\n+x = 1", {"score": 82}),
        ("Scan this change:\n+PASSWORD = 1", {"findings": ["line with a password"]}),
        ("Scan this change:\n+x = 1", {"findings": []}),
        ("Assign workers of T: look", {"workers": [{"name": "Database Monitor"}]}),
    ],
)
def test_the_agents_of_the_workflows_answer_with_json(message: str, answer: Any) -> None:
    said = orjson.loads(played(message)[0])
    for key, value in answer.items():
        assert said[key] == value or value[0].items() <= said[key][0].items()


def test_the_definitions_of_the_demo_use_its_agents_and_each_other() -> None:
    definitions = [
        Definition.model_validate(yaml.safe_load(file.read_text("utf-8")))
        for file in sorted(WORKFLOWS.glob("*.yaml"))
    ]
    agents = {agent["id"] for recipe in RECIPES for agent in recipe.agents}
    for definition in definitions:
        for step in compile(definition).steps.values():
            match step.action:
                case Run(agent):
                    assert agent in agents
                case SubWorkflow(workflow):
                    assert workflow in {each.name for each in definitions}


def test_the_demo_in_another_folder_says_where_it_can_start(
    make_up: Callable[..., Up], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AGNO", "ADK"):
        monkeypatch.delenv(f"PENSTOCK_DEMO_{name}_PYTHON", raising=False)
    monkeypatch.chdir(tmp_path)
    up = make_up("--demo", program=AS_A_COMMAND)
    up.begin()
    assert up.process is not None
    assert up.process.wait(60) != 0
    told = up.log()
    assert "start in the repository's folder, after `make upstreams` there" in told
    assert "or set PENSTOCK_DEMO_AGNO_PYTHON to a Python that has the server's packages" in told


@pytest.mark.real
@pytest.mark.timeout(180)
async def test_a_server_follows_as_soon_as_its_environment_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_DEMO_AGNO_PYTHON", raising=False)
    monkeypatch.chdir(tmp_path)
    venvs = tmp_path / ".penstock" / "venvs"
    venvs.mkdir(parents=True)
    being_made = venvs / "agno.pid"
    being_made.write_text(f"{os.getpid()}\n")
    server = DemoServer(AGNO_DEMO)
    await server.start(tmp_path)
    try:
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            answer = await client.post(f"{server.url}/agents/assistant/runs", data={"message": "x"})
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert "still being set up" in answer.text
            assert server.is_being_set_up
            (venvs / "agno").symlink_to(AGNO.python.parents[1])
            being_made.unlink()
            await server.healthy()
            assert (await client.get(f"{server.url}/health")).status_code == 200
    finally:
        await server.stop()


async def test_an_environment_that_could_not_be_made_names_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_DEMO_AGNO_PYTHON", raising=False)
    monkeypatch.chdir(tmp_path)
    being_made = tmp_path / ".penstock" / "venvs" / "agno.pid"
    being_made.parent.mkdir(parents=True)
    being_made.write_text(f"{os.getpid()}\n")
    server = DemoServer(AGNO_DEMO)
    await server.start(tmp_path)
    being_made.unlink()
    with pytest.raises(StartFailed, match=r"venvs/agno\.log says why"):
        await server.healthy()
    await server.stop()


async def test_a_server_that_ends_tells_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DEMO_AGNO_PYTHON", sys.executable)  # this interpreter has no Agno
    server = DemoServer(AGNO_DEMO)
    await server.start(tmp_path)
    with pytest.raises(
        StartFailed, match=r"(?s)the demo agno server did not start.*No module named 'agno'"
    ):
        await server.healthy()
    await server.stop()


async def test_the_receiver_shows_whether_a_webhook_is_signed_with_the_rules_secret() -> None:
    lines: list[str] = []
    secret, run_id = new_secret(), "01a1f8ce-fd21-7646-99ac-38e357e37ec6"
    receiver = Receiver(secret, lines.append)
    await receiver.start()
    body = orjson.dumps({"type": "lifecycle.completed", "data": {"run_id": run_id}})
    id = f"demo-completed.{run_id}.7"
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            for each, status in ((secret, 204), (new_secret(), 401)):
                headers = {**signed([each], "msg_1", time.time(), body), "penstock-delivery": id}
                answer = await client.post(receiver.url, content=body, headers=headers)
                assert answer.status_code == status
            assert (await client.post(receiver.url, content=body)).status_code == 401
    finally:
        await receiver.stop()
    assert lines == [
        f"webhook of rule demo-completed: lifecycle.completed, run {run_id}, signature valid",
        "webhook refused, signature NOT valid: No matching signature found",
        "webhook refused, signature NOT valid: Missing required headers",
    ]


def test_the_demo_has_no_rules_of_its_own_beside_the_operators_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PENSTOCK_RULES", raising=False)
    assert are_wanted()
    monkeypatch.setenv("PENSTOCK_RULES", "rules.yaml")
    assert not are_wanted()


def test_every_script_file_runs_without_our_packages() -> None:
    for name in ("script.py", "serve.py"):
        text = (Path(demo.__file__).parent / name).read_text()
        assert "penstock_cli" not in text
