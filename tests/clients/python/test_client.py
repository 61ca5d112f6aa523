"""penstock-client over a server of recorded runs that cuts connections."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from penstock.sse import Frame
from penstock_client import (
    ApiError,
    AsyncClient,
    Client,
    CursorGone,
    DeadlineReached,
    Notice,
    PenstockError,
    Unreachable,
    retries,
)
from penstock_client.calls import Bearer
from penstock_client.following import Following, read
from penstock_client.requests import path_of
from penstock_client.retries import Retries, Server
from penstock_client.testing import ReplayServer
from support.fakes.penstock_api import APPROVAL_ID, RUN_ID
from support.recorded.asking import ASKING

FOLDER = Path(__file__).parents[3] / "clients" / "python"
SOURCE = FOLDER / "penstock_client"


@pytest.fixture
def server(penstock_replay: ReplayServer, monkeypatch: pytest.MonkeyPatch) -> ReplayServer:
    monkeypatch.setattr(retries, "BACKOFF_S", (0.01,))
    penstock_replay.add(ASKING)
    return penstock_replay


def seen(url: str, **options: Any) -> list[int]:
    """Follow a run with Client and approve what it asks; return the events' sequences."""
    with Client(url) as client:
        run, found = client.run("assistant", "hi", **options), []
        for event in run:
            assert not isinstance(event, Notice)
            found.append(event.sequence)
            if event.type == "lifecycle.paused":
                client.decide(client.approval(event.data["approval_id"]), True)
        assert client.record(run.start())["status"] == "completed"
    return found


def seen_by_asyncio(url: str) -> list[int]:
    async def follow() -> list[int]:
        async with AsyncClient(url) as client:
            run, found = client.run("assistant", "hi"), []
            async for event in run:
                assert not isinstance(event, Notice)
                found.append(event.sequence)
                if event.type == "lifecycle.paused":
                    await client.decide(await client.approval(event.data["approval_id"]), True)
            assert (await client.record(await run.start()))["status"] == "completed"
        return found

    return asyncio.run(follow())


@pytest.mark.parametrize("follow", [seen, seen_by_asyncio], ids=["threads", "asyncio"])
@pytest.mark.parametrize("frames", range(len(ASKING)))
def test_a_run_is_whole_wherever_the_connection_is_cut(
    server: ReplayServer, frames: int, follow: Callable[[str], list[int]]
) -> None:
    server.cut_after = [frames, 0, 1]
    assert follow(server.url) == [*range(1, len(ASKING) + 1)]


def test_a_run_goes_on_at_the_cursor_of_another_client(server: ReplayServer) -> None:
    with Client(server.url) as client:
        run = client.run("assistant", "hi")
        first = [event.type for _, event in zip(range(2), run, strict=False)]
    with Client(server.url) as client:
        for approval in client.approvals():
            client.decide(approval, True)
        rest = [event.type for event in client.follow(run.start(), after=run.cursor)]
    assert [*first, *rest] == [f"{e['event']['category']}.{e['event']['action']}" for e in ASKING]


def test_a_repeat_of_a_start_has_the_same_key_and_the_next_start_another(
    server: ReplayServer,
) -> None:
    with Client(server.url) as client:
        client.start("assistant", "one")
        client.start("assistant", "two", idempotency_key="mine", tags={"team": "a"})
    [one, two] = [body for path, body in server.requests if path == "/v1/runs"]
    assert len(one["idempotency_key"]) == 36
    assert two == {
        **{"agent": "assistant", "message": "two"},
        **{"idempotency_key": "mine", "tags": {"team": "a"}},
    }


def test_a_decision_on_a_request_that_has_changed_is_refused(server: ReplayServer) -> None:
    with Client(server.url) as client:
        approval = client.approval(APPROVAL_ID)
        approval["digest"] = "another"
        with pytest.raises(ApiError, match="has changed") as refused:
            client.decide(approval, False, "too risky")
    assert refused.value.status == 409
    sent = server.requests[-1][1]
    assert sent["items"] == [{"item_id": "i1", "decision": "reject"}]
    assert (sent["note"], sent["digest"]) == ("too risky", "another")


def test_a_deadline_ends_the_wait_and_not_the_run(server: ReplayServer) -> None:
    """The run waits for a decision that does not come."""
    with Client(server.url) as client:
        run = client.run("assistant", "hi", deadline_s=0.3)
        with pytest.raises(DeadlineReached) as late:
            run.wait()
        assert late.value.cursor == run.cursor == "5-0"
        assert client.record(run.start())["status"] == "paused"


def test_where_nothing_answers_the_first_call_says_so_at_once() -> None:
    with Client("http://127.0.0.1:1") as client, pytest.raises(Unreachable) as error:
        client.run("assistant", "hi").wait()
    assert error.value.reason == "refused"


def test_a_server_that_went_away_is_waited_for_and_then_given_up(
    server: ReplayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "CALL_GIVE_UP_S", 0.1)
    notices: list[str] = []
    with Client(server.url, notice=notices.append) as client:
        client.record(RUN_ID)
        server.stop()
        with pytest.raises(Unreachable, match="does not answer since") as error:
            client.record(RUN_ID)
    assert error.value.reason == "silent"
    assert len(notices) > 1


def test_time_in_which_the_computer_slept_is_no_time_of_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine sleeps for an hour between two tries, and its network comes back later."""
    now_s = 0.0
    monkeypatch.setattr(retries, "time", SimpleNamespace(monotonic=lambda: now_s))
    waiting = Retries(Server("u", lambda _: None), retries.GIVE_UP_S)
    tries = 0
    for slept_s in (0, 3600, 1, 60, 60):
        now_s += slept_s
        try:
            waiting.pause_s("no network")
        except Unreachable:
            break
        tries += 1
    assert tries == 4  # 45 + 1 + 45 s, and the fifth is too much


def test_where_no_connection_is_made_in_time_the_first_call_says_so_at_once() -> None:
    waiting = Retries(Server("http://a", lambda _: None), retries.CALL_GIVE_UP_S)
    with pytest.raises(Unreachable, match="nothing answers at http://a") as error:
        waiting.after(httpx.ConnectTimeout("timed out"))
    assert error.value.reason == "refused"


@pytest.mark.timeout(20)
def test_a_server_of_pages_is_no_penstock(server: ReplayServer) -> None:
    """Such servers answer each path with their first page. It is not asked again and again."""
    server.refuse[f"/v1/runs/{RUN_ID}/events"] = 200, "a page"
    with Client(server.url) as client, pytest.raises(Unreachable, match="no Penstock") as error:
        client.follow(RUN_ID).wait()
    assert error.value.reason == "foreign"


def test_a_token_that_has_expired_is_asked_for_again() -> None:
    tokens = iter(["old", "new", "new"])
    flow = Bearer(lambda: next(tokens)).sync_auth_flow(httpx.Request("GET", "http://a"))
    assert next(flow).headers["authorization"] == "Bearer old"
    assert flow.send(httpx.Response(401)).headers["authorization"] == "Bearer new"


async def test_a_token_may_come_from_an_async_function_and_is_then_no_token_for_threads(
    server: ReplayServer,
) -> None:
    async def renewed() -> str:
        await asyncio.sleep(0)
        return next(tokens)

    tokens = iter(["old", "new"])
    flow = Bearer(renewed).async_auth_flow(httpx.Request("GET", "http://a"))
    assert (await anext(flow)).headers["authorization"] == "Bearer old"
    assert (await flow.asend(httpx.Response(401))).headers["authorization"] == "Bearer new"
    tokens = iter(["for a call", "for threads"])
    async with AsyncClient(server.url, token=renewed) as client:
        assert (await client.record(RUN_ID))["run_id"] == RUN_ID
    given: Any = renewed
    with Client(server.url, token=given) as wrong, pytest.raises(TypeError, match="AsyncClient"):
        wrong.record(RUN_ID)


@pytest.mark.parametrize("follow", [seen, seen_by_asyncio], ids=["threads", "asyncio"])
def test_a_server_that_is_full_at_times_is_waited_for(
    server: ReplayServer, follow: Callable[[str], list[int]]
) -> None:
    server.cut_after, server.turn_away = [2], [200, 429, 503]
    began = time.monotonic()
    assert follow(server.url) == [*range(1, len(ASKING) + 1)]
    assert time.monotonic() - began > 2  # Retry-After is 1 s
    assert server.turn_away == []


def test_a_second_loop_over_a_run_takes_over_and_the_first_one_says_so(
    server: ReplayServer,
) -> None:
    with Client(server.url) as client:
        run = client.run("assistant", "hi")
        first = iter(run)
        assert next(first).type == "lifecycle.started"
        assert next(iter(run)).type == "llm.stream"
        with pytest.raises(PenstockError, match="another iteration"):
            next(first)
        [approval] = client.approvals()
        client.decide(approval, True)
        assert run.wait()["status"] == "completed"


def test_a_cursor_whose_events_are_gone_is_an_error_of_its_own(server: ReplayServer) -> None:
    server.refuse[f"/v1/runs/{RUN_ID}/events"] = 410, "begin again without a cursor"
    with Client(server.url) as client, pytest.raises(CursorGone, match="begin again"):
        client.follow(RUN_ID, after="9-0").wait()


def test_what_the_server_says_about_the_stream_is_a_notice() -> None:
    body = b'{"run_id":"r","event":{"category":"system","action":"warning"},"data":{"code":"c"}}'
    notice = read(Frame(body))
    assert isinstance(notice, Notice)
    assert (notice.type, notice.code, notice.run_id) == ("system.warning", "c", "r")


def test_the_changes_of_approvals_begin_again_when_their_cursor_is_gone() -> None:
    following = Following(Server("u", print), "/", {}, "7-0", until="never")
    assert following.open(410, {}) == "nothing"
    assert following.cursor is None
    assert following.open(410, {}) == "refusal"


def test_a_proxy_that_compresses_holds_no_events() -> None:
    """Caddy with `encode gzip` passed 64 events on after the last one, 15 s late."""
    following = Following(Server("u", print), "/", {}, "7-0", until="end of run")
    sent = httpx.Client().build_request("GET", "http://a", headers=following.headers)
    assert sent.headers["accept-encoding"] == "identity"


def test_ids_are_quoted_in_paths() -> None:
    assert path_of("runs", "../../admin?x") == "/v1/runs/..%2F..%2Fadmin%3Fx"


def test_the_client_for_threads_is_that_for_asyncio(tmp_path: Path) -> None:
    """If this fails after a change of async_client.py, run `make contract`."""
    made = tmp_path / "client.py"
    commands: list[list[str | Path]] = [
        ["-m", "penstock.contract.threads", SOURCE / "async_client.py", made],
        ["-m", "ruff", "check", "-q", "--fix", "--select", "I", "--config", "pyproject.toml", made],
        ["-m", "ruff", "format", "-q", "--config", "pyproject.toml", made],
    ]
    for command in commands:
        subprocess.run([sys.executable, *command], check=True, cwd=FOLDER.parents[1])
    assert made.read_text() == (SOURCE / "client.py").read_text()


def test_the_programs_of_the_readme_run(
    server: ReplayServer, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (FOLDER / "README.md").read_text()
    first, approvals, _ = re.findall(r"```python\n(.*?)```", text, re.S)
    [approval] = Client(server.url).approvals()
    Client(server.url).decide(approval, True)
    exec(first.replace("http://127.0.0.1:8000", server.url), {})
    assert "Hello" in capsys.readouterr().out
    exec(approvals, {"client": Client(server.url), "ask": lambda items: True})
    assert [path for path, _ in server.requests][-1].endswith("/decision")
