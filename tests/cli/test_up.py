"""`penstock up` runs everything in one process, which the tests start as a process."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import uuid
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import jwt
import orjson
import pytest
from typer.testing import CliRunner

from penstock.settings import AuthSettings, Settings
from penstock.sse import Parser
from penstock.web.auth import AuthConfig
from penstock_cli.demo import RECIPES
from penstock_cli.local import up as up_module
from penstock_cli.main import app
from support.drive.document_examples import missing
from support.drive.waiting import wait_for
from support.real.forked import finished
from support.real.servers import SharedRun
from support.real.up import AS_A_COMMAND, FORKED, Up

AGNO_DEMO, _ = RECIPES
CONFIG = """
agents:
  - {id: nobody, protocol: agno, url: "http://127.0.0.1:1"}
"""
# These requests are those of the contracts' documents, wherever the documents give one.
DIAGNOSIS = {"topologyId": 123, "userMessage": "Analyze system state and health status."}
RESEARCH = {
    "appName": "vana",
    "userId": "test_user",
    "sessionId": "test_session",
    "newMessage": {"parts": [{"text": "Research quantum computing"}], "role": "user"},
    "streaming": True,
}
AGNO_RUN = {
    "message": "hello",
    "stream": "true",
    "session_id": "session_9o3-3shY0Iw",
    "user_id": "anybody",
    "dependencies": '{"document_id": null}',
}


@pytest.fixture
def config(tmp_path: Path) -> str:
    """Write a configuration with an agent that does not answer."""
    path = tmp_path / "penstock.yaml"
    path.write_text(CONFIG)
    return str(path)


def frames_of(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    return [orjson.loads(frame.data) for frame in Parser().feed(answer.content)]


def check_the_diagnosis(client: httpx.Client) -> None:
    """Send the request of executions-sse.md; the run has the document's own events."""
    answer = client.post("/api/service/v1/executions/trigger", json=DIAGNOSIS)
    frames = frames_of(answer)
    names = ("lifecycle.started", "llm.reasoning", "dispatch.team", "llm.tool_call")
    assert missing("executions", (*names, "llm.tool_result", "lifecycle.completed"), frames) == []
    # The document's team has a supervisor with a name of its own.
    named = {"agent_name": "Team Supervisor"}
    assert missing("executions", ["dispatch.worker"], frames, source=named) == []
    assert "event: llm.stream\n" in answer.text


def check_the_code_review(up: Up, client: httpx.Client) -> None:
    """Run the workflow of unified-events.md; the run has the document's own events."""
    change = ("+password = 1", "--agent", "code_review")
    code, events = up.penstock("run", *change, "--yes")
    assert code == 0
    names = types(events)
    assert names.count("approval.decided") == 1
    assert names.index("lifecycle.paused") < names.index("approval.decided")
    query = {"dialect": "unified"}
    frames = frames_of(client.get(f"/v1/runs/{events[0]['run_id']}/events", params=query))
    name = {"workflow": "code_review"}
    assert missing("unified", ["workflow_started"], frames, payload=name) == []
    steps = ("workflow_step_started", "workflow_step_completed", "workflow_completed")
    assert missing("unified", steps, frames) == []
    # In the document, the scan follows the analysis; here a person and the report do.
    place = {"from_step": "sign_off", "to_step": "report", "reason": "sign_off_complete"}
    assert missing("unified", ["workflow_transition"], frames, payload=place) == []


# The messages of runs that wait: of the demo's first runs, and of the test's last run.
FIRST_AND_LAST = ["+password = 1", "Please delete report.txt", "delete b.txt"]


def check_that_every_agno_agent_asks(up: Up) -> None:
    for agent in AGNO_DEMO.agents:
        code, events = up.penstock("run", "delete a.txt", "--agent", agent["id"], "--no")
        assert code == 0
        assert "approval.decided" in types(events), agent


def types(events: list[dict[str, Any]]) -> list[str]:
    return [f"{each['event']['category']}.{each['event']['action']}" for each in events]


def check_the_answers(up: Up) -> None:
    for agent in ("assistant", "mindrian-agent", "vana"):
        code, events = up.penstock("run", "What is the weather in Rome?", "--agent", agent)
        assert code == 0
        assert [each["sequence"] for each in events] == list(range(1, len(events) + 1))
        names = types(events)
        assert names[0] == "lifecycle.started"
        assert names[-1] == "lifecycle.completed"
        assert names.count("llm.tool_call") == names.count("llm.tool_result") == 1
        assert events[-1]["data"]["summary"].endswith("It is 21 degrees and clear in Rome.")

    for agent, flag, outcome in (("assistant", "--no", "rejected"), ("vana", "--yes", "ok")):
        code, events = up.penstock("run", "delete a.txt", "--agent", agent, flag)
        assert code == 0
        [result] = [each for each in events if each["event"]["action"] == "tool_result"]
        assert result["data"]["outcome"] == outcome

    assert up.penstock("run", "fail on purpose", "--agent", "assistant")[0] == 1

    code, agents = up.penstock("agents")
    assert code == 0
    # The tests' demo has further agents.
    assert {(each["id"], each["protocol"], each["answers"]) for each in agents} >= {
        *((id, "agno", True) for id in ("assistant", "mindrian-agent", "linter", "writer")),
        *((id, "agno", True) for id in ("global_supervisor", "database_monitor")),
        *((id, "adk", True) for id in ("vana", "scanner", "team_supervisor")),
        *((id, "workflow", True) for id in ("code_review", "diagnosis")),
    }

    with httpx.Client(base_url=up.url, trust_env=False, timeout=30) as client:
        check_the_diagnosis(client)
        check_the_code_review(up, client)
        hello = client.post("/agents/mindrian-agent/runs", data=AGNO_RUN).text
        for name in ("RunStarted", "RunContent", "RunContentCompleted", "RunCompleted"):
            assert f"event: {name}\n" in hello
        thread = f"/api/v1/agent/runs/{AGNO_RUN['session_id']}/events?until=idle&user_id=anybody"
        assert "event: RUN_FINISHED\n" in client.get(thread).text


@pytest.mark.real
@pytest.mark.timeout(240)
def test_the_demo_answers_in_every_contract(demo: str, test_run: SharedRun) -> None:
    up = Up.of_run(test_run, "demo", demo)
    check_the_answers(up)
    check_the_hook_of_the_demo(up)


@pytest.mark.chaos
@pytest.mark.real
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("real_environments")
def test_the_demo_answers_stops_and_continues(make_up: Callable[..., Up], config: str) -> None:
    up = make_up("--demo")
    up.start()
    check_the_answers(up)
    # In the tests' demo, another agent has the name of this app, too.
    research = httpx.post(f"{up.url}/run_sse", json=RESEARCH, trust_env=False, timeout=30).text
    assert "I found two sources on quantum computing." in research
    check_that_every_agno_agent_asks(up)
    check_the_hook_of_the_demo(up)
    check_that_each_run_is_told_once(up)

    code, events = up.penstock("run", "delete b.txt", "--agent", "assistant", "--no-wait")
    assert code == 4
    waiting = events[0]["run_id"]

    assert up.signal(signal.SIGTERM) == 0
    up.start()
    _, listed = up.penstock("runs", "--status", "paused")
    # The first runs of the demo are started once, and not again by the second start.
    assert sorted(run["message"] for run in listed) == FIRST_AND_LAST
    _, [approval] = up.penstock("approvals", "list", "--run", waiting)
    assert up.penstock("approvals", "approve", approval["approval_id"])[0] == 0
    code, events = up.penstock("events", waiting)
    assert code == 0
    assert "approval.decided" in types(events)

    # Each service is a NATS user of its own; the log must show no missing permission.
    log = (up.data / "logs" / "nats.log").read_text()
    assert "Violation" not in log, log
    assert "Permissions" not in log, log

    up.signal(signal.SIGKILL)
    for name in ("agno", "adk"):
        wait_for(partial(finished_twice, up.data / "logs" / f"{name}.log"), 30, f"{name}'s end")

    # The receiver of the demo's rule has ended, so without the demo the rules are deleted.
    plain = make_up("--config", config)
    plain.start()
    rules = httpx.get(f"{plain.url}/v1/automations", trust_env=False).json()["automations"]
    assert rules == []


def check_the_hook_of_the_demo(up: Up) -> None:
    """Send the request to the hook that the greeting shows; a run starts, and ends in a webhook."""
    [command] = [line.strip() for line in up.log().splitlines() if "/v1/hooks/" in line]
    # The place is a word that no other run of the demo has.
    place = f"Rome{uuid.uuid4().hex[:8]}"
    assert "Oslo" in command
    command = command.replace("Oslo", place)
    sent = subprocess.run(["bash", "-c", command], capture_output=True, timeout=30, check=True)
    assert json.loads(sent.stdout)["result"] == "accepted"

    def started() -> str | None:
        _, runs = up.penstock("runs")
        return next((run["run_id"] for run in runs if place in run["message"]), None)

    run_id = wait_for(started, 30, "the run that the hook starts")
    line = f"webhook of rule demo-completed: lifecycle.completed, run {run_id}, signature valid"
    wait_for(lambda: up.log().splitlines().count(line) == 1, 30, "the webhook's line")
    assert "NOT valid" not in up.log()
    token = (up.data / "demo" / "rules" / "hook-token").read_text().strip()
    assert token not in up.log()


def check_that_each_run_is_told_once(up: Up) -> None:
    runs = [
        each["run_id"] for each in up.penstock("runs", "--status", "completed", "--limit", "100")[1]
    ]
    for each in runs:
        wait_for(partial(_is_shown, up, each), 30, f"the webhook of run {each}")
    assert up.log().count("signature valid") == len(runs), "one line for each webhook"


def _is_shown(up: Up, run_id: str) -> bool:
    return f"run {run_id}, signature valid" in up.log()


def finished_twice(log: Path) -> bool:
    """Return whether both servers that the two starts of the demo began have ended."""
    return log.read_text().count("Finished server process") == 2


@pytest.mark.chaos
def test_sigint_drains_as_sigterm_does_and_leaves_the_data_free(
    make_up: Callable[..., Up], config: str
) -> None:
    up = make_up("--config", config, program=AS_A_COMMAND)
    up.start()
    password = up.data / "credentials" / "subscriber"
    assert f"user subscriber (it may only read), password in {password}" in up.log()
    assert up.penstock("run", "hello", "--agent", "nobody")[0] == 1
    assert up.signal(signal.SIGINT) == 0
    up.start()
    _, [run] = up.penstock("runs")
    assert run["status"] == "failed"
    assert up.signal(signal.SIGTERM) == 0


@pytest.mark.chaos
def test_it_outlives_its_nats_server(make_up: Callable[..., Up], config: str) -> None:
    up = make_up("--config", config)
    up.start()
    [ports] = (up.data / "nats").glob("*.ports")
    os.kill(int(ports.stem.rsplit("_", 1)[1]), signal.SIGKILL)
    wait_for(partial(_reconnected, up), 30, "the reconnection of every service")
    wait_for(partial(_lists_runs, up), 30, "a list of runs, which the edge reads from NATS")
    assert up.penstock("run", "hello", "--agent", "nobody")[0] == 1
    assert up.signal(signal.SIGTERM) == 0


def _reconnected(up: Up) -> bool:
    return up.log().count("reconnected to NATS") >= len(up_module.SERVICES)


def _lists_runs(up: Up) -> bool:
    return httpx.get(f"{up.url}/v1/runs", trust_env=False, timeout=30).is_success


def refused(*options: str, **environment: str) -> str:
    """Return the stderr of a start that is refused with exit code 2 and an empty stdout."""
    done = finished([*FORKED, "up", "--probe-port", "0", *options], environment)
    assert done.returncode == 2
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("box.local", "http://box.local:8000"),
    ],
)
def test_one_time_links_begin_with_an_address_that_a_browser_finds(host: str, url: str) -> None:
    assert up_module.url_of(Settings(host=host, port=8000)) == url


def test_without_a_configuration_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused() == (
        "penstock: there is no penstock.yaml here: name your agents' file with --config, "
        "or try it with --demo\n"
    )


def test_a_wrong_configuration_names_the_field(tmp_path: Path) -> None:
    path = tmp_path / "agents.yaml"
    path.write_text("agents: [{id: a, protocol: smoke-signals, url: 'http://a'}]")
    assert "agents.0.protocol" in refused("--config", str(path))


def test_a_wrong_setting_names_the_variable(config: str) -> None:
    told = refused("--config", config, PENSTOCK_LOG_LEVEL="loud")
    assert told.startswith("penstock: PENSTOCK_LOG_LEVEL: ")


def test_a_port_that_is_taken_is_reported(tmp_path: Path, config: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = str(listener.getsockname()[1])
        told = refused(
            *("--config", config, "--data", str(tmp_path / "d"), "--port", port),
            PENSTOCK_LOG_LEVEL="error",
        )
    assert told.startswith(f"penstock: cannot listen on 127.0.0.1:{port}")
    assert len(told.splitlines()) == 1


def test_an_address_beyond_loopback_is_refused(tmp_path: Path, config: str) -> None:
    told = refused("--config", config, "--data", str(tmp_path / "d"), "--host", "0.0.0.0")
    assert "PENSTOCK_INSECURE_BIND=yes" in told


def test_a_missing_demo_environment_is_reported(tmp_path: Path) -> None:
    told = refused(
        *("--demo", "--data", str(tmp_path / "d")),
        PENSTOCK_DEMO_AGNO_PYTHON=str(tmp_path / "none"),
    )
    assert "after `make upstreams` there; or set PENSTOCK_DEMO_AGNO_PYTHON" in told
    assert len(told.splitlines()) == 1


def test_a_nats_server_that_does_not_answer_is_reported(tmp_path: Path, config: str) -> None:
    told = refused("--config", config, "--nats", "nats://127.0.0.1:1")
    assert told.splitlines()[-1].startswith(
        "penstock: cannot connect to NATS at nats://127.0.0.1:1"
    )


def test_a_taken_probe_port_is_told_with_its_own_option(tmp_path: Path, config: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = str(listener.getsockname()[1])
        told = refused(
            *("--config", config, "--data", str(tmp_path / "d"), "--probe-port", port),
            PENSTOCK_LOG_LEVEL="error",
        )
    assert told.startswith(f"penstock: cannot listen on 127.0.0.1:{port}")
    assert "--probe-port (PENSTOCK_PROBE_PORT" in told


def test_a_demo_with_a_key_wants_tokens_and_says_how_to_make_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (up_module.OPEN_TO_ALL, *up_module.KEYS):
        monkeypatch.setenv(name, "")  # monkeypatch restores the variable after the test
        monkeypatch.delenv(name)
    # A value that is already set must stay.
    monkeypatch.setenv("ENABLE_ADK_CANONICAL_STREAM", "false")
    up_module._switch_on_the_demo()
    assert not AuthConfig(**AuthSettings().model_dump()).requires_credentials
    monkeypatch.delenv(up_module.OPEN_TO_ALL)
    monkeypatch.setenv("PENSTOCK_AUTH_JWT_SECRET", "0123456789abcdef0123456789abcdef")
    up_module._switch_on_the_demo()
    assert AuthConfig(**AuthSettings().model_dump()).requires_credentials
    assert os.environ["ENABLE_ADK_CANONICAL_STREAM"] == "false"
    command = up_module._how_to_get_a_token(Settings()).rsplit("$(", 1)[1].removesuffix(")")
    [_, *words] = shlex.split(command)  # the first word is the program's name, here pytest's
    made = CliRunner().invoke(app, words)
    claims = jwt.decode(made.stdout.strip(), os.environ["PENSTOCK_AUTH_JWT_SECRET"], ["HS256"])
    assert claims["sub"] == "me"
