"""`penstock-conformance` finds no fault in the real services, and each fault that is planted."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest
import yaml

from penstock_conformance import rules, scenarios
from penstock_conformance.__main__ import main
from penstock_conformance.chaos.command import STOPPED
from penstock_conformance.dialect import Dialect, NotShown, Options
from penstock_conformance.exchange import End, Exchange, Frame, Frames, Request, User
from penstock_conformance.protocols import PROTOCOLS
from penstock_conformance.protocols.agui import Agui
from penstock_conformance.scenarios import STREAMS, Answered, Cancelled, Stalled
from penstock_conformance.statements import Group, Result, Statement, Verdict, judge
from penstock_conformance.trial import Trial
from penstock_conformance.wire import Wire
from support.drive.secured import bearer
from support.drive.short import in_short
from support.fakes.issuer import SECRET
from support.fakes.misrecorded import RAN, changes_of
from support.fakes.planted import FAULTS, MORE, Fault, Planted
from support.real.ports import free_port
from support.real.up import Up
from support.real.upstreams import Upstream

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

MESSAGES = {
    "text": "text",
    "calls": "tool",
    "asks": "confirm it",
    "fails": "failmid",
    "thinks": "reason",
    "slow": "slow",
    "long": "long",
    "echo": "say",
}
PATH = "/agui/assistant"
RESUME = "/agui/assistant/threads/{session}/events?until=idle&protocolVersion=1.0"
CANCEL = "/v1/runs/{penstock-run-id}/cancel"
# Where each protocol is, and what Penstock adds to it.
PLACES = {
    "agui": ["--path", PATH, "--resume", RESUME, "--cancel", CANCEL],
    "vercel": ["--path", "/vercel/assistant", "--cancel", "/vercel/assistant/{session}/stop"],
    "openai": ["--agent", "assistant", "--path", "/openai/v1"],
    "executions": ["--agent", "123", "--resume", "/v1/runs/{run}/events?dialect=executions"],
    "unified": ["--agent", "assistant"],
    "adk": ["--agent", "assistant", "--user", "alice", "--cancel", CANCEL],
    "agno": ["--agent", "assistant"],
    "a2a": ["--agent", "assistant"],
}
# What a protocol does not show: the streams of ADK have no cursors, and those of Agno have them in
# their events. A2A refuses to stream a task from its start when it has ended.
_CURSORS = {"resumes", "resumes-live", "goes-on", "ids-once", "gaps"}
NOT_SHOWN = {"adk": _CURSORS, "agno": {"ids-once"}, "a2a": {"resumes-live"}}
# Each of their rules finds a fault in what was recorded; each of AG-UI's finds one on the way.
RECORDED = [name for name in PROTOCOLS if name != "agui"]
SCOPE = "start read decide raw"
# What takes no second. The other scenarios read slowly, or send a request for each frame.
OF_STREAMS = {each.name for each in STREAMS}
QUICK = OF_STREAMS | {
    each.name
    for each in (
        *(scenarios.ECHO, scenarios.CANCELLED, scenarios.UNKNOWN, scenarios.INVALID),
        *(scenarios.APPROVED, scenarios.REJECTED, scenarios.TEXTS, scenarios.NOWHERE),
        *(scenarios.NOBODY, scenarios.ANSWERED_BY_OTHER),
    )
}
# One fault of each group that is about more than a stream; `make faults` plants all of them.
SHORT = ["resumes", "gaps", "cancels", "no-text", "invalid", "reads-all", "foreign"]


@dataclass(frozen=True)
class Site:
    """Penstock with authentication, whose agent is the real Agno server."""

    url: str

    def options(self, protocol: str) -> list[str]:
        return [
            *(self.url, "--protocol", protocol, *PLACES[protocol], "--ran", RAN),
            *(word for name, text in MESSAGES.items() for word in (f"--{name}", text)),
            *("--header", f"Authorization: {_token('alice')}"),
            *("--other-header", f"Authorization: {_token('bob')}"),
        ]

    async def result(self, rule: str, fault: Fault) -> Result:
        """Return the verdict on the statement of this rule, while there is a fault on the way."""
        statements = [each for each in PROTOCOLS["agui"].statements if each.rule.name == rule]
        async with self.trial("agui", Planted(fault)) as trial:
            [result] = await judge(trial, statements)
        return result

    @asynccontextmanager
    async def trial(
        self, name: str, way: httpx.AsyncBaseTransport | None = None
    ) -> AsyncIterator[Trial]:
        protocol = PROTOCOLS[name]
        users = {User.OWNER: "alice", User.OTHER: "bob"}
        credentials = {user: {"authorization": _token(who)} for user, who in users.items()}
        known = dict(zip(PLACES[name][::2], PLACES[name][1::2], strict=True))
        options = Options(**{option[2:]: value for option, value in known.items()})
        path = (options.path or protocol.path).replace("{agent}", options.agent)
        async with Wire(self.url, credentials, 40, way) as wire:
            yield Trial(wire, protocol.dialect(replace(options, path=path)), MESSAGES, RAN)


def _token(user: str) -> str:
    return bearer(user, scope=SCOPE)["authorization"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, agno_server: Upstream) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("conformance")
    agent: dict[str, Any] = {
        **{"id": "assistant", "protocol": "agno", "url": agno_server.url},
        **{"agent": "demo-agent", "topology_id": 123},
    }
    config = folder / "penstock.yaml"
    config.write_text(yaml.safe_dump({"agents": [agent]}))
    up = Up(folder, "--config", str(config))
    up.start(PENSTOCK_AUTH_JWT_SECRET=SECRET, ENABLE_ADK_CANONICAL_STREAM="true")
    try:
        yield Site(up.url)
    finally:
        up.signal(15)


@pytest.mark.parametrize("protocol", in_short(PROTOCOLS, ["agui"]))
def test_the_tool_finds_no_fault_in_penstock_and_writes_its_reports(
    site: Site, protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: tmp_path / f"report.{name}" for name in ("junit", "json", "html")}
    files["frames"] = tmp_path / "frames.jsonl"
    words = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    status = main([*site.options(protocol), *words])
    said = capsys.readouterr().out
    assert status == 0, said
    report = json.loads(files["json"].read_text())
    verdicts = {each["id"].partition(".")[2]: each["verdict"] for each in report["statements"]}
    assert {name for name, verdict in verdicts.items() if verdict == "failed"} == set(), said
    not_shown = {name for name, verdict in verdicts.items() if verdict == "not shown"}
    assert not_shown == NOT_SHOWN.get(protocol, set[str]()), said
    assert f"{report['passed']} passed, 0 failed" in said
    suite = ElementTree.parse(files["junit"]).getroot()
    assert len(suite) == len(verdicts)
    assert len(suite.findall("testcase/skipped")) == len(not_shown)
    page = files["html"].read_text()
    assert all(f"{protocol}.{name}" in page for name in verdicts)
    lines = files["frames"].read_text()
    assert sum(len(json.loads(each)["frames"]) for each in lines.splitlines()) > 100
    credentials = _token("alice").removeprefix("Bearer ").partition(".")[0]  # alike in all tokens
    assert credentials not in page + files["json"].read_text() + lines


@pytest.mark.parametrize("rule", in_short(FAULTS, SHORT))
async def test_the_tool_finds_the_planted_fault(site: Site, rule: str) -> None:
    result = await site.result(rule, FAULTS[rule]())
    assert result.verdict is Verdict.FAILED, result
    assert result.told


@pytest.mark.chaos
@pytest.mark.parametrize("name", MORE)
async def test_the_tool_finds_other_faults_too(site: Site, name: str) -> None:
    rule, make = MORE[name]
    result = await site.result(rule, make())
    assert result.verdict is Verdict.FAILED, result


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_penstock_keeps_what_is_quickly_shown_and_each_rule_finds_a_fault_in_it(
    site: Site, name: str
) -> None:
    await _every_fault_is_found(site, name, _quick(name))


def _quick(name: str) -> list[Statement]:
    return [
        each
        for each in PROTOCOLS[name].statements
        if (QUICK if name in RECORDED else OF_STREAMS).issuperset(
            scenario.name for scenario in each.rule.of
        )
    ]


@pytest.mark.chaos
@pytest.mark.parametrize("name", RECORDED)
async def test_each_rule_finds_a_fault_in_what_was_recorded(site: Site, name: str) -> None:
    await _every_fault_is_found(site, name, PROTOCOLS[name].statements)


async def _every_fault_is_found(site: Site, name: str, statements: Sequence[Statement]) -> None:
    """Record what the rules need, once; then change it for one rule after the other."""
    changes = changes_of(name)
    async with site.trial(name) as trial:
        before = {each.statement.rule.name: each for each in await judge(trial, statements)}
        others = {rule for rule, result in before.items() if result.verdict is not Verdict.PASSED}
        assert others == NOT_SHOWN.get(name, set[str]()) & before.keys(), before
        missed: list[Result] = []
        for statement in statements:
            if statement.rule.name in others:
                continue
            change = changes[statement.rule.name]
            changed = {
                scenario.name: change(trial.dialect, found, trial.recorded)
                for scenario in statement.rule.of
                if not isinstance(found := trial.recorded[scenario.name], NotShown)
            }
            recorded = {**trial.recorded, **changed}
            missed += [
                each
                for each in await judge(replace(trial, recorded=recorded), [statement])
                if each.verdict is not Verdict.FAILED
            ]
    assert missed == []


# What a server does wrong, as a tool that asks the wrong thing sees it.
CONFUSED: dict[str, Callable[[type[Dialect]], dict[str, Any]]] = {
    "approves": lambda of: {
        "answer": lambda self, asked, *, approve: of.answer(self, asked, approve=not approve)
    },
    "rejects": lambda of: {
        "answer": lambda self, asked, *, approve: of.answer(self, asked, approve=not approve)
    },
    "no-text": lambda of: {
        "texts": lambda self, asked: {"a yes": of.answer(self, asked, approve=True)}
    },
    "no-forgery": lambda of: {
        "forged": lambda self, asked: {"a yes": of.answer(self, asked, approve=True)}
    },
    "resumes": lambda of: {"resume": lambda self, stream, after: of.resume(self, stream, None)},
    "invalid": lambda of: {"incomplete": lambda self, start: {"nothing": start}},
}


def shown(rules: Iterable[str]) -> list[Any]:
    """Return the protocols and statements with these rules, as far as the servers show them."""
    return [
        pytest.param(name, each, id=each.id)
        for name in RECORDED
        for each in PROTOCOLS[name].statements
        if each.rule.name in rules and each.rule.name not in NOT_SHOWN.get(name, ())
    ]


@pytest.mark.chaos
@pytest.mark.parametrize(("name", "statement"), shown(CONFUSED))
async def test_a_server_that_takes_one_request_for_another_is_found_out(
    site: Site, name: str, statement: Statement
) -> None:
    async with site.trial(name) as trial:
        kind = type(trial.dialect)
        confused = type("Confused", (kind,), CONFUSED[statement.rule.name](kind))(
            trial.dialect.options
        )
        [result] = await judge(replace(trial, dialect=confused), [statement])
    assert result.verdict is Verdict.FAILED, result


@pytest.mark.chaos
@pytest.mark.parametrize(("name", "statement"), shown(["foreign", "own-answer"]))
async def test_a_server_to_which_all_users_are_one_is_found_out(
    site: Site, name: str, statement: Statement
) -> None:
    async with site.trial(name) as trial:
        owner = trial.wire.credentials[User.OWNER]
        trial.wire.credentials = {User.OWNER: owner, User.OTHER: owner}
        [result] = await judge(trial, [statement])
    assert result.verdict is Verdict.FAILED, result


def test_every_rule_of_every_protocol_has_a_fault() -> None:
    for name in RECORDED:  # for AG-UI, see the next test
        names = {each.rule.name for each in PROTOCOLS[name].statements}
        assert names - changes_of(name).keys() == set(), name


def test_every_rule_has_a_fault_that_it_finds_and_every_group_is_tried_in_short() -> None:
    statements = PROTOCOLS["agui"].statements
    assert {each.rule.name for each in statements} == set(FAULTS)
    short = [each for each in statements if each.rule.name in SHORT]
    assert {each.rule.group for each in (*short, *_quick("agui"))} == set(Group)


def test_statements_have_ids_of_their_own_and_a_source() -> None:
    for name, protocol in PROTOCOLS.items():
        ids = [each.id for each in protocol.statements]
        assert len(set(ids)) == len(ids)
        assert all(id.startswith(f"{name}.") for id in ids)
        assert all(each.source for each in protocol.statements)


def test_a_server_of_which_nothing_is_known_shows_little_and_says_what_to_pass(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    header = f"Authorization: {_token('alice')}"
    known = [site.url, "--protocol", "agui", "--path", PATH, "--header", header]
    assert main([*known, "--only", "ends", "--only", "approvals", "--only", "resume"]) == 0
    said = capsys.readouterr().out
    assert "agui.closes" in said
    for option in ("--asks", "--resume"):
        assert f"pass {option}" in said
    assert "0 failed" in said


@pytest.mark.parametrize(
    ("path", "status"), [("/agui/nobody", 1), ("", 2)], ids=["a refusal", "nothing listens"]
)
def test_the_exit_status_says_what_happened(site: Site, path: str, status: int) -> None:
    url = site.url if path else f"http://127.0.0.1:{free_port()}"
    command = [url, "--protocol", "agui", "--path", path or "/", "--only", "shape"]
    assert main([*command, "--header", f"Authorization: {_token('alice')}"]) == status


@pytest.mark.parametrize(
    "words",
    [
        ["127.0.0.1:8000"],
        ["http://x:port"],
        ["http://alice:secret@127.0.0.1"],
        ["http://127.0.0.1", "--only", "typo"],
        ["http://127.0.0.1", "--header", "secret"],
        ["http://127.0.0.1", "--cancel", "/runs/{0}"],
        ["http://127.0.0.1", "--cancel", "/runs/{run"],
        ["http://127.0.0.1", "--junit", "/no such folder/report.xml"],
    ],
    ids=lambda words: words[-1],
)
def test_a_wrong_command_is_no_verdict_on_the_server(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = main([*words, "--protocol", "agui"])
    except SystemExit as end:
        status = end.code
    assert status == 2
    assert "secret" not in capsys.readouterr().err


PAGE = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 4\r\n\r\n<p>a"
ANSWERS = {
    "no answer in time": (b"", 2),
    "a server of another protocol": (b"INFO {}\r\n", 2),
    "credentials are missing": (b"HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n", 2),
    "a page": (PAGE, 1),
    "values of other types": (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        b'data: {"type": "RUN_FINISHED", "outcome": "x"}\n\n',
        1,
    ),
}


@asynccontextmanager
async def _answers(content: bytes) -> AsyncIterator[str]:
    """Give each request this answer; yield the address."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(content)
        if not content:
            await reader.read()  # until the client leaves
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_should_that_has_failed_was_shown() -> None:
    async with _answers(PAGE) as url:
        command = [url, "--protocol", "agui", "--only", "agui.invalid"]
        assert await asyncio.to_thread(main, command) == 0


@pytest.mark.parametrize("name", ANSWERS)
async def test_only_an_answer_of_the_server_is_a_fault_of_the_server(
    name: str, tmp_path: Path
) -> None:
    content, expected = ANSWERS[name]
    async with _answers(content) as url:
        command = [url, "--protocol", "agui", "--timeout", "0.5", "--only", "shape"]
        report = tmp_path / "report.xml"
        status = await asyncio.to_thread(
            main, [*command, "--only", "ends", "--asks", "x", "--junit", str(report)]
        )
    assert status == expected
    # Nothing is written of a server that cannot be reached.
    assert report.exists() == content.startswith(b"HTTP")


@pytest.mark.parametrize("found", [1, 0])
async def test_ctrl_c_writes_what_was_found_until_then(tmp_path: Path, found: int) -> None:
    answers, waits = iter([PAGE] * found), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if (content := next(answers, None)) is not None:
            writer.write(content)
        else:
            waits.set()
            await reader.read()  # until the client leaves
        writer.close()

    files = {name: tmp_path / name for name in ("junit", "json", "html", "frames")}
    words = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    words += ["--only", "shape", "--asks", "x"]
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        command = [sys.executable, "-m", "penstock_conformance", url, "--protocol", "agui", *words]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            await asyncio.wait_for(waits.wait(), 60)
            process.send_signal(signal.SIGINT)
            out, errors = await asyncio.wait_for(process.communicate(), 60)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert (process.returncode, errors) == (STOPPED, b"")
    if not found:
        assert (out, files["json"].exists()) == (b"", False)
        return
    first, *others = json.loads(files["json"].read_text())["statements"]
    assert (first["id"], first["verdict"]) == ("agui.is-stream", "failed")
    assert {each["verdict"] for each in others} == {"not shown"}
    assert "stopped" in others[-1]["told"][0]
    assert "agui.is-stream" in out.decode()
    assert len(ElementTree.parse(files["junit"]).getroot()) == len(others) + 1
    assert "agui.is-stream" in files["html"].read_text()
    ends = [json.loads(each)["end"] for each in files["frames"].read_text().splitlines()]
    assert ends == ["whole", "left"]


# What servers may send by the documents of their protocols, and how the message did it.
ALLOWED: dict[str, tuple[tuple[str, str], list[dict[str, Any]]]] = {
    "AG-UI: an earlier run of the thread comes first": (
        ("agui", "text"),
        [
            {"type": "RUN_STARTED", "threadId": "t", "runId": "earlier"},
            {"type": "RUN_FINISHED", "threadId": "t", "runId": "earlier"},
            {"type": "RUN_STARTED", "threadId": "t", "runId": "r"},
            {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"},
        ],
    ),
    "AG-UI: a failure after the end": (
        ("agui", "fails"),
        [
            {"type": "RUN_STARTED", "threadId": "t", "runId": "r"},
            {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"},
            {"type": "RUN_ERROR", "message": "late"},
        ],
    ),
    # As ai 7.0.173 sends it when its model fails.
    "AI SDK: finish after an error": (
        ("vercel", "fails"),
        [
            {"type": "start"},
            {"type": "start-step"},
            {"type": "text-start", "id": "1"},
            {"type": "text-delta", "id": "1", "delta": "Hi"},
            {"type": "error", "errorText": "An error occurred."},
            {"type": "finish-step"},
            {"type": "finish", "finishReason": "error"},
        ],
    ),
    "AI SDK: a question, and a finish without a reason": (
        ("vercel", "asks"),
        [
            {"type": "start"},
            {"type": "tool-input-available", "toolCallId": "c", "toolName": "t", "input": {}},
            {"type": "tool-approval-request", "toolCallId": "c", "approvalId": "a"},
            {"type": "finish"},
        ],
    ),
    "A2A: a message alone": (
        ("a2a", "text"),
        [{"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "Hi"}]}}],
    ),
    "AI SDK: parts of a provider's own, and an approval that was automatic": (
        ("vercel", "text"),
        [
            {"type": "start"},
            {"type": "custom", "kind": "openai.compaction"},
            {"type": "reasoning-file", "url": "data:,", "mediaType": "image/png"},
            {"type": "tool-input-available", "toolCallId": "c", "toolName": "t", "input": {}},
            {"type": "tool-approval-request", "toolCallId": "c", "approvalId": "a"}
            | {"isAutomatic": True},
            {"type": "tool-output-available", "toolCallId": "c", "output": "ran"},
            {"type": "finish"},
        ],
    ),
    # As OpenAI does when a response fails.
    "OpenAI: an error, and then the response that failed": (
        ("openai", "fails"),
        [
            {"type": "response.created", "response": {"id": "r"}, "sequence_number": 0},
            {"type": "error", "message": "overloaded", "sequence_number": 1},
            {"type": "response.failed", "response": {"id": "r"}, "sequence_number": 2},
        ],
    ),
    "A2A: the whole task once more at the end": (
        ("a2a", "text"),
        [
            {"task": {"id": "r", "contextId": "t", "status": {"state": "TASK_STATE_WORKING"}}},
            {
                "statusUpdate": {
                    **{"taskId": "r", "contextId": "t"},
                    "status": {"state": "TASK_STATE_COMPLETED"},
                }
            },
            {"task": {"id": "r", "contextId": "t", "status": {"state": "TASK_STATE_COMPLETED"}}},
        ],
    ),
    "A2A: an artifact is replaced, then a question without the extension": (
        ("a2a", "asks"),
        [
            {"task": {"id": "r", "contextId": "t", "status": {"state": "TASK_STATE_WORKING"}}},
            *[
                {
                    "artifactUpdate": {
                        **{"taskId": "r", "contextId": "t"},
                        "artifact": {"artifactId": "1", "parts": [{"text": text}]},
                    }
                }
                for text in ("Hi", "Hello")
            ],
            {
                "statusUpdate": {
                    **{"taskId": "r", "contextId": "t"},
                    "status": {"state": "TASK_STATE_INPUT_REQUIRED"},
                }
            },
        ],
    ),
}


@pytest.mark.parametrize("name", ALLOWED)
async def test_what_the_documents_allow_is_no_fault(name: str) -> None:
    (protocol, act), events = ALLOWED[name]
    frames = [f"event: {each.get('type')}\ndata: {json.dumps(each)}\n\n" for each in events]
    frames += ["data: [DONE]\n\n"] * (protocol in ("vercel", "openai"))
    headers = {
        "content-type": "text/event-stream",
        "x-vercel-ai-ui-message-stream": "v1",
    }

    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        names = {'"t"': body.get("threadId"), '"r"': body.get("runId")}
        content = "".join(frames)
        for placeholder, id in names.items():
            content = content.replace(placeholder, json.dumps(id) if id else placeholder)
        return httpx.Response(200, headers=headers, content=content)

    tool = PROTOCOLS[protocol]
    options = Options(agent="a", path="/a", user="u")
    about = (Group.SHAPE, Group.ORDER, Group.ENDS, Group.APPROVALS)
    statements = [each for each in tool.statements if each.rule.group in about]
    async with Wire("http://a", transport=httpx.MockTransport(answer)) as wire:
        results = await judge(Trial(wire, tool.dialect(options), {act: "Hello"}), statements)
    assert [each for each in results if each.verdict is Verdict.FAILED] == []
    assert any(each.verdict is Verdict.PASSED for each in results)


@pytest.mark.parametrize(
    ("state", "broken"),
    [
        ("COMPLETED", ["a2a.closes"]),
        # Section 3.1.2 has a MUST for terminal states, and none for this one.
        ("INPUT_REQUIRED", ["a2a.closes-asking"]),
    ],
)
async def test_a2a_says_of_each_state_whether_a_stream_must_close(
    state: str, broken: list[str]
) -> None:
    tool = PROTOCOLS["a2a"]
    task = {"id": "r", "contextId": "t", "status": {"state": f"TASK_STATE_{state}"}}
    open_still = Exchange(
        Request("POST", "/"), 200, frames=(Frame("", value={"task": task}),), end=End.LATE
    )
    recorded = {each.name: open_still for each in STREAMS}
    statements = [each for each in tool.statements if each.rule.name.startswith("closes")]
    async with Wire("http://a") as wire:
        trial = Trial(wire, tool.dialect(Options()), {}, recorded=recorded)
        results = await judge(trial, statements)
    assert [each.statement.id for each in results if each.verdict is Verdict.FAILED] == broken
    assert any(each.breaks for each in results) is (state == "COMPLETED")


async def test_what_a_server_without_such_requests_refuses_is_no_success() -> None:
    """A server may have GET for A2A's subscriptions, and an agent need not cancel."""
    task = {"task": {"id": "r", "contextId": "t", "status": {"state": "TASK_STATE_WORKING"}}}
    part = {"artifactId": "1", "parts": [{"text": "Hi"}]}
    text = {"artifactUpdate": {"taskId": "r", "contextId": "t", "artifact": part}}
    done = {"taskId": "r", "contextId": "t", "status": {"state": "TASK_STATE_COMPLETED"}}
    frames = [f"data: {json.dumps(each)}\n\n" for each in (task, text, {"statusUpdate": done})]

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith((":subscribe", ":cancel")):
            return httpx.Response(405)
        headers = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=headers, content="".join(frames))

    tool = PROTOCOLS["a2a"]
    names = ("subscribes", "subscribes-late", "cancels", "cancels-again", "cancels-unknown")
    statements = [each for each in tool.statements if each.rule.name in names]
    messages = {"text": "Hello", "slow": "slow"}
    async with Wire("http://a", transport=httpx.MockTransport(answer)) as wire:
        results = await judge(Trial(wire, tool.dialect(Options()), messages), statements)
    assert {each.verdict for each in results} == {Verdict.NOT_SHOWN}, results
    assert all("405" in each.told[0] for each in results)


async def test_what_nobody_can_read_or_cancel_shows_no_gap_and_no_second_user() -> None:
    """An address that was mistyped refuses everything, also what no other user may do."""

    async def stream() -> AsyncIterator[bytes]:
        delta = {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "Hi"}
        events = [{"type": "RUN_STARTED"}, delta, delta, delta, {"type": "RUN_FINISHED"}]
        for number, event in enumerate(events):
            yield f"id: {uuid.uuid4()}-{number}\ndata: {json.dumps(event)}\n\n".encode()

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/a":
            return httpx.Response(404)
        headers = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=headers, content=stream())

    tool = PROTOCOLS["agui"]
    statements = [each for each in tool.statements if each.rule.name in ("gaps", "foreign")]
    options = Options(path="/a", resume="/typo", cancel="/typo")
    users = {User.OWNER: {"x": "alice"}, User.OTHER: {"x": "bob"}}
    async with Wire("http://a", users, transport=httpx.MockTransport(answer)) as wire:
        trial = Trial(wire, tool.dialect(options), {"text": "Hello", "slow": "slow"})
        results = await judge(trial, statements)
    assert {each.verdict for each in results} == {Verdict.NOT_SHOWN}, results


async def test_a_server_without_responses_in_the_background_does_not_fail_to_resume_them() -> None:
    events = [
        {"type": "response.created", "response": {"id": "r"}, "sequence_number": 0},
        {"type": "response.completed", "response": {"id": "r"}, "sequence_number": 1},
    ]
    content = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(404)
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=content)

    tool = PROTOCOLS["openai"]
    statements = [each for each in tool.statements if each.rule.name in ("resumes", "gaps")]
    async with Wire("http://a", transport=httpx.MockTransport(answer)) as wire:
        results = await judge(Trial(wire, tool.dialect(Options()), {"text": "Hello"}), statements)
    assert {each.verdict for each in results} == {Verdict.NOT_SHOWN}, results


@pytest.mark.parametrize(
    ("protocol", "verdict"),
    [
        *((name, Verdict.NOT_SHOWN) for name in ("agui", "vercel", "openai", "a2a")),
        # Their documents have the request.
        *((name, Verdict.FAILED) for name in ("executions", "unified", "agno")),
    ],
)
async def test_a_cancel_that_does_not_exist_breaks_only_a_protocol_that_has_it(
    protocol: str, verdict: Verdict
) -> None:
    tool = PROTOCOLS[protocol]
    refusal = Exchange(Request("POST", "/cancel"), 404, content=b"{}")
    whole = Exchange(Request("POST", "/"), 200, frames=(Frame("{}", value={"type": "x"}),))
    [statement] = [each for each in tool.statements if each.rule.name == "cancels"]
    [scenario] = statement.rule.of
    recorded = {scenario.name: Cancelled(whole, refusal, refusal)}
    async with Wire("http://a") as wire:
        trial = Trial(wire, tool.dialect(Options()), {}, recorded=recorded)
        [result] = await judge(trial, [statement])
    assert result.verdict is verdict, result
    assert "404" in result.told[0] or protocol == "agno"


@pytest.mark.parametrize(("more", "named"), [({"nodeInfo": {}}, "e-1"), ({}, None)])
def test_an_answer_names_the_invocation_that_asks_where_adk_takes_the_name(
    more: dict[str, Any], named: str | None
) -> None:
    """A resumable app goes on with it. ADK 1 refuses it if its app is not resumable."""
    call = {"id": "c", "name": "adk_request_confirmation", "args": {}}
    event = {"invocationId": "e-1", "content": {"parts": [{"functionCall": call}]}, **more}
    request = Request("POST", "/", {"sessionId": "s"})
    asked = Exchange(request, 200, frames=(Frame("", value=event),))
    answer = PROTOCOLS["adk"].dialect(Options()).answer(asked, approve=True)
    assert answer.body.get("invocationId") == named
    assert answer.body["newMessage"]["parts"][0]["functionResponse"]["id"] == "c"


@pytest.mark.parametrize(
    ("status", "kind", "faults"),
    [
        ("cancelled", None, 0),  # no event says it
        ("cancelled", "response.incomplete", 0),
        ("in_progress", None, 1),
        ("cancelled", "response.completed", 1),
    ],
)
def test_the_answer_to_a_cancel_says_what_no_event_of_openai_says(
    status: str, kind: str | None, faults: int
) -> None:
    tool = PROTOCOLS["openai"]
    frames = (Frame("", value={"type": kind}),) if kind else ()
    stream = Exchange(Request("POST", "/"), 200, frames=frames)
    answer = replace(stream, frames=(), content=json.dumps({"status": status}).encode())
    [rule] = [each.rule for each in tool.statements if each.id == "openai.cancels"]
    found = [*rule.faults(tool.dialect(Options()), Cancelled(stream, answer, answer))]
    assert len(found) == faults, found


def _ended(end: End = End.WHOLE) -> Exchange:
    values = [
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "Hi"},
        {"type": "RUN_FINISHED"},
    ]
    frames = tuple(Frame("", value=each) for each in values)
    return Exchange(Request("POST", "/"), 200, frames=frames, end=end)


def test_a_slow_agent_is_no_proof_that_a_client_holds_up_others() -> None:
    late = Stalled(_ended(), (_ended(),), others_ended=False, alone_s=1.0)
    assert [*rules.BESIDE.faults(Agui(Options()), late)]
    with pytest.raises(NotShown, match=r"30 s.*--text"):
        [*rules.BESIDE.faults(Agui(Options()), replace(late, alone_s=30.0))]


def test_a_body_that_stays_open_after_the_end_has_lost_no_text() -> None:
    slow = Stalled(_ended(End.LATE), (), fast=(_ended(), _ended()))
    assert [*rules.READS_ALL.faults(Agui(Options()), slow)] == []
    cut = replace(slow.stalled, frames=slow.stalled.frames[:1])
    assert [*rules.READS_ALL.faults(Agui(Options()), replace(slow, stalled=cut))]


STREAM = 'data: {"a":\ndata: 1}\r\nid: 1\r\n\r\n: nothing\n\nevent: x\rdata:\u2028\r\rid: 9\n\n'


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_frames_are_read_the_same_in_any_pieces(size: int) -> None:
    parser = Frames()
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    first, second = [frame for piece in pieces for frame in parser.feed(piece)]
    assert (first.value, first.id, first.event) == ({"a": 1}, "1", None)
    assert (second.data, second.event, second.id) == ("\u2028", "x", None)


@pytest.mark.parametrize(("kind", "faults"), [("TEXT_MESSAGE_CONTENT", 0), ("TOOL_CALL_RESULT", 1)])
def test_a_model_that_talks_about_a_result_again_has_not_run_the_tool_again(
    kind: str, faults: int
) -> None:
    event = {"type": kind, "delta": "it ran", "content": "it ran", "toolCallId": "c"}
    again = Exchange(Request("POST", "/"), 200, frames=(Frame("", value=event),))
    answered = Answered(again, Exchange(Request("POST", "/"), 200), again, "ran")
    found = [*rules.DECIDES_ONCE.faults(Agui(Options()), answered)]
    assert len(found) == faults, found
