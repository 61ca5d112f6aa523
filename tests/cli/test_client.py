"""The client commands run against an API that misbehaves."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from penstock_cli.main import app
from penstock_client import client, retries
from support.drive.waiting import wait_for
from support.fakes.penstock_api import APPROVAL_ID, RUN_ID, PenstockApi, events
from support.real.authority import Authority

Invoke = Callable[..., Result]

STARTED = ("lifecycle.started", {"agent": "assistant", "user_id": "anonymous"})
HELLO = ("llm.stream", {"content": "Hello ", "message_id": "m"})
WORLD = ("llm.stream", {"content": "world", "message_id": "m"})
COMPLETED = ("lifecycle.completed", {"summary": "Hello world"})
FAILED = ("lifecycle.failed", {"error": "no model", "code": "upstream_error"})
CANCELLED = ("lifecycle.cancelled", {"reason": "user_stop", "confirmed": True})
PAUSED = ("lifecycle.paused", {"reason": "approval_required", "approval_id": APPROVAL_ID})
RUN = ("run", "hi", "--agent", "assistant")
DECISION = f"/v1/approvals/{APPROVAL_ID}/decision"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[PenstockApi]:
    """Serve an API with a run that says hello."""
    monkeypatch.setattr(retries, "BACKOFF_S", (0.01,))
    server = PenstockApi(events(STARTED, HELLO, WORLD, COMPLETED))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def penstock(api: PenstockApi) -> Invoke:
    """Return a function that runs `penstock` with these arguments in this process."""
    return lambda *arguments: CliRunner().invoke(app, [*arguments, "--url", api.url])


def decisions(api: PenstockApi) -> list[dict[str, Any]]:
    """Return the decisions that were sent, without their idempotency keys; all keys must differ."""
    sent = [dict(body) for body in api.sent(DECISION)]
    keys = {body.pop("idempotency_key") for body in sent}
    assert len(keys) == len(sent)
    return sent


def json_lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_run_is_shown_as_it_goes(penstock: Invoke, api: PenstockApi) -> None:
    result = penstock(*RUN, "--session", "s-1")
    assert result.stdout == f"▶ assistant, run {RUN_ID}\nHello world\ncompleted\n"
    assert result.exit_code == 0
    [body] = api.sent("/v1/runs")
    assert (body["agent"], body["message"], body["session_id"]) == ("assistant", "hi", "s-1")


def test_tags_are_sent_shown_and_filtered(penstock: Invoke, api: PenstockApi) -> None:
    assert penstock(*RUN, "--tag", "team=a=b", "--tag", "env=test").exit_code == 0
    assert api.sent("/v1/runs")[0]["tags"] == {"team": "a=b", "env": "test"}
    assert " tags" not in penstock("runs").stdout
    api.record |= {"tags": {"team": "a=b", "env": "test"}}
    statuses = ("--status", "failed", "--status", "cancelled")
    listed = penstock("runs", "--tag", "team=a=b", "--tag", "env=test", "--text", "hi", *statuses)
    assert "team=a=b, env=test" in listed.stdout
    assert api.queries[-1].getlist("status") == ["failed", "cancelled"]
    assert api.queries[-1].getlist("tag") == ["team=a=b", "env=test"]
    assert api.queries[-1]["text"] == "hi"
    refused = penstock(*RUN, "--tag", "team")
    assert refused.exit_code == 2
    assert "key=value" in refused.stderr
    # A run that is started again has the same tags.
    assert penstock("runs", "again", RUN_ID).exit_code == 0
    assert api.sent("/v1/runs")[-1]["tags"] == api.record["tags"]


@pytest.mark.parametrize(("token", "sent"), [("abc.def", "Bearer abc.def"), ("", None)])
def test_every_request_says_who_calls(
    penstock: Invoke, api: PenstockApi, monkeypatch: pytest.MonkeyPatch, token: str, sent: str
) -> None:
    monkeypatch.setenv("PENSTOCK_TOKEN", token)
    assert penstock(*RUN).exit_code == 0
    assert api.authorizations == {sent}


def test_with_json_stdout_has_the_events_and_nothing_else(
    penstock: Invoke, api: PenstockApi
) -> None:
    api.trouble.cuts = [1]
    assert json_lines(penstock(*RUN, "--json")) == api.events


@pytest.mark.parametrize(
    ("last", "code"), [(COMPLETED, 0), (FAILED, 1), (CANCELLED, 3)], ids=lambda x: str(x)[:25]
)
def test_the_exit_code_says_how_the_run_ended(
    penstock: Invoke, api: PenstockApi, last: Any, code: int
) -> None:
    api.events = events(STARTED, last)
    assert penstock(*RUN).exit_code == code


def test_a_dropped_connection_costs_nothing_and_is_reported(
    penstock: Invoke, api: PenstockApi
) -> None:
    api.trouble.cuts = [2, 0, 1]
    result = penstock(*RUN)
    assert result.stdout == f"▶ assistant, run {RUN_ID}\nHello world\ncompleted\n"
    assert result.stderr.count("connection lost") == 3
    assert api.cursors == [None, "2-0", "2-0", "3-0"]


def test_a_run_that_was_silent_for_long_is_not_given_up_at_once(
    penstock: Invoke, api: PenstockApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = count(step=3600)
    clock = SimpleNamespace(monotonic=lambda: float(next(hours)), sleep=lambda _: None)
    monkeypatch.setattr(client, "time", clock)
    monkeypatch.setattr(retries, "time", clock)
    api.trouble.cuts = [2]
    assert penstock(*RUN).exit_code == 0


def test_a_stream_that_does_not_come_back_is_given_up(
    penstock: Invoke, api: PenstockApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "GIVE_UP_S", 0.05)
    api.trouble.cuts = [1] + [0] * 1_000_000
    result = penstock(*RUN)
    assert result.exit_code == 2
    assert "does not answer" in result.stderr


def test_another_server_is_not_taken_for_penstock(penstock: Invoke, api: PenstockApi) -> None:
    api.record = ["something else"]  # type: ignore[assignment]  # what another server may say
    result = penstock("runs", "show", RUN_ID)
    assert result.exit_code == 2
    assert "is no Penstock" in result.stderr


def test_a_busy_service_is_asked_again_with_the_same_key(
    penstock: Invoke, api: PenstockApi
) -> None:
    api.trouble.busy = 1
    assert penstock(*RUN).exit_code == 0
    first, second = api.sent("/v1/runs")
    assert first == second
    assert first["idempotency_key"]


def test_a_service_that_stays_busy_is_given_up(
    penstock: Invoke, api: PenstockApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "CALL_GIVE_UP_S", 0.05)
    api.trouble.busy = 1_000_000
    result = penstock("runs")
    assert result.exit_code == 2
    assert "503" in result.stderr


@pytest.mark.parametrize(("flag", "decision"), [("--yes", "approve"), ("--no", "reject")])
def test_an_answer_given_beforehand_is_sent_for_what_was_asked(
    penstock: Invoke, api: PenstockApi, flag: str, decision: str
) -> None:
    api.events = events(STARTED, PAUSED, COMPLETED)
    assert penstock(*RUN, flag).exit_code == 0
    assert decisions(api) == [{"items": [{"item_id": "i1", "decision": decision}], "digest": "d1"}]


def test_an_approval_that_was_decided_long_ago_is_not_asked_again(
    penstock: Invoke, api: PenstockApi
) -> None:
    api.events = events(STARTED, PAUSED, COMPLETED)
    api.decide_elsewhere()
    assert penstock(*RUN, "--yes").exit_code == 0
    assert api.sent(DECISION) == []


def test_the_first_of_two_decisions_counts(penstock: Invoke, api: PenstockApi) -> None:
    api.events = events(STARTED, PAUSED, COMPLETED)
    api.trouble.refuse_decision = (409, "it is decided")
    result = penstock(*RUN, "--yes")
    assert result.exit_code == 0
    assert "it is decided" in result.stderr


def test_an_answer_that_is_refused_leaves_the_run_waiting(
    penstock: Invoke, api: PenstockApi
) -> None:
    api.events = events(STARTED, PAUSED, COMPLETED)
    api.trouble.refuse_decision = (422, "i1: a value is needed")
    result = penstock(*RUN, "--yes")
    assert result.exit_code == 4
    assert "i1: a value is needed" in result.stderr


def test_without_waiting_a_pause_ends_it_and_says_how_to_decide(
    penstock: Invoke, api: PenstockApi
) -> None:
    api.events = events(STARTED, PAUSED, COMPLETED)
    result = penstock(*RUN)  # without a terminal, nobody waits
    assert result.exit_code == 4
    assert "the run goes on after the decision" in result.stderr
    assert f"penstock events {RUN_ID} --after 2-0 --url {api.url}" in result.stderr
    assert f"penstock approvals approve {APPROVAL_ID} --url {api.url}" in result.stderr
    assert f"penstock approvals reject {APPROVAL_ID} --url {api.url}" in result.stderr


def test_a_workflow_that_is_started_as_an_agent_is_told_its_command(
    penstock: Invoke, api: PenstockApi
) -> None:
    api.trouble.refuse_start = (404, "there is no agent 'trip'")
    api.workflows = ["trip"]
    result = penstock("run", "to Rome", "--agent", "trip")
    assert result.exit_code == 2
    assert f"penstock workflow run trip 'to Rome' --url {api.url}" in result.stderr


@pytest.mark.parametrize("listed", ["runs", "agents", "workflows", "workflow"])
def test_a_list_has_a_short_name_and_a_full_one(
    penstock: Invoke, api: PenstockApi, listed: str
) -> None:
    api.agents = [{"id": "assistant"}]
    short, full = penstock(listed, "--json"), penstock(listed, "list", "--json")
    assert (short.exit_code, full.exit_code, full.stdout) == (0, 0, short.stdout)


def test_a_certificate_is_trusted_by_its_authority_and_else_told_as_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    authority = Authority(tmp_path, "authority")
    cert, key = authority.certify("server")
    server = PenstockApi(events(STARTED, COMPLETED), cert=cert, key=key)
    server.start()
    try:
        words = [*RUN, "--url", server.url]
        unknown = CliRunner().invoke(app, words)
        assert unknown.exit_code == 2
        assert "is not trusted" in unknown.stderr
        assert "penstock --ca FILE" in unknown.stderr
        streamed = CliRunner().invoke(app, ["events", RUN_ID, "--url", server.url])
        assert "is not trusted" in streamed.stderr
        trusting = CliRunner(env={"SSL_CERT_FILE": str(authority.file)})
        assert trusting.invoke(app, words).exit_code == 0
        assert CliRunner().invoke(app, ["--ca", str(authority.file), *words]).exit_code == 0
    finally:
        server.stop()


def test_a_file_of_authorities_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    environment = {"SSL_CERT_FILE": str(tmp_path / "none")}
    result = CliRunner(env=environment).invoke(app, ["runs", "--url", "https://127.0.0.1:1"])
    assert result.exit_code == 2
    assert "SSL_CERT_FILE cannot be read" in result.stderr


def test_a_server_without_tls_is_told_as_such(api: PenstockApi) -> None:
    result = CliRunner().invoke(app, ["runs", "--url", api.url.replace("http:", "https:")])
    assert result.exit_code == 2
    assert "does it serve http://?" in result.stderr


def test_a_program_name_that_is_no_file_is_no_error(
    penstock: Invoke, api: PenstockApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = tmp_path / "penstock"
    found.write_text("#!/bin/sh\n")
    found.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["penstock"])
    api.events = events(STARTED, PAUSED, COMPLETED)
    assert "To allow it: penstock approvals approve" in penstock(*RUN).stderr


def test_a_refused_start_says_why(penstock: Invoke, api: PenstockApi) -> None:
    api.trouble.refuse_start = (404, "there is no agent 'assistant'")
    result = penstock(*RUN)
    assert result.exit_code == 2
    assert result.stderr == "penstock: there is no agent 'assistant' (404)\n"
    assert result.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        RUN,
        ("events", "r"),
        ("runs",),
        ("runs", "show", "r"),
        ("cancel", "r"),
        ("approvals", "list"),
        ("approvals", "approve", "a"),
    ],
    ids=" ".join,
)
def test_where_nothing_answers_it_says_what_to_do(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*arguments, "--url", "http://127.0.0.1:1"])
    assert result.exit_code == 2
    assert result.stderr == (
        "penstock: nothing answers at http://127.0.0.1:1; start it with `make run`\n"
    )


@pytest.mark.parametrize("url", ["nowhere", "ftp://127.0.0.1", "http://[::"])
def test_an_invalid_url_is_an_error(url: str) -> None:
    result = CliRunner().invoke(app, ["runs", "--url", url])
    assert result.exit_code == 2
    assert result.stderr.startswith("penstock: ")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("events", "nope"),
        ("runs", "show", "nope"),
        ("cancel", "nope"),
        ("approvals", "show", "nope"),
    ],
    ids=" ".join,
)
def test_an_unknown_id_is_an_error(penstock: Invoke, arguments: tuple[str, ...]) -> None:
    result = penstock(*arguments)
    assert result.exit_code == 2
    assert "there is no such thing" in result.stderr


def test_events_continue_from_a_cursor(penstock: Invoke, api: PenstockApi) -> None:
    result = penstock("events", RUN_ID, "--after", "2-0")
    assert result.stdout == "world\ncompleted\n"
    assert api.cursors == ["2-0"]


@pytest.mark.parametrize(
    ("status", "code"), [("completed", 0), ("failed", 1), ("cancelled", 3), ("paused", 4)]
)
def test_behind_the_last_event_the_record_says_how_it_ended(
    penstock: Invoke, api: PenstockApi, status: str, code: int
) -> None:
    api.record["status"] = status
    assert penstock("events", RUN_ID, "--after", "4-0").exit_code == code


def test_another_dialect_is_shown_as_it_comes(penstock: Invoke, api: PenstockApi) -> None:
    result = penstock("events", RUN_ID, "--dialect", "unified")
    first = json.dumps(api.events[0])
    assert result.stdout.startswith(f"event: lifecycle.started\ndata: {first}\nid: 1-0\n\nevent: ")
    assert json_lines(penstock("events", RUN_ID, "--dialect", "unified", "--json")) == api.events


def test_a_list_is_read_page_after_page_up_to_the_limit(penstock: Invoke, api: PenstockApi) -> None:
    api.most = 3
    api.more_runs = [api.record | {"run_id": f"0197{RUN_ID[4:-2]}{n:02}"} for n in range(9, 0, -1)]
    newest = [api.record, *api.more_runs]
    shown = penstock("runs", "--json", "--limit", "8")
    assert json_lines(shown) == newest[:8]
    assert "--limit" in shown.stderr
    shown = penstock("runs", "--json", "--limit", "20")
    assert json_lines(shown) == newest
    assert shown.stderr == ""


def test_the_runs_of_a_workflows_steps_are_listed_with_their_step(
    penstock: Invoke, api: PenstockApi
) -> None:
    assert " step " not in penstock("runs").stdout
    child = {"run_id": f"0197{RUN_ID[4:]}", "step_id": "step_lint", "parent_run_id": RUN_ID}
    api.more_runs = [api.record | child]
    for arguments in ((), ("--parent", RUN_ID)):
        table = penstock("runs", *arguments).stdout
        assert " step " in table
        assert "step_lint" in table
        assert (RUN_ID in table) == (not arguments)


def test_lists_are_tables_for_people_and_lines_for_scripts(
    penstock: Invoke, api: PenstockApi
) -> None:
    table = penstock("runs").stdout
    assert RUN_ID in table
    assert "running" in table
    assert json_lines(penstock("runs", "--json")) == [api.record]
    assert 'delete_file(path="a")' in penstock("approvals", "list").stdout
    assert json_lines(penstock("approvals", "list", "--json")) == [api.approval]


def test_one_record_is_shown_whole(penstock: Invoke, api: PenstockApi) -> None:
    assert json_lines(penstock("runs", "show", RUN_ID, "--json")) == [api.record]
    assert "agent       assistant\n" in penstock("runs", "show", RUN_ID).stdout
    assert "delete_file" in penstock("approvals", "show", APPROVAL_ID).stdout


def test_an_approval_that_needs_two_people_says_so_to_the_first(
    penstock: Invoke, api: PenstockApi
) -> None:
    api.approval["need"] = 2
    first = penstock("approvals", "approve", APPROVAL_ID)
    assert "your vote counts: 1 of 2; the run goes on when others have" in first.stderr
    assert "your vote counts" not in penstock("approvals", "approve", APPROVAL_ID).stderr


def test_an_approval_is_decided_item_by_item(penstock: Invoke, api: PenstockApi) -> None:
    api.approval["items"] = [{"item_id": id, "kind": "input"} for id in ("a", "b", "c")]
    more = (
        "--reject",
        "b",
        "--value",
        'a={"city": "Rome"}',
        "--value",
        "c=as text",
        "--note",
        "ok",
    )
    assert penstock("approvals", "approve", APPROVAL_ID, *more).exit_code == 0
    assert decisions(api) == [
        {
            "items": [
                {"item_id": "a", "decision": "approve", "value": {"city": "Rome"}},
                {"item_id": "b", "decision": "reject"},
                {"item_id": "c", "decision": "approve", "value": "as text"},
            ],
            "note": "ok",
            "digest": "d1",
        }
    ]


def test_a_decision_is_told_in_words_and_its_record_with_json(
    penstock: Invoke, api: PenstockApi
) -> None:
    api.approval["traceparent"] = "00-1-2-01"
    told = penstock("approvals", "approve", APPROVAL_ID)
    assert told.stdout == 'approved: delete_file(path="a")\n'
    assert told.stderr == f"run {RUN_ID} of assistant goes on\n"
    assert penstock("approvals", "reject", APPROVAL_ID).stdout.startswith("rejected: delete_file")
    assert json_lines(penstock("approvals", "approve", APPROVAL_ID, "--json")) == [api.approval]


def test_one_vote_of_two_does_not_wait_for_the_other_without_a_terminal(
    penstock: Invoke, api: PenstockApi
) -> None:
    api.events, api.approval["need"] = events(STARTED, PAUSED, COMPLETED), 2
    result = penstock(*RUN, "--yes")
    assert result.exit_code == 4
    assert "your vote counts: 1 of 2" in result.stderr


@pytest.mark.parametrize("text", ["NaN", "1e400"])
def test_a_value_that_is_no_json_is_sent_as_text(
    penstock: Invoke, api: PenstockApi, text: str
) -> None:
    assert penstock("approvals", "approve", APPROVAL_ID, "--value", f"i1={text}").exit_code == 0
    [decision] = decisions(api)
    assert {"item_id": "i1", "decision": "approve", "value": text} in decision["items"]


def test_a_value_for_no_item_is_a_mistake(penstock: Invoke, api: PenstockApi) -> None:
    assert penstock("approvals", "approve", APPROVAL_ID, "--value", "Rome").exit_code == 2
    assert api.sent(DECISION) == []


def test_rejecting_refuses_all_items(penstock: Invoke, api: PenstockApi) -> None:
    assert penstock("approvals", "reject", APPROVAL_ID, "--note", "no").exit_code == 0
    assert decisions(api) == [
        {"items": [{"item_id": "i1", "decision": "reject"}], "note": "no", "digest": "d1"}
    ]


def test_cancelling_what_is_over_comes_too_late(penstock: Invoke, api: PenstockApi) -> None:
    assert json_lines(penstock("cancel", RUN_ID, "--json"))[0]["status"] == "cancelled"
    api.record["status"] = "completed"
    assert penstock("cancel", RUN_ID).exit_code == 1


# A process that a shell starts in the background ignores SIGINT, and so do its children. This
# script restores Python's own handler, which a client in a terminal would have.
INTERRUPTIBLE = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("penstock_cli", run_name="__main__", alter_sys=True)
"""


def spawn(api: PenstockApi, *arguments: str, **more: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", INTERRUPTIBLE, *arguments, "--url", api.url]
    return subprocess.Popen(command, **{"stderr": subprocess.PIPE, **more})


def test_a_pause_that_others_decide_is_waited_out(api: PenstockApi) -> None:
    api.events = events(STARTED, PAUSED, COMPLETED)
    with spawn(api, *RUN, "--wait", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"To allow it: penstock approvals approve" in process.stderr.readline()
        api.decide_elsewhere()
        assert process.wait(60) == 0
    assert api.sent(DECISION) == []


def test_ctrl_c_leaves_the_run_running_and_says_how_to_come_back(api: PenstockApi) -> None:
    api.events = events(STARTED, HELLO, PAUSED, COMPLETED)
    with spawn(
        api, *RUN, "--json", "--wait", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"penstock events {RUN_ID} --after 3-0 --url {api.url}".encode() in told
    assert f"penstock cancel {RUN_ID} --url {api.url}".encode() in told
    assert api.sent(f"/v1/runs/{RUN_ID}/cancel") == []


def test_a_person_at_the_terminal_is_asked(api: PenstockApi) -> None:
    api.events = events(STARTED, PAUSED, COMPLETED)
    ours, theirs = pty.openpty()
    with spawn(api, *RUN, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        read_until(ours, b"approve? ")
        os.write(ours, b"perhaps\n")
        # What is typed before the second question is no answer to it.
        read_until(ours, b"perhaps is no answer: begin with y or n", b"approve? ")
        os.write(ours, b"n too risky\n")
        assert process.wait(60) == 0
    os.close(ours)
    [decision] = api.sent(DECISION)
    assert decision["items"] == [{"item_id": "i1", "decision": "reject", "note": "too risky"}]


def test_a_person_who_leaves_the_decision_to_others_is_told_that_the_command_stays(
    api: PenstockApi,
) -> None:
    api.events = events(STARTED, PAUSED)
    ours, theirs = pty.openpty()
    with spawn(api, *RUN, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        read_until(ours, b"approve? ")
        os.write(ours, b"\n")
        read_until(ours, b"follows the run until others decide; Ctrl-C leaves it")
        process.kill()
    os.close(ours)
    assert api.sent(DECISION) == []


def test_what_was_typed_before_the_question_is_no_answer_to_it(api: PenstockApi) -> None:
    api.events = events(STARTED, PAUSED, COMPLETED)
    ours, theirs = pty.openpty()
    os.write(ours, b"y\ny\ny")  # the last answer lacks its line end
    with spawn(api, *RUN, stdin=theirs, stdout=theirs) as process:
        os.close(theirs)
        read_until(ours, b"approve? ")
        os.write(ours, b"n not that one\n")
        assert process.wait(60) == 0
    os.close(ours)
    [decision] = api.sent(DECISION)
    [item] = decision["items"]
    assert (item["decision"], item["note"]) == ("reject", "not that one")


def read_until(terminal: int, *probes: bytes) -> None:
    """Read until the terminal has shown these texts, one after the other."""
    seen, pattern = b"", re.compile(b".*".join(map(re.escape, probes)), re.DOTALL)

    def probes_seen() -> bool:
        nonlocal seen
        seen += os.read(terminal, 4096)
        return pattern.search(seen) is not None

    wait_for(probes_seen, 30, f"{probes!r} on the terminal")


def test_a_run_is_started_again_after_its_tools_were_named(
    penstock: Invoke, api: PenstockApi
) -> None:
    call = ("llm.tool_call", {"tool": "delete_file", "args": {}, "tool_call_id": "t"})
    asked = ("lifecycle.started", {**STARTED[1], "message": "Delete both"})
    api.events = events(asked, call, call, COMPLETED)
    result = penstock("runs", "again", RUN_ID)
    assert result.exit_code == 0, result.output
    assert "This run has called: delete_file (2)." in result.stderr
    [body] = api.sent("/v1/runs")
    assert body.pop("idempotency_key")
    forked = {"run_id": RUN_ID, "sequence": 0}
    assert body == {"agent": "assistant", "message": "Delete both", "forked_from": forked}
    assert penstock("runs", "again", RUN_ID, "--message", "Delete one").exit_code == 0
    assert api.sent("/v1/runs")[1]["message"] == "Delete one"


def test_a_run_is_forked_after_it_was_said_what_is_taken_over(
    penstock: Invoke, api: PenstockApi
) -> None:
    api.fork = {
        **{"run_id": RUN_ID, "sequence": 9, "possible": True, "reason": None},
        "taken_over": {"steps": ["step_build"], "messages": 1, "tool_calls": 2},
        **{"asks_again": ["step_ask"], "later_steps": ["step_deploy"], "later_tools": []},
    }
    api.events = events(STARTED, COMPLETED)
    result = penstock("runs", "fork", RUN_ID, "--sequence", "9")
    assert result.exit_code == 0, result.output
    assert (
        "After event 9. Taken over: step_build, 1 message, 2 results of tools. "
        "People are asked again: step_ask."
    ) in result.stderr
    assert "may do again: step_deploy." in result.stderr
    [body] = filter(None, api.sent(f"/v1/runs/{RUN_ID}/fork"))
    assert body.pop("idempotency_key")
    assert body == {"sequence": 9}
    api.fork = {**api.fork, "possible": False, "reason": "the run has not ended"}
    refused = penstock("runs", "fork", RUN_ID)
    assert refused.exit_code == 2
    assert "cannot be forked: the run has not ended" in refused.stderr
    assert len([*filter(None, api.sent(f"/v1/runs/{RUN_ID}/fork"))]) == 1
