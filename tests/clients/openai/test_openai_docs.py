"""The code of docs/clients/openai.md runs as it is, against the demo; further calls beside it."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.drive.repository import ROOT
from support.drive.short import in_short
from support.real.openai_client import LANGUAGES, NODE, PYTHON, OpenAIClient, installed, running

pytestmark = pytest.mark.real

PAGE = ROOT / "docs" / "clients" / "openai.md"
CODE = re.findall(r"^```(python|js)\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
SAYS = [
    ["I will delete report.txt", "May it run? delete_file", "report.txt is gone"],
    ["Once upon a time"],
    ["This waits for a decision", "sign_off("],
]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        pytest.param(code, says, id=id, marks=[] if id == "ask" else [pytest.mark.chaos])
        for code, says, id in zip(CODE, SAYS, ("ask", "cut", "chat"), strict=True)
    ],
)
async def test_the_code_of_the_page_runs(
    demo: str, tmp_path: Path, code: tuple[str, str], says: list[str]
) -> None:
    language, text = code
    script = tmp_path / ("page.py" if language == "python" else "page.mjs")
    script.write_text(text.replace("http://127.0.0.1:8000", demo))
    if language == "js":
        installed("javascript")
        (tmp_path / "node_modules").symlink_to(NODE / "node_modules")
        program = shutil.which("node") or "node"
    else:
        installed("python")
        program = str(PYTHON)
    process = await asyncio.create_subprocess_exec(
        program, str(script), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 100)
    assert process.returncode == 0, err.decode()
    for each in says:
        assert each in out.decode()


# `make test` asks in one language, `make faults` in each.
@pytest.fixture(scope="module", params=in_short(LANGUAGES, LANGUAGES[:1]))
def openai(request: pytest.FixtureRequest, demo: str) -> Iterator[OpenAIClient]:
    with running(request.param, demo) as client:
        yield client


async def test_an_agent_is_asked_rejected_and_answered_in_one_session(
    openai: OpenAIClient,
) -> None:
    body = {"model": "assistant", "input": "Please delete report.txt"}
    asked = await openai.call("create", body=body)
    [request] = [item for item in asked["output"] if item["type"] == "mcp_approval_request"]
    answer = {"type": "mcp_approval_response", "approval_request_id": request["id"]}
    given = [{**answer, "approve": False, "reason": "Keep it."}]
    answered = {"model": "assistant", "input": given, "previous_response_id": asked["id"]}
    told = await openai.call("stream", body=answered)
    [call] = [item for item in told[-1]["response"]["output"] if item["type"] == "mcp_call"]
    assert (call["status"], call["approval_request_id"]) == ("failed", request["id"])
    assert "Keep it." in call["error"]
    more = {
        "model": "assistant",
        "input": "Hello",
        "previous_response_id": told[0]["response"]["id"],
    }
    then = await openai.call("create", body=more)
    assert then["metadata"]["session_id"] == asked["metadata"]["session_id"]
    assert then["output_text"]


async def test_a_run_is_cancelled(openai: OpenAIClient) -> None:
    body = {"model": "assistant", "input": "Tell a slow story", "background": True}
    begun = await openai.call("create", body=body)
    assert begun["status"] in ("queued", "in_progress")
    cancelled = await openai.call("cancel", id=begun["id"])
    assert cancelled["status"] == "cancelled"
    rest = await openai.call("resume", id=begun["id"])
    assert rest[-1]["type"] == "response.incomplete"


@pytest.mark.chaos
async def test_a_workflows_chat_waits_for_its_decision_and_then_gets_the_rest(
    openai: OpenAIClient,
) -> None:
    messages = [{"role": "user", "content": "+password = 1"}]

    async def say() -> str:
        whole = await openai.call("chat", body={"model": "code_review", "messages": messages})
        text = str(whole["choices"][0]["message"]["content"])
        told = {"role": "assistant", "content": text}
        messages.extend([told, {"role": "user", "content": "And now?"}])
        return text

    asked = await say()
    assert "This waits for a decision" in asked

    def but_the_links(text: str) -> str:
        return re.sub(r"/d/pln_\S+", "", text)

    again = await say()
    assert but_the_links(again) == but_the_links(asked)
    [link] = re.findall(r"\S+/d/pln_\S+", again)
    async with httpx.AsyncClient() as http:
        page = await http.get(link)
        form = dict(re.findall(r'name="(csrf)" value="([^"]+)"', page.text))
        done = await http.post(link, data={**form, "decision": "approve"})
        assert done.status_code == 303, done.text
    rest = await say()
    assert "waits for a decision" not in rest
    assert "Code review finished successfully" in rest
