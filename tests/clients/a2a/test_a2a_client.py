"""The official clients, unchanged, with the programs of docs/clients/a2a.md as they are there."""

from __future__ import annotations

import asyncio
import re
import shutil
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from penstock.dialects.a2a import TaskFold
from penstock.settings import Config
from penstock_automations.service import AutomationsService
from penstock_edge.service import EdgeService
from support.drive.pipeline import PIPELINE, Pipeline, Services, pipeline
from support.drive.repository import ROOT
from support.fakes.receiver import receiver
from support.real import node
from support.real.a2a_client import (
    INTERFACES,
    Official,
    events_of,
    normal,
    official,
    text_of,
)
from support.real.nats import NatsServer
from support.real.upstreams import A2A_CLIENT, A2A_OLDER_CLIENT, Upstream

PAGE = (ROOT / "docs/clients/a2a.md").read_text()
WAIT_S = 60


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def penstock(nats_server: NatsServer, agno_server: Upstream) -> AsyncIterator[Pipeline]:
    agent = {"id": "assistant", "protocol": "agno", "url": agno_server.url, "agent": "demo-agent"}
    config = Config.model_validate({"agents": [agent]})
    services: Services = (*PIPELINE, AutomationsService, EdgeService)
    allowed = {"webhook_allow_hosts": ("127.0.0.1",)}
    async with pipeline(nats_server.url, config, services, **allowed) as running:
        yield running


def program(language: str) -> str:
    match = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert match is not None
    return match[1]


async def said(*command: str | Path, answer: str = "", cwd: Path | None = None) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    told, errors = await asyncio.wait_for(process.communicate(answer.encode()), WAIT_S)
    assert process.returncode == 0, errors.decode()
    return told.decode()


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ("y", "doc-py-y"),
        pytest.param("n", "not run", marks=pytest.mark.chaos),
    ],
)
async def test_the_python_program_asks_its_user_and_goes_on(
    penstock: Pipeline, agno_server: Upstream, tmp_path: Path, answer: str, outcome: str
) -> None:
    (tmp_path / "ask.py").write_text(program("python"))
    url, title = f"{penstock.http.base_url}/a2a/assistant", f"doc-py-{answer}"
    told = await said(
        A2A_CLIENT.python, tmp_path / "ask.py", url, f"confirm {title}", answer=f"{answer}\n"
    )
    assert told.endswith("TASK_STATE_COMPLETED\n"), told
    assert "→ create_document" in told
    assert "The task waits for a decision on create_document" in told
    ran = [run for run in agno_server.tool_runs() if run["args"].get("title") == title]
    assert len(ran) == (answer == "y")


@pytest.mark.chaos
async def test_the_javascript_program_decides_and_goes_on(
    penstock: Pipeline, agno_server: Upstream, tmp_path: Path
) -> None:
    (tmp_path / "ask.mjs").write_text(program("js"))
    (tmp_path / "node_modules").symlink_to(node.packages("a2a"))
    url, title = f"{penstock.http.base_url}/a2a/assistant", "doc-js"
    told = await said(
        shutil.which("node") or "node", "ask.mjs", url, f"confirm {title}", cwd=tmp_path
    )
    assert told.endswith("TASK_STATE_COMPLETED\n"), told
    ran = [run for run in agno_server.tool_runs() if run["args"].get("title") == title]
    assert len(ran) == 1


@pytest.mark.chaos
@pytest.mark.skipif(not A2A_OLDER_CLIENT.python.exists(), reason="run `make upstreams-older`")
async def test_the_client_of_0_3_reads_decides_subscribes_again_and_cancels(
    penstock: Pipeline, agno_server: Upstream
) -> None:
    url, title = f"{penstock.http.base_url}/a2a/assistant", "older"
    script = ROOT / "tests/clients/a2a/older.py"
    told = await said(A2A_OLDER_CLIENT.python, script, url, title)
    assert told.splitlines() == [
        *("completed True", "completed True", "input-required", "completed"),
        *("completed True", "canceled"),
    ]
    ran = [run for run in agno_server.tool_runs() if run["args"].get("title") == title]
    assert len(ran) == 1


def said_to(text: str, **fields: Any) -> dict[str, Any]:
    message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}]}
    return {"message": {**message, **fields}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(penstock: Pipeline) -> AsyncIterator[Official]:
    async with official(str(penstock.http.base_url)) as running:
        yield running


# `make test` tries the first, `make faults` and the matrix each.
@pytest.mark.parametrize(
    "interface",
    [INTERFACES[0], *(pytest.param(each, marks=pytest.mark.chaos) for each in INTERFACES[1:])],
    ids=" ".join,
)
async def test_each_interface_tells_the_same_task_with_its_tools(
    client: Official, interface: tuple[str, str]
) -> None:
    task = await client.call("send_message", said_to("tools"), interface=interface)
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task
    called = [each["data"]["tool"] for each in events_of(task) if each["type"] == "llm.tool_call"]
    assert len(called) == 3
    assert text_of(task)
    again = await client.call("get_task", {"id": task["id"]}, interface=interface)
    assert normal(again) == normal(task)


async def test_a_client_that_was_cut_off_subscribes_and_has_the_same_task(
    client: Official,
) -> None:
    task = await client.call("send_message", said_to("long"), cut=5, again=True)
    whole = await client.call("get_task", {"id": task["id"]})
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task
    assert normal(task) == normal(whole)


@pytest.mark.chaos
async def test_a_task_is_cancelled_and_an_error_has_its_text(client: Official) -> None:
    asked = await client.call("send_message", said_to("slow"), cut=3)
    cancelled = await client.call("cancel_task", {"id": asked["id"]})
    assert cancelled["status"]["state"] == "TASK_STATE_CANCELED", cancelled
    failed = await client.call("send_message", said_to("failmid"), stream=False)
    assert failed["status"]["state"] == "TASK_STATE_FAILED"
    assert failed["status"]["message"]["parts"][0]["text"]


# `make test` tries the first binding, `make faults` each.
@pytest.mark.parametrize(
    "interface", [INTERFACES[0], pytest.param(INTERFACES[1], marks=pytest.mark.chaos)], ids=" ".join
)
async def test_a_client_is_notified_of_its_task_until_it_ends(
    client: Official, interface: tuple[str, str]
) -> None:
    at: dict[str, Any] = {"interface": interface, "stream": False}
    async with receiver() as hooks:
        auth = {"scheme": "Bearer", "credentials": "c-1"}
        config = {"id": "first", "url": hooks.url("/first"), "authentication": auth}
        asked = said_to(f"confirm push-{uuid.uuid4().hex[:8]}")
        asked["configuration"] = {"taskPushNotificationConfig": config}
        task = await client.call("send_message", asked, **at)
        await hooks.until(lambda: any(b"INPUT_REQUIRED" in each.body for each in hooks.requests))
        fold = TaskFold()
        for each in hooks.got("/first"):
            assert each.headers["authorization"] == "Bearer c-1"
            fold.add(each.json)
        whole = await client.call("get_task", {"id": task["id"]}, extended=False, **at)
        assert fold.task() == normal(whole)

        of_task = {"taskId": task["id"]}
        second = {**of_task, "id": "second", "url": hooks.url("/second")}
        made = await client.call("create_task_push_notification_config", second, **at)
        assert made == second
        [first] = await hooks.count(1, "/second")
        assert first.json == hooks.got("/first")[-1].json
        listed = await client.call("list_task_push_notification_configs", of_task, **at)
        assert [each["id"] for each in listed["configs"]] == ["first", "second"]
        named = {**of_task, "id": "first"}
        for _ in range(2):
            told = await client.call("delete_task_push_notification_config", named, **at)
            assert told == {}
        gone = await client.call("get_task_push_notification_config", named, **at)
        assert gone["raised"] == "TaskNotFoundError", gone
        private = {**of_task, "url": "https://10.0.0.1/hook"}
        refused = await client.call("create_task_push_notification_config", private, **at)
        assert "not public" in refused["text"], refused

        [ask] = [each["data"] for each in events_of(whole) if each["type"] == "approval.requested"]
        keys = ("approval_id", "digest")
        answer = {"data": {**{key: ask[key] for key in keys}, "decision": "reject"}}
        message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [answer]}
        await client.call("send_message", {"message": {**message, **of_task}}, **at)
        await hooks.until(lambda: b"TASK_STATE_COMPLETED" in hooks.requests[-1].body)
        assert b"INPUT_REQUIRED" in hooks.got("/first")[-1].body
