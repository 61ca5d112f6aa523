"""@penstock/client in Node over a server of recorded runs that cuts connections."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from penstock_client.testing import ReplayServer
from support.drive.repository import ROOT
from support.fakes.penstock_api import RUN_ID
from support.real import node
from support.recorded.asking import ASKING

HERE = Path(__file__).parent
PACKAGE = ROOT / "clients" / "javascript"
MAX_BYTES = 20_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return node.project(tmp_path_factory.mktemp("javascript"), HERE / "client.mjs")


@pytest.fixture
def server(penstock_replay: ReplayServer) -> ReplayServer:
    penstock_replay.add(ASKING)
    return penstock_replay


def run(folder: Path, *arguments: str) -> Any:
    done = node.run("tests/client.mjs", *arguments, cwd=folder)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("cuts", [[], [0, 3, 0, 1], [5], [6]], ids=str)
def test_a_run_is_whole_wherever_the_connection_is_cut(
    server: ReplayServer, folder: Path, cuts: list[int]
) -> None:
    server.cut_after = cuts
    count = len(ASKING)
    wanted = {"seen": [*range(1, count + 1)], "status": "completed", "cursor": f"{count}-0"}
    assert run(folder, server.url, "whole") == wanted


@pytest.mark.parametrize(
    ("case", "name", "text"),
    [
        ("deadline", "DeadlineReached", "has not ended within 300 ms"),
        ("changed", "ApiError", "has changed"),
        ("gone", "CursorGone", "begin again"),
        ("pages", "Unreachable", "no Penstock"),
        ("nowhere", "Unreachable", "nothing answers at http://127.0.0.1:1"),
    ],
)
def test_each_error_has_a_class_and_says_what_is_wrong(
    server: ReplayServer, folder: Path, case: str, name: str, text: str
) -> None:
    status = 200 if case == "pages" else 410
    server.refuse[f"/v1/runs/{RUN_ID}/events"] = status, "begin again without a cursor"
    if case == "deadline":
        server.refuse.clear()
    error = run(folder, server.url, case, RUN_ID)
    assert error["name"] == name
    assert text in error["text"]


def test_an_abort_ends_the_loop_with_its_reason(server: ReplayServer, folder: Path) -> None:
    assert run(folder, server.url, "stopped") == {
        **{"seen": [1, 2, 3, 4, 5], "name": "Error", "text": "enough"},
    }


def test_a_caller_that_has_gone_before_starts_no_run(server: ReplayServer, folder: Path) -> None:
    assert run(folder, server.url, "gone_before") == {"sent": 0, "name": "Error", "text": "gone"}


def test_an_hour_of_sleep_is_no_hour_of_tries(server: ReplayServer, folder: Path) -> None:
    assert run(folder, server.url, "slept")["status"] == "completed"


def test_a_page_that_came_over_http_starts_runs(server: ReplayServer, folder: Path) -> None:
    assert run(folder, server.url, "intranet")["answer"]["run_id"] == RUN_ID
    assert len(server.requests[0][1]["idempotency_key"]) == 32


def test_a_proxy_that_compresses_holds_no_events(server: ReplayServer, folder: Path) -> None:
    assert run(folder, server.url, "encodings") == [None, "identity"]


def test_a_long_event_is_read_in_one_pass(folder: Path) -> None:
    """To search the whole line again with each piece would take half a minute."""
    found = run(folder, "", "long")
    assert found["lengths"] == [2**23]
    assert found["ms"] < 5000


def test_a_server_that_is_full_at_times_is_waited_for(server: ReplayServer, folder: Path) -> None:
    server.cut_after = [2]
    server.turn_away = [200, 429, 503]
    found = run(folder, server.url, "full")
    assert found["seen"] == [*range(1, len(ASKING) + 1)]
    waits = [text for text in found["notices"] if "answered" in text]
    assert [("429" in text, "503" in text, "in 1 s" in text) for text in waits] == [
        (True, False, True),
        (False, True, True),
    ]


def test_a_second_loop_over_a_run_takes_over_and_the_first_one_says_so(
    server: ReplayServer, folder: Path
) -> None:
    found = run(folder, server.url, "twice")
    assert found["seen"] == [1, 2, 3]
    assert found["name"] == "PenstockError"
    assert "follow(runId)" in found["text"]


def test_a_token_that_has_expired_is_asked_for_again(server: ReplayServer, folder: Path) -> None:
    assert run(folder, server.url, "tokens") == ["Bearer old", "Bearer new"]


def test_a_list_is_read_with_its_filters(server: ReplayServer, folder: Path) -> None:
    assert run(folder, server.url, "listed") == [RUN_ID]


def test_the_frames_are_the_same_however_the_text_is_divided(folder: Path) -> None:
    [first, second, empty] = run(folder, "", "parsed")
    assert first == {"data": "x\ny\u2028z", "event": "a", "id": "1"}
    assert second == {"data": "q", "event": None, "id": "2"}
    assert empty == {"data": "", "event": None, "id": None}


def test_its_types_fit_what_it_does_and_a_reader_narrows_events(folder: Path) -> None:
    """A wrong program shows that the compiler reads the declarations."""
    right = re.findall(r"```js\n(.*?)```", (PACKAGE / "README.md").read_text(), re.S)
    declared = "declare const ask: (items: unknown) => Promise<boolean>;\n"
    (folder / "right.ts").write_text(declared + "\n".join(right))
    (folder / "wrong.ts").write_text(
        'import { Client, isType } from "@penstock/client";\n'
        'for await (const event of new Client().run("a", "b")) {\n'
        '  if (isType(event, "llm.tool_call")) Math.abs(event.data.tool);\n'
        "}\n"
        'await new Client().decide(await new Client().approval("a"), "yes");\n'
    )
    options = {
        **{"strict": True, "target": "es2022", "module": "nodenext", "noEmit": True},
        **{"lib": ["es2024", "dom", "dom.asynciterable"], "types": []},
        **{"skipLibCheck": False, "skipDefaultLibCheck": True},
    }
    config = {"compilerOptions": options, "files": ["right.ts", "wrong.ts"]}
    (folder / "tsconfig.json").write_text(json.dumps(config))
    found = node.run("node_modules/typescript/bin/tsc", cwd=folder).stdout.splitlines()
    assert [line.partition("(")[0] for line in found] == ["wrong.ts", "wrong.ts"], found


def test_it_is_small_and_needs_no_other_package() -> None:
    described = json.loads((PACKAGE / "package.json").read_text())
    assert not described.keys() & {"dependencies", "peerDependencies"}
    files = [PACKAGE / name for name in described["files"]]
    assert all(file.is_file() for file in files)
    assert sum(file.stat().st_size for file in files if file.suffix == ".js") <= MAX_BYTES
    imports = re.findall(r' from "([^"]+)"', (PACKAGE / "index.js").read_text())
    assert all(each.startswith("./") for each in imports if not each.startswith("@penstock"))
