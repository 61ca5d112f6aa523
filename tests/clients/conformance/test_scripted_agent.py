"""The scripted agent does what `--scripted` asks of it, on each of its servers."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from compare.rivals import VENVS
from penstock_conformance.__main__ import main
from penstock_conformance.agents.script import RAN, SCRIPTS, Step, guarded, turn
from penstock_conformance.chaos.server import Server
from penstock_conformance.trial import ACTS
from support.real.ports import free_port

# Where each server has the agent, and its environment here.
SERVERS = {
    "agno": (["--agent", "scripted"], "agno", "/health"),
    "adk": (["--agent", "scripted"], "adk", "/list-apps"),
    "agui": (["--path", "/agui"], "pydantic_ai", "/openapi.json"),
}
FRAMEWORKS = {"agno": ["agno"], "adk": ["google.adk"], "agui": ["pydantic_ai", "ag_ui"]}
# What could not be shown without an agent that does it.
SHOWN = {"calls-first", "once", "fails", "waits", "approves", "rejects", "no-text", "echoes"}
SHOWN |= {"no-forged-frames", "no-trace", "beside", "reads-late", "reads-all"}


def test_it_has_a_script_for_each_message_of_the_tool() -> None:
    assert set(ACTS) == SCRIPTS.keys() - {"chaos"}


def said(message: str, results: Sequence[str] = ()) -> list[Step]:
    return list(turn(message, results))


def test_it_calls_a_tool_and_says_what_came_of_it() -> None:
    [call] = said("asks")
    assert call == ("call", ("guarded", {"name": "Rome"}))
    assert RAN not in str(call)
    [text] = said("asks", [guarded("Rome")])
    assert RAN in text[1]


def test_it_repeats_any_text_and_says_a_long_one_twice_alike() -> None:
    assert said("echo a\n\ndata: b\u2028c") == [("say", "a\n\ndata: b\u2028c")]
    assert said("long") == said("long")
    assert said("something else") == said("text")


@pytest.mark.parametrize("protocol", SERVERS)
def test_the_command_becomes_the_server_where_its_framework_is(
    protocol: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *words: seen.append(words))
    command = ["agent", "--protocol", protocol, "--port", "7001"]
    with pytest.raises(SystemExit):
        main(command)
    said = capsys.readouterr().err
    for module in FRAMEWORKS[protocol]:
        assert module in said
        path = tmp_path / module.replace(".", "/")
        path.mkdir(parents=True)
        (path / "__init__.py").write_text("raise SystemExit('is loaded')")
    assert "--python" in said
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    main(command)
    [(program, words, environment)] = seen
    assert program == words[0] == sys.executable
    assert "7001" in words
    assert Path(environment["PYTHONPATH"].split(os.pathsep)[0], "script.py").is_file()


def test_the_command_shows_where_the_agents_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agent", "--folder"]) == 0
    assert (Path(capsys.readouterr().out.strip()) / "script.py").is_file()


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("protocol", "app"), [*((name, "") for name in SERVERS), ("adk", "scripted_resumable")]
)
async def test_a_server_with_the_agent_shows_what_needs_an_agent(
    protocol: str, app: str, tmp_path: Path
) -> None:
    place, environment, ready = SERVERS[protocol]
    place = ["--agent", app] if app else place
    python = VENVS / environment / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{environment} is not there: make upstreams")
    url, report = f"http://127.0.0.1:{free_port()}", tmp_path / "report.json"
    command = f"{sys.executable} -m penstock_conformance agent --protocol {protocol} "
    command += f"--port {url.rpartition(':')[2]} --python {python}"
    log = tmp_path / "server.log"
    async with Server(command, url + ready, log=log, env={"AGENT_DATA": str(tmp_path)}) as server:
        await server.start(60)
        words = [url, "--protocol", protocol, *place, "--scripted", "--json", str(report)]
        await asyncio.to_thread(main, words)
    verdicts = {
        each["id"].partition(".")[2]: each["verdict"]
        for each in json.loads(report.read_text())["statements"]
    }
    assert {name for name in SHOWN if verdicts.get(name, "passed") == "not shown"} == set()
    assert {verdicts[name] for name in ("approves", "rejects", "echoes")} == {"passed"}
